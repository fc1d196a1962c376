"""Studies of why a library's BYOL and ours differ: their ends take the steps of the library's code and of ours, in float64."""

import copy
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from msgspec.structs import replace
from study.small_runs import START, recorded
from torch import Tensor, nn

from mmairl.configs import home, load_config
from mmairl.data.views import normalised
from mmairl.evaluation.backbone import load_backbone
from mmairl.hooks.momentum import MomentumHook
from mmairl.models.siamese import pooled
from mmairl.registry import MODELS
from mmairl.study.factors import changed
from mmairl.study.given import facts_of
from mmairl.study.guard import at_scale, compare, require_fair
from mmairl.study.numbers.attribution import attribute
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Study, read_study
from mmairl.weights.read import read_backbone
from projects.benchmark.of_lightly import LightlyBYOL, byol_step
from projects.benchmark.step import copy_weights, quiet, training_loop
from projects.parity.compare import source

STUDIES = {'lightly': 'explain_lightly', 'solo': 'explain_sololearn'}
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
RATES, TAU = (0.1, 0.2, 0.3), 0.9  # of a warm-up; at one rate the place of the rate is not seen
Moves = list[dict[str, Tensor]]


@cache
def study(name: str) -> Study:
    return read_study(home() / 'configs' / 'studies' / f'{STUDIES[name]}.yaml')


def end(name: str, level: int) -> str:
    """The row of all first levels, ours, or of all second ones, the library's."""
    return next(row for row, levels in study(name).design.rows.items() if set(levels) == {level})


def config(name: str, level: int) -> Config:
    row = next(row for row in study(name).rows if row.name == end(name, level))
    return resolve(row, read_scale('demo'))


