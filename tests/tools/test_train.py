"""tools/train.py and tools/dist_train.sh as a user types them."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmairl.engine import launch

ROOT = Path(__file__).parents[2]
SMALL = [
    'train_cfg.max_epochs=1',
    'train_dataloader.dataset.count=64',
    'total_batch_size=32',
    'model.queue.length=64',
    'log_level=INFO',
    'default_hooks.checkpoint.interval=1',
]


def test_the_demo_config_trains_on_two_cpu_processes(tmp_path):
    environment = {**os.environ, 'PYTHON': sys.executable, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    command = ['tools/dist_train.sh', 'configs/demo/mocov2plus_shapes.py', '2', '--work-dir', str(tmp_path)]
    command += ['--cfg-options', *SMALL]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'total batch 32 = 16 images x 2 processes' in done.stdout + done.stderr
    weights = torch.load(tmp_path / 'epoch_1.pth', map_location='cpu', weights_only=False)['state_dict']
    assert any(key.startswith('backbone.') for key in weights) and not any(k.startswith('module.') for k in weights)
    assert list(tmp_path.rglob('events.out.tfevents*')), 'TensorBoard is on by default'


@pytest.fixture
def applied(monkeypatch, toy_config):
    monkeypatch.syspath_prepend(ROOT)
    from tools import train

    def run(*words: object) -> Config:
        """A toy config after what these words behind tools/train.py do to it."""
        monkeypatch.setattr(sys, 'argv', ['train.py', 'configs/mocov2plus_r50_200e.py', *map(str, words)])
        cfg = toy_config(width=8)
        cfg.work_dir = None
        train.apply(train.parse(), cfg)
        return cfg

    return run


def test_flags_become_config(applied):
    cfg = applied('--amp', '--auto-scale-lr', '--seed', 5, '--resume')
    assert cfg.work_dir == 'work_dirs/mocov2plus_r50_200e'
    assert cfg.optim_wrapper.type == 'AutocastOptimWrapper' and cfg.optim_wrapper.dtype in ('bfloat16', 'float16')
    assert cfg.auto_scale_lr.enable and cfg.randomness.seed == 5 and cfg.resume and cfg.load_from is None
    assert applied('--resume', 'a.pth').load_from == 'a.pth'


def test_amp_trains_with_weights_teacher_and_queue_in_float32(applied, tmp_path):
    runner = launch.train(applied('--amp', '--work-dir', tmp_path))
    assert {value.dtype for value in runner.model.state_dict().values()} == {torch.float32, torch.int64}
    assert math.isfinite(runner.message_hub.get_scalar('train/loss').current())
