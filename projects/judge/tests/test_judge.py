"""Test that the scripts of projects/judge train BYOL with mmairl's settings, and that mmairl reads their checkpoints."""

import importlib
import random
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import yaml
from study.small_runs import toy_scale
from torchvision.transforms.v2.functional import to_pil_image

from mmairl.checkpoints.read import read_backbone
from mmairl.data.preprocess import normalize
from mmairl.evaluation.backbone import load_backbone
from mmairl.study.external import facts_of
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import read_study
from projects.judge.sizes import Sizes

NEEDS = {'elsewhere': (), 'lightly_byol': ('lightly',), 'sololearn_byol': ('solo', 'torchmetrics')}
LIBRARIES = {'lightly_byol': 'explain_lightly', 'sololearn_byol': 'explain_sololearn'}


def script(name: str):
    if missing := [package for package in NEEDS[name] if find_spec(package) is None]:
        pytest.skip(f'{missing[0]} is not installed, so its code cannot train')
    return importlib.import_module(f'projects.judge.{name}')


@pytest.fixture
def scale(tmp_path):
    (tmp_path / 'toy.yaml').write_text(yaml.safe_dump(toy_scale(36)))
    return str(tmp_path / 'toy.yaml')


@pytest.mark.parametrize('name', NEEDS)
def test_networks_of_libraries_train_and_are_read(name, scale, tmp_path, monkeypatch):
    arguments = ['--scale', scale, '--seeds', '0', '1', '--epochs', '2', '--out', str(tmp_path)]
    monkeypatch.setattr(sys, 'argv', [name, *arguments])
    module = script(name)
    module.main(module.train, module.__doc__, 'nowhere')
    cfg, parts = Sizes(scale).cfg, ('student', 'teacher') if name in LIBRARIES else ('student',)
    files = [tmp_path / f'seed_{seed}.ckpt' for seed in (0, 1)]
    facts = facts_of(str(files[0]))
    assert facts['epochs'] == '2' and facts['steps'] == ('4' if name in LIBRARIES else '6')
    weights = [
        [load_backbone(cfg, read_backbone(file, part)).conv1.weight for part in parts]
        for file in files
    ]
    assert not weights[0][0].equal(weights[1][0])
    for networks in weights if name in LIBRARIES else ():
        assert 0 < (networks[0] - networks[1]).abs().max() < 0.1


@pytest.mark.parametrize('name', LIBRARIES)
def test_name_of_a_library_run_states_its_settings(name):
    module, sizes = script(name), Sizes('demo')
    study = read_study(f'configs/studies/{LIBRARIES[name]}.yaml')
    end = next(row for row in study.rows if all(study.design.rows[row.name]))
    cfg = resolve(end, read_scale('demo'))
    ours = cfg.optim_wrapper.optimizer.lr, cfg.default_hooks.momentum.base, cfg.total_batch_size
    assert ours == pytest.approx((module.FASTER * sizes.rate, sizes.tau, sizes.batch))
    for theirs, steps in zip(module.views(sizes), cfg.model.data_preprocessor.views):
        settings = {step['type']: step for step in steps}
        acts = {type(step).__name__: step for step in theirs.transforms}
        assert tuple(acts['RandomResizedCrop'].scale) == tuple(
            settings['RandomResizedCrop']['scale']
        )
        if name == 'lightly_byol':
            chances = acts['GaussianBlur'].prob, acts['RandomSolarization'].prob
        else:
            chances = tuple(
                step.p for step in theirs.transforms if type(step).__name__ == 'RandomApply'
            )[1:]
        assert chances == (settings['GaussianBlur']['p'], settings['Solarize']['p'])
    if name == 'sololearn_byol':
        assert cfg.model.backbone.norm_cfg.replicas == module.PASSES
        assert module.rate(1, 12, 1) == 1 and module.rate(11, 12, 1) == pytest.approx(
            (1 + np.cos(np.pi * 10 / 11)) / 2
        )


@pytest.mark.parametrize('name', LIBRARIES)
def test_batched_views_equal_those_of_the_library(name):
    module, sizes = script(name), Sizes('demo')
    sizes.batch = 4
    images = sizes.images()[:4]

    def seeded() -> None:
        torch.manual_seed(0), np.random.seed(0), random.seed(0)

    seeded()
    views = next(sizes.batches(images, module.views(sizes), 1))
    seeded()
    order, chains = torch.randperm(4), [view.transforms for view in module.views(sizes)]
    for place, row in enumerate(order):
        for side, chain in zip(views, chains):
            image = to_pil_image(images[row])
            for step in chain:
                image = step(image)
            expected = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            torch.testing.assert_close(side[place], normalize(expected, sizes.mean, sizes.std))
