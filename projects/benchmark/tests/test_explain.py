"""Test the studies explain_lightly and explain_sololearn, which attribute differences between two implementations of BYOL.

Each factor of a study has level 0 (mmairl's setting) or level 1 (the setting of the other library), and each row combines
levels of all factors. The row with only level 1 must take the same steps as the code of the other library, in float64.
"""

import copy
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from study.small_runs import START, recorded
from torch import Tensor

from mmairl.config import home, load_config
from mmairl.data.preprocess import normalize
from mmairl.engine.hooks.after_step import MomentumHook
from mmairl.registry import MODELS
from mmairl.study.factors import changed
from mmairl.study.fairness import at_scale, compare_configs, require_fair
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Study, read_study
from mmairl.study.statistics.attribution import attribute
from projects.benchmark.of_lightly import LightlyBYOL, byol_step
from projects.benchmark.step import copy_weights, quiet, training_loop

STUDIES = {'lightly': 'explain_lightly', 'solo': 'explain_sololearn'}
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
# The learning rates rise, because with a constant rate it makes no difference whether the rate is applied inside or outside of
# the momentum buffer. TAU is the momentum of the teacher.
RATES, TAU = (0.1, 0.2, 0.3), 0.9
# For each step: the loss, and the changes of the first and the last weight of the backbone.
Moves = list[dict[str, Tensor]]


@cache
def study(name: str) -> Study:
    return read_study(home() / 'configs' / 'studies' / f'{STUDIES[name]}.yaml')


def end(name: str, level: int) -> str:
    """Return the name of the row in which all factors have this level."""
    return next(row for row, levels in study(name).design.rows.items() if set(levels) == {level})


def config(name: str, level: int) -> Config:
    row = next(row for row in study(name).rows if row.name == end(name, level))
    return resolve(row, read_scale('demo'))