@cache
def batch() -> dict:
    views = torch.randint(0, 256, (2, 16, 3, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return dict(inputs=list(views.unbind()), data_samples={})


@quiet()
def network(name: str, level: int) -> tuple[BaseModel, dict]:
    """The network and the optimizer of an end, at the scale of the demo; the views are given as they are."""
    cfg = config(name, level)
    cfg.model.data_preprocessor.pop('views')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model.double().train(), cfg.optim_wrapper


@quiet()
def our_moves(name: str, level: int) -> Moves:
    """Return how the first steps of an end move the weights, by our code."""
    model, optimizer = network(name, level)
    wrapper = build_optim_wrapper(model, optimizer)
    step = training_loop(model, wrapper, batch(), [MomentumHook(TAU)])
    return list(walk(step, wrapper.optimizer.param_groups))


def walk(step: Callable, groups: list[dict]) -> Iterator[dict[str, Tensor]]:
    for rate in RATES:
        for group in groups:
            group['lr'] = rate
        yield step()


def moves_of_lightly() -> Moves:
    pytest.importorskip('lightly', reason='lightly is not installed, so there is no code of it to step beside')
    ours, optimizer = network('lightly', 1)
    theirs = LightlyBYOL(copy.deepcopy(ours.backbone), 128, 256, 64).double().train()
    copy_weights(ours, theirs)
    settings = {key: optimizer.optimizer[key] for key in ('lr', 'momentum', 'weight_decay')}
    step = byol_step(theirs, batch(), (MEAN, STD), settings, momentum=TAU, rates=iter(RATES))
    return [step() for _ in RATES]


def moves_of_solo_learn() -> Moves:
    """Its loss, LARS and teacher, and its network; gradients of four parts of a batch are accumulated, as in its recipe."""
    pytest.importorskip('torchmetrics', reason='solo-learn imports torchmetrics, which is not installed')
    try:
        lars, loss, updater = (source('solo', f'{file}.py') for file in ('utils/lars', 'losses/byol', 'utils/momentum'))
    except ModuleNotFoundError as error:
        pytest.skip(f'no code of solo-learn to step beside: {error}')
    ours, optimizer = network('solo', 1)
    encoder, parts = ours.backbone, []
    for neck in (ours.projector.mlp, ours.predictor.mlp):
        hidden, last = neck[0], neck[3]
        norm = nn.BatchNorm1d(hidden.out_features).double()
        parts.append(nn.Sequential(hidden, norm, nn.ReLU(), last))
    for norm in [module for module in encoder.modules() if hasattr(module, 'replicas')]:
        norm.replicas = 1  # plain batch norm of a part of the batch
    student = nn.ModuleList([encoder, *parts]).train()
    teacher = copy.deepcopy(student[:2]).requires_grad_(False)
    told = optimizer.optimizer
    sgd = torch.optim.SGD(student.parameters(), told.lr, told.momentum, weight_decay=told.weight_decay)
    wrapped = lars.LARSWrapper(sgd, eta=told.eta, exclude_bias_n_norm=True)
    follow = updater.MomentumUpdater(TAU)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (MEAN, STD))
    views = [normalised(view, mean, std).double() for view in batch()['inputs']]

    def step() -> dict[str, Tensor]:
        weights = dict(first=encoder.conv1.weight, last=list(encoder.parameters())[-1])
        before, total = {name: weight.detach().clone() for name, weight in weights.items()}, 0.0
        wrapped.zero_grad()
        for shares in zip(*(view.chunk(4) for view in views)):
            queries = [student[2](student[1](pooled(encoder(share)))) for share in shares]
            with torch.no_grad():
                keys = [teacher[1](pooled(teacher[0](share))) for share in shares]
            part = sum(loss.byol_loss_func(query, key) for query, key in zip(reversed(queries), keys)) / 4
            part.backward()
            total += part.detach()
        wrapped.step()
        for one, other in zip(student[:2], teacher):
            follow.update(one, other)
        return dict(loss=total, **{name: weight.detach() - before[name] for name, weight in weights.items()})

    return list(walk(step, wrapped.param_groups))


def apart(ours: Moves, theirs: Moves) -> float:
    """How far the moves of two are apart, at most, as a part of the move."""
    pairs = [(one[name], other[name]) for one, other in zip(ours, theirs) for name in ('first', 'last')]
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


@pytest.mark.parametrize('name, theirs, constant', [('lightly', moves_of_lightly, 4), ('solo', moves_of_solo_learn, 0)])
def test_the_librarys_end_takes_the_first_steps_of_its_own_code_and_our_end_others(name, theirs, constant):
    moves, ours = theirs(), our_moves(name, 1)
    assert apart(ours, moves) < 1e-5
    for one, other in zip(ours, moves):
        torch.testing.assert_close(one['loss'].double(), other['loss'].double() + constant, rtol=1e-6, atol=0)
    assert apart(our_moves(name, 0), moves) > 0.1


@pytest.mark.parametrize('name', list(STUDIES))
def test_the_ends_are_rows_and_their_views_are_ours_and_byols_pair(name):
    options = {row.name: row.options for row in study(name).rows}
    ours, theirs = (load_config('mmairl::byol_lars_r50_200e.py', options[end(name, level)]) for level in (0, 1))
    plain, pair = (
        load_config(f'mmairl::{config}') for config in ('byol_lars_r50_200e.py', 'byol_asymmetric_r50_200e.py')
    )
    assert changed(ours, plain) == [] and 'train_dataloader.dataset.views' not in changed(theirs, pair)
    assert 'train_dataloader.dataset.views' in changed(ours, pair) and study(name).design.resolution == 4


def test_lightlys_own_training_is_as_long_and_fast_as_the_end_in_its_name_and_is_judged(tmp_path, monkeypatch):
    pytest.importorskip('lightly', reason='lightly is not installed, so there is no training by its code')
    from projects.judge import lightly_byol

    cfg = config('lightly', 1)
    told = cfg.optim_wrapper.optimizer.lr, cfg.default_hooks.momentum.base
    assert told == pytest.approx((lightly_byol.RATE, lightly_byol.TAU))
    for theirs, ours in zip(lightly_byol.views().transforms, cfg.model.data_preprocessor.views):
        crop, *_, blur, solarize, _, _ = theirs.transform.transforms
        told = {step['type']: step for step in ours}
        assert tuple(crop.scale) == tuple(told['RandomResizedCrop']['scale'])
        assert (blur.prob, solarize.prob) == (told['GaussianBlur']['p'], told['Solarize']['p'])
    monkeypatch.setattr(lightly_byol, 'SCALE', replace(lightly_byol.SCALE, batch=8))
    torch.save(lightly_byol.train(0, batch()['inputs'][0], 2), tmp_path / 'a.ckpt')
    assert facts_of(str(tmp_path / 'a.ckpt'))['steps'] == '4'
    student, teacher = (load_backbone(cfg, read_backbone(tmp_path / 'a.ckpt', part)) for part in ('student', 'teacher'))
    assert 0 < (student.conv1.weight - teacher.conv1.weight).abs().max() < 0.1


@pytest.mark.parametrize('name', list(STUDIES))
def test_every_row_differs_in_its_factors_alone_at_the_scale_of_the_demo(name):
    planned, configs, left_out = at_scale(study(name), read_scale('demo'), ['knn'])
    require_fair(compare(planned, configs))
    assert not left_out


@pytest.mark.parametrize('name', list(STUDIES))
def test_a_planted_gap_is_told_as_that_of_its_two_factors_and_of_no_other(name):
    """Two effects in made scores of the study's own rows, with a spread of half a point: no training."""
    design, draw = study(name).design, np.random.default_rng(0)
    planted = {'rate and momentum buffer': -4.0, 'blur of the second view': 2.5}
    spread = draw.normal(0, 0.5, (len(design.rows), 3))

    def scores(row: str, noise: np.ndarray) -> list[float]:
        levels = dict(zip(design.factors, design.rows[row]))
        return list(60 + sum(size * levels[factor] for factor, size in planted.items()) + noise)

    rows = [recorded(row, scores(row, noise), START) for row, noise in zip(design.rows, spread)]
    plan = dict(factors=design.factors, rows=design.rows, interactions=design.interactions)
    found = attribute(dict(rows=rows, seeds=[0, 1, 2], design=plan), 'knn', 1.0)
    mains = [effect for effect in found['effects'] if effect['asked']]
    assert {effect['name'] for effect in mains if effect['verdict'] == 'differs'} == set(planted)
    for share in found['shares']:
        assert share['low'] <= planted.get(share['factor'], 0.0) <= share['high'], share
    assert not [effect for effect in found['effects'] if not effect['asked'] and effect['verdict'] == 'differs']
    assert found['gain']['low'] <= sum(planted.values()) <= found['gain']['high']
