"""A short run of every config on Shapes at toy size: a finite loss, weights that move, a teacher that follows, a checkpoint."""

import math
import os
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmairl.data.views import build_views
from mmairl.engine import launch
from mmairl.weights.read import load_checkpoint

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / 'configs'
# The schedules, augmentations and sizes below are what toy size replaces; one config of each kind is enough for the run.
TESTED_ELSEWHERE = ('evaluation', 'transfer')
SAME_AT_TOY_SIZE = ('longer', 'augmentation', 'data_variation')
PRETRAINING = sorted(
    path
    for path in [*CONFIGS.rglob('*.py'), *ROOT.glob('projects/*/configs/*.py')]
    if not {'_base_', *TESTED_ELSEWHERE} & set(path.parts) and launch.load_config(str(path)).model.type == 'Siamese'
)


def short(path: Path) -> str:
    return os.path.relpath(path, CONFIGS)


def on_shapes(cfg: Config) -> Config:
    """Two steps' worth of drawn images in place of the toy config's noise, in as many views."""
    views = cfg.train_dataloader.dataset.views
    crop = [dict(type='RandomResizedCrop', size=32), dict(type='RandomFlip')]
    cfg.train_dataloader.dataset = dict(type='Shapes', split='train', count=32, size=48, views=[crop] * views)
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return cfg


# One config for each network that differs at toy size; `make test-all` takes all of them.
DISTINCT = (
    'mocov1_r50_200e.py',
    'mocov2_r50_200e.py',
    'mocov2_syncbn_r50_200e.py',
    'smocov2plus_r50_200e.py',
    'byol_lars_r50_200e.py',
    'fast/mocov2plus_r50_200e_cpu.py',
    'large/mocov2plus_vit_l16_300e.py',
    '../projects/byol_variants/configs/simclr_r50_300e.py',
    '../projects/byol_variants/configs/predictor_beta0_r50_300e.py',
    '../projects/msbreg/configs/msbreg_k4_ln_r18_stl10_320e.py',
    '../projects/more_methods/configs/simsiam_r50_100e.py',
    '../projects/more_methods/configs/vicreg_r50_1000e.py',
    '../projects/more_methods/configs/dino_r50_300e.py',
)


def marked(path: Path) -> object:
    return pytest.param(path, id=short(path), marks=[] if short(path) in DISTINCT else pytest.mark.slow)


def test_the_distinct_networks_are_configs():
    assert set(DISTINCT) <= {short(path) for path in PRETRAINING}


@pytest.mark.parametrize('path', [marked(p) for p in PRETRAINING if p.parent.name not in SAME_AT_TOY_SIZE])
def test_it_trains_and_its_checkpoint_loads(toy_config, path):
    cfg = on_shapes(toy_config(short(path), steps=2, batch=16, width=16))
    runner = launch.train(cfg)
    assert math.isfinite(runner.message_hub.get_scalar('train/loss').current())
    first = load_checkpoint(f'{runner.work_dir}/iter_1.pth')['state_dict']
    model, momentum = runner.model, cfg.default_hooks.momentum
    stem = next(
        name for name, _ in model.named_parameters() if name.startswith('backbone.') and name.endswith('weight')
    )
    assert not torch.equal(model.state_dict()[stem], first[stem])
    if model.teacher is not None:
        names = [name for name, _ in model.teacher.named_parameters()]
        moved = any(not torch.equal(model.teacher.get_parameter(n), first[f'teacher.{n}']) for n in names)
        # an ascending teacher's last momentum is 1, and so is a fixed one's
        assert moved != (momentum.schedule == 'cosine' or momentum.base == 1)
    resumed = on_shapes(toy_config(short(path), steps=2, batch=16, width=16, resume=True))
    assert launch.train(resumed).iter == 2


@pytest.mark.parametrize('path', PRETRAINING, ids=short)
def test_its_views_are_made(path):
    dataset = Config.fromfile(path).train_dataloader.dataset
    while 'dataset' in dataset:  # a sample of classes, say, around the data set that makes the views
        dataset = dataset.dataset
    if dataset.get('views') is None:
        pytest.skip('its views are made on the device')
    image = torch.randint(0, 256, (3, 300, 260), dtype=torch.uint8)
    for pipeline in build_views(dataset.views):
        view = image
        for step in pipeline:
            view = step(view)
        assert view.shape == (3, 224, 224) and view.dtype == torch.uint8 and not torch.equal(view, image[:, :224, :224])


def test_the_supervised_baseline_trains(toy_config):
    runner = launch.train(toy_config('supervised/supervised_r50_100e.py', steps=3, width=16))
    losses, _ = runner.message_hub.get_scalar('train/loss').data
    assert len(losses) == 3 and all(math.isfinite(loss) for loss in losses)
    keys = runner.model.state_dict().keys()
    assert 'backbone.conv1.weight' in keys and not any(key.startswith('teacher') for key in keys)
