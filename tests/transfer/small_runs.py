"""What the tests of detection and segmentation configs share: small runs, and checkpoints for them to start from."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
import toy
from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn

from mmairl.configs import load_config
from mmairl.engine import launch
from mmairl.registry import MODELS
from mmairl.transfer.pretrained import start_from

RUNS = count()


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Path]]:
    """A pre-training checkpoint of a network of this depth, as it was made."""
    folder = tmp_path_factory.mktemp('pretrained')

    def checkpoint(depth: int) -> Path:
        path = folder / f'r{depth}.pth'
        if not path.is_file():
            launch.register()
            options = {'model.backbone.depth': depth, 'model.projector.in_channels': 512 if depth == 18 else 2048}
            model = MODELS.build(toy.config('mocov2plus_r50_200e.py', str(folder), **options).model)
            student = {key: value for key, value in model.state_dict().items() if key.startswith('backbone.')}
            torch.save(dict(meta={}, state_dict=student), path)
        return path

    yield checkpoint
    for path in folder.rglob('*.pth'):
        path.unlink()


def small_run(name: str, checkpoint: Path, work_dir: Path, batches: int, steps: int = 2) -> Config:
    """The config with few steps on one process of a CPU; nothing is saved."""
    cfg = start_from(load_config(str(toy.CONFIGS / 'transfer' / f'{name}.py')), str(checkpoint))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.train_cfg.update(max_iters=steps, val_interval=steps)
    cfg.custom_hooks[1].batches = batches
    cfg.default_hooks.checkpoint = None
    cfg.work_dir, cfg.experiment_name, cfg.randomness = str(work_dir), f'transfer{next(RUNS)}', dict(seed=5)
    return cfg


def check_backbone(runner: Runner, checkpoint: Path, metrics: dict[str, float]) -> None:
    """All of the backbone moved from where the checkpoint put it, every norm is ours, and the metrics are in their range."""
    scalars = runner.message_hub.log_scalars
    for metric, most in metrics.items():
        assert 0 <= scalars[f'val/{metric}'].current() <= most, metric
    before = torch.load(checkpoint, weights_only=True)['state_dict']
    for name, parameter in runner.model.backbone.named_parameters():
        start = before[f'backbone.{name}']
        assert not torch.equal(parameter.detach(), start), f'{name} is frozen'
        assert (parameter - start).norm() < 2 * start.norm() + 1, name
    norms = [m for m in runner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms and all(type(norm).__name__ == 'SyncBN' for norm in norms)


def depth_of(name: str) -> int:
    return int(name.split('_r')[-1].split('_')[0])
