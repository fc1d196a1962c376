"""`mmairl train` as a user types it. tests/test_multi_node.py starts it through the shell scripts."""

import shlex

import pytest
from mmengine.config import Config

from mmairl.cli import train
from mmairl.engine.run import train as run_training


@pytest.fixture
def applied(toy_config):
    def run(*words: object) -> Config:
        """Return a toy config after these command-line flags have been applied to it."""
        cfg = toy_config(width=8)
        cfg.work_dir = None
        train.apply(train.parse(['configs/mocov2plus_r50_200e.py', *map(str, words)]), cfg)
        return cfg

    return run


def test_restarted_command_resumes_its_own_run(applied, monkeypatch):
    assert applied('--resume', 'a.pth').resume is True
    monkeypatch.setenv('MMAIRL_STARTED_AGAIN', '1')
    cfg = applied('--resume', 'a.pth')
    assert (cfg.resume, cfg.load_from) == ('again', 'a.pth') and applied().resume == 'auto'


def test_flags_become_config_keys(applied):
    cfg = applied('--amp', '--auto-scale-lr', '--seed', 5, '--resume')
    assert cfg.work_dir == 'work_dirs/mocov2plus_r50_200e'
    assert cfg.optim_wrapper.type == 'AutocastOptimWrapper' and cfg.optim_wrapper.dtype in ('bfloat16', 'float16')
    assert cfg.auto_scale_lr.enable and cfg.randomness.seed == 5 and cfg.resume and cfg.load_from is None
    assert applied('--resume', 'a.pth').load_from == 'a.pth'


def test_run_ends_with_loss_checkpoint_and_commands(toy_config, tmp_path):
    runner = run_training(toy_config(steps=2, width=8, work_dir=str(tmp_path / 'my run')))
    loss, checkpoint, evaluate, health = train.result_lines(runner, 'a.py').splitlines()
    path = str(tmp_path / 'my run/iter_2.pth')
    assert loss.startswith('final loss ') and loss.endswith(' after 2 steps')
    assert checkpoint == f'checkpoint {path}'
    assert shlex.split(evaluate)[1:] == ['mmairl', 'evaluate', 'knn', 'a.py', path]
    assert shlex.split(health)[1:] == ['mmairl', 'report', 'health', str(tmp_path / 'my run')]
