"""tools/train.py as a user types it; tests/test_multi_node.py starts it by its scripts."""

import pytest
from mmengine.config import Config

from mmairl.cli import train


@pytest.fixture
def applied(toy_config):
    def run(*words: object) -> Config:
        """A toy config after what these words behind tools/train.py do to it."""
        cfg = toy_config(width=8)
        cfg.work_dir = None
        train.apply(train.parse(['configs/mocov2plus_r50_200e.py', *map(str, words)]), cfg)
        return cfg

    return run


def test_a_file_to_go_on_from_is_where_the_first_start_begins_and_no_later_one(applied, monkeypatch):
    assert applied('--resume', 'a.pth').resume is True
    monkeypatch.setenv('MMAIRL_STARTED_AGAIN', '1')
    cfg = applied('--resume', 'a.pth')
    assert (cfg.resume, cfg.load_from) == ('again', 'a.pth') and applied().resume == 'auto'


def test_flags_become_config(applied):
    cfg = applied('--amp', '--auto-scale-lr', '--seed', 5, '--resume')
    assert cfg.work_dir == 'work_dirs/mocov2plus_r50_200e'
    assert cfg.optim_wrapper.type == 'AutocastOptimWrapper' and cfg.optim_wrapper.dtype in ('bfloat16', 'float16')
    assert cfg.auto_scale_lr.enable and cfg.randomness.seed == 5 and cfg.resume and cfg.load_from is None
    assert applied('--resume', 'a.pth').load_from == 'a.pth'