@cache
def batch() -> dict:
    views = torch.randint(
        0, 256, (2, 16, 3, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return dict(inputs=list(views.unbind()), data_samples={})


@quiet()
def network(name: str, level: int) -> tuple[BaseModel, dict]:
    """Return the network and the optimizer config of the row `end(name, level)` at the scale demo.

    The network does not create views, because `batch` returns finished views.
    """
    cfg = config(name, level)
    cfg.model.data_preprocessor.pop('views')
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model.double().train(), cfg.optim_wrapper


@quiet()
def our_moves(name: str, level: int) -> Moves:
    """Return the loss and the weight changes of each step of mmairl's code with the config of the row `end(name, level)`."""
    model, optimizer = network(name, level)
    wrapper = build_optim_wrapper(model, optimizer)
    step = training_loop(model, wrapper, batch(), [MomentumHook(TAU)])
    return list(walk(step, wrapper.optimizer.param_groups))


def walk(step: Callable, groups: list[dict]) -> Iterator[dict[str, Tensor]]:
    """Take a step with each learning rate of RATES, and yield its loss and weight changes."""
    for rate in RATES:
        for group in groups:
            group['lr'] = rate
        yield step()


def moves_of_lightly() -> Moves:
    pytest.importorskip(
        'lightly', reason='lightly is not installed, so its steps cannot be compared'
    )
    ours, optimizer = network('lightly', 1)
    theirs = LightlyBYOL(copy.deepcopy(ours.backbone), 128, 256, 64).double().train()
    copy_weights(ours, theirs)
    settings = {key: optimizer.optimizer[key] for key in ('lr', 'momentum', 'weight_decay')}
    step = byol_step(theirs, batch(), (MEAN, STD), settings, momentum=TAU, rates=iter(RATES))
    return [step() for _ in RATES]


def moves_of_solo_learn() -> Moves:
    """Return the loss and the weight changes of each step of solo-learn's code.

    solo-learn's code accumulates gradients over four parts of the batch, so batch norm normalizes a quarter of the batch.
    """
    try:
        from projects.judge import sololearn_byol
    except ModuleNotFoundError as error:
        pytest.skip(f'the steps of solo-learn cannot be compared: {error}')

    ours, optimizer = network('solo', 1)
    for norm in [module for module in ours.backbone.modules() if hasattr(module, 'replicas')]:
        # mmairl's SplitBN would normalize quarters of each of the four parts. With one replica, it is plain batch norm.
        norm.replicas = 1
    theirs = sololearn_byol.SoloBYOL(copy.deepcopy(ours.backbone), 128, 256, 64).double().train()
    for online, own in ((theirs.projector, ours.projector), (theirs.predictor, ours.predictor)):
        for place in (0, 3):
            online[place].load_state_dict(own.mlp[place].state_dict())
    theirs.momentum_projector.load_state_dict(theirs.projector.state_dict())
    wrapper, teacher = (
        theirs.optimizer(optimizer.optimizer.lr),
        sololearn_byol.TEACHER.MomentumUpdater(TAU),
    )
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (MEAN, STD))
    views = [normalize(view, mean, std).double() for view in batch()['inputs']]
    weights = dict(first=theirs.encoder.conv1.weight, last=list(theirs.encoder.parameters())[-1])

    def step() -> dict[str, Tensor]:
        previous = {name: weight.detach().clone() for name, weight in weights.items()}
        loss = theirs.step(views, wrapper, teacher)
        return dict(
            loss=loss,
            **{name: weight.detach() - previous[name] for name, weight in weights.items()},
        )

    return list(walk(step, wrapper.param_groups))


def apart(ours: Moves, theirs: Moves) -> float:
    """Return the largest relative difference between the weight changes of mmairl and of the library."""
    pairs = [
        (one[name], other[name]) for one, other in zip(ours, theirs) for name in ('first', 'last')
    ]
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


@pytest.mark.parametrize(
    'name, theirs, constant', [('lightly', moves_of_lightly, 4), ('solo', moves_of_solo_learn, 0)]
)
def test_library_row_takes_steps_of_the_librarys_code(name, theirs, constant):
    moves, ours = theirs(), our_moves(name, 1)
    assert apart(ours, moves) < 1e-5
    for one, other in zip(ours, moves):
        torch.testing.assert_close(
            one['loss'].double(), other['loss'].double() + constant, rtol=1e-6, atol=0
        )
    assert apart(our_moves(name, 0), moves) > 0.1


@pytest.mark.parametrize('name', list(STUDIES))
def test_first_and_last_rows_are_ours_and_the_librarys(name):
    options = {row.name: row.options for row in study(name).rows}
    ours, theirs = (
        load_config('mmairl::byol_lars_r50_200e.py', options[end(name, level)]) for level in (0, 1)
    )
    plain, pair = (
        load_config(f'mmairl::{config}')
        for config in ('byol_lars_r50_200e.py', 'byol_asymmetric_r50_200e.py')
    )
    assert changed(ours, plain) == [] and 'train_dataloader.dataset.views' not in changed(
        theirs, pair
    )
    assert (
        'train_dataloader.dataset.views' in changed(ours, pair)
        and study(name).design.resolution == 4
    )


@pytest.mark.parametrize('name', list(STUDIES))
def test_rows_differ_in_their_factors_only(name):
    planned, configs, left_out = at_scale(study(name), read_scale('demo'), ['knn'])
    require_fair(compare_configs(planned, configs))
    assert left_out == [
        "the factor 'precision' is left out: at the scale demo, its levels are the same"
    ]
    design = planned.design
    assert design.factors == tuple(
        factor for factor in study(name).design.factors if factor != 'precision'
    )
    # In exactly two rows, all factors have the same level.
    assert (
        design.resolution == 4
        and [len(set(levels)) for levels in design.rows.values()].count(1) == 2
    )
    assert len(planned.rows) - 2 == 16 and not any('float' in row.name for row in planned.rows)


@pytest.mark.parametrize('name', list(STUDIES))
def test_planted_gap_is_attributed_to_its_factors(name):
    """The scores are invented: two factors change them by -4 and 2.5 points, and noise has a standard deviation of 0.5."""
    design, draw = study(name).design, np.random.default_rng(0)
    planted = {'rate and momentum buffer': -4.0, 'blur of the second view': 2.5}
    spread = draw.normal(0, 0.5, (len(design.rows), 3))

    def scores(row: str, noise: np.ndarray) -> list[float]:
        levels = dict(zip(design.factors, design.rows[row]))
        return list(60 + sum(size * levels[factor] for factor, size in planted.items()) + noise)

    rows = [recorded(row, scores(row, noise), START) for row, noise in zip(design.rows, spread)]
    plan = dict(factors=design.factors, rows=design.rows, interactions=design.interactions)
    attribution = attribute(dict(rows=rows, seeds=[0, 1, 2], design=plan), 'knn', 1.0)
    mains = [effect for effect in attribution['effects'] if effect['asked']]
    assert {effect['name'] for effect in mains if effect['verdict'] in ('higher', 'lower')} == set(
        planted
    )
    for share in attribution['shares']:
        assert share['low'] <= planted.get(share['factor'], 0.0) <= share['high'], share
    assert not [
        effect
        for effect in attribution['effects']
        if not effect['asked'] and effect['verdict'] in ('higher', 'lower')
    ]
    assert attribution['gain']['low'] <= sum(planted.values()) <= attribution['gain']['high']
