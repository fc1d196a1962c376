"""Every config trains at toy size: the loss is finite, weights and teacher move, and the checkpoint loads."""

import math
import os
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmairl.checkpoints.load import load_checkpoint
from mmairl.config import load_config
from mmairl.data.datasets import build_views
from mmairl.engine import run

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / 'configs'
TESTED_ELSEWHERE = ('evaluation', 'transfer', 'supervised')
# These configs differ from others mainly in schedule, augmentation or size. Toy configs replace
# these settings, so training these configs would show nothing new.
SAME_AT_TOY_SIZE = ('longer', 'augmentation', 'data_variation')
# Tests of these configs are not marked as slow, because test_five_steps and test_processes train no
# similar config.
DISTINCT = (
    'large/mocov2plus_vit_l16_300e.py',
    'methods/dino_vit_s16_300e.py',
)


def short(path: Path) -> str:
    return os.path.relpath(path, CONFIGS)


PRETRAINING = [
    path
    for path in sorted([*CONFIGS.rglob('*.py'), *ROOT.glob('projects/*/configs/*.py')])
    if not {'_base_', *TESTED_ELSEWHERE} & set(path.parts)
]
# tests/test_any_model.py trains the models of mmpretrain.
TRAINED = [
    pytest.param(path, id=short(path), marks=[] if short(path) in DISTINCT else pytest.mark.slow)
    for path in PRETRAINING
    if path.parent.name not in (*SAME_AT_TOY_SIZE, 'masked')
]


@pytest.mark.parametrize('path', TRAINED)
def test_config_trains_and_its_checkpoint_loads(toy_config, path):
    def on_shapes(**options) -> Config:
        """Return a toy config of two steps, with synthetic images instead of noise."""
        cfg = toy_config(short(path), steps=2, batch=16, width=16, **options)
        cfg.pop('strategy', None)  # Tests in engine/sharding cover strategies
        crop = [dict(type='RandomResizedCrop', size=32), dict(type='RandomFlip')]
        views = [crop] * cfg.train_dataloader.dataset.views
        cfg.train_dataloader.dataset = dict(
            type='Shapes', split='train', count=32, size=48, views=views
        )
        cfg.model.data_preprocessor = dict(
            type='ViewPreprocessor', mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)
        )
        return cfg

    runner = run.train(cfg := on_shapes())
    assert math.isfinite(runner.message_hub.get_scalar('train/loss').current())
    first = load_checkpoint(f'{runner.work_dir}/iter_1.pth')['state_dict']
    moved = {name for name, p in runner.model.named_parameters() if not torch.equal(p, first[name])}
    assert any(name.startswith('backbone.') for name in moved)
    if runner.model.teacher is not None:
        momentum = cfg.default_hooks.momentum
        follows = any(name.startswith('teacher.') for name in moved)
        # The teacher does not move in the last step if the momentum is then 1: a constant of 1, or a
        # rising momentum whose steps are counted from 1.
        reaches_one = momentum.schedule == 'cosine' and momentum.get('first_step', 1) == 1
        assert follows != (reaches_one or momentum.base == 1)
    assert run.train(on_shapes(resume=True)).iter == 2


WITH_VIEWS = [*PRETRAINING, *CONFIGS.glob('supervised/*.py')]
AT_THE_TOP = [path for path in WITH_VIEWS if path.parent == CONFIGS]
BELOW = [path for path in WITH_VIEWS if path.parent != CONFIGS]


@pytest.mark.parametrize(
    'paths', [AT_THE_TOP, pytest.param(BELOW, marks=pytest.mark.slow)], ids=['top', 'below']
)
def test_schedules_end_with_the_run_and_views_build(paths):
    image = torch.randint(0, 256, (3, 300, 260), dtype=torch.uint8)
    seen_views = []
    for path in paths:
        cfg = load_config(str(path))
        assert cfg.default_scope == 'mmairl'
        of_the_paper = path.is_relative_to(CONFIGS) and not {'methods', 'byol_variants'} & {
            *path.parts
        }
        if of_the_paper and cfg.get('param_scheduler'):
            warm_up = cfg.param_scheduler[0]
            cosine = cfg.param_scheduler[-1]
            assert warm_up.get('end') == cosine.begin, (
                f'{path}: the cosine does not begin where the warm-up ends'
            )
            length = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.get('max_iters')
            assert cosine.get('end', length) == length, (
                f'{path}: the cosine does not end with the run'
            )
        dataset = cfg.train_dataloader.dataset
        # The data set with the views may be wrapped, for example in a sample of classes.
        while 'dataset' in dataset:
            dataset = dataset.dataset
        if dataset.get('views') is None or dataset.views in seen_views:
            # Nothing is left to test: the device creates the views, or an earlier config has the same views.
            continue
        seen_views.append(dataset.views)
        for steps, pipeline in zip(dataset.views, build_views(dataset.views)):
            view = image
            size = steps[0]['size']
            for step in pipeline:
                view = step(view)
            assert view.shape == (3, size, size) and view.dtype == torch.uint8, path
            assert size == 224 or {'methods', 'masked'} & {*path.parts}, path
            assert not torch.equal(view, image[:, :size, :size]), path
