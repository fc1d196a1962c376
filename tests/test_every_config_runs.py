"""A short run of every config at toy size: the loss is finite, the weights move, the teacher follows, the checkpoint loads."""

import math
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmairl.data.views import build_views
from mmairl.engine import launch

CONFIGS = Path(__file__).parent.parent / 'configs'
# The schedules, augmentations and sizes below are what toy size replaces; one config of each kind is enough for the run.
SAME_AT_TOY_SIZE = ('longer', 'augmentation')
PRETRAINING = sorted(
    path
    for path in CONFIGS.rglob('*.py')
    if '_base_' not in path.parts and Config.fromfile(path).model.type == 'Siamese' and 'vit' not in path.parts
)


def short(path: Path) -> str:
    return path.relative_to(CONFIGS).as_posix()


@pytest.mark.parametrize('path', [p for p in PRETRAINING if p.parent.name not in SAME_AT_TOY_SIZE], ids=short)
def test_it_trains_and_its_checkpoint_loads(toy_config, path):
    cfg = toy_config(short(path), steps=2, batch=16)
    runner = launch.train(cfg)
    assert math.isfinite(runner.message_hub.get_scalar('train/loss').current())
    model, teacher = runner.model, runner.model.teacher
    first = torch.load(f'{runner.work_dir}/iter_1.pth', weights_only=True)['state_dict']
    last = model.state_dict()
    assert not torch.equal(last['backbone.conv1.weight'], first['backbone.conv1.weight']), 'the weights moved'
    moved = [not torch.equal(teacher.get_parameter(n), first[f'teacher.{n}']) for n, _ in teacher.named_parameters()]
    at_rest = cfg.default_hooks.momentum.schedule == 'cosine'  # the last momentum of an ascending teacher is 1
    assert any(moved) != at_rest
    resumed = toy_config(short(path), steps=2, batch=16, resume=True)
    assert launch.train(resumed).iter == 2


@pytest.mark.parametrize('path', PRETRAINING, ids=short)
def test_its_views_are_made(path):
    dataset = Config.fromfile(path).train_dataloader.dataset
    if dataset.get('views') is None:
        pytest.skip('its views are made on the device')
    image = torch.randint(0, 256, (3, 300, 260), dtype=torch.uint8)
    for pipeline in build_views(dataset.views):
        view = image
        for step in pipeline:
            view = step(view)
        assert view.shape == (3, 224, 224) and view.dtype == torch.uint8 and not torch.equal(view, image[:, :224, :224])
