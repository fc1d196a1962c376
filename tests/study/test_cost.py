"""Planning a study is fast: counts of FLOPs and bytes are stored in the cache folder, and few packages are imported."""

import subprocess
import sys

import pytest
from mmengine.config import Config

from mmairl.engine.run import register
from mmairl.study import cost as module
from mmairl.study.cost import checkpoint_bytes, work_per_image
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row


@pytest.fixture
def cfg(tmp_path, monkeypatch) -> Config:
    """Return a config at the demo scale. The cache of counts is empty."""
    register()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(module, 'COUNTS', {})
    return resolve(Row('', 'mocov2_r50_200e.py'), read_scale('demo'))


def forget_process(monkeypatch) -> None:
    """Clear the counts in memory, as in a new process, and fail the test if anything is counted again."""
    monkeypatch.setattr(module, 'COUNTS', {})
    for name in ('_count_work', '_count_bytes'):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail('the work or the bytes were counted again'))


def test_second_process_reads_counts(cfg, monkeypatch):
    first = work_per_image(cfg), checkpoint_bytes(cfg)
    forget_process(monkeypatch)
    assert (work_per_image(cfg), checkpoint_bytes(cfg)) == first


def test_network_that_cannot_be_counted_is_remembered(cfg, monkeypatch):
    monkeypatch.setattr(module, '_count_work', lambda *_: None)
    assert work_per_image(cfg) is None
    forget_process(monkeypatch)
    assert work_per_image(cfg) is None


def test_other_model_batch_or_code_is_counted_again(cfg, monkeypatch):
    monkeypatch.setattr(module, '_count_work', lambda *_: dict(flops=1, bytes=1))
    work_per_image(cfg)
    changed = [cfg.copy() for _ in range(2)]
    changed[0].model.projector.out_channels = 32
    changed[1].total_batch_size = 64
    counted = []
    monkeypatch.setattr(module, '_count_work', lambda *_: counted.append(1) or dict(flops=1, bytes=1))
    for other in changed:
        work_per_image(other)
    monkeypatch.setattr(module, 'counting_code', lambda: 'another version')
    work_per_image(cfg)
    assert len(counted) == 3


def test_damaged_count_is_counted_again(cfg, tmp_path, monkeypatch):
    expected = checkpoint_bytes(cfg)
    for path in tmp_path.glob('mmairl/plans/*.json'):
        path.write_text('{')
    monkeypatch.setattr(module, 'COUNTS', {})
    assert checkpoint_bytes(cfg) == expected


@pytest.mark.parametrize(
    'hook, expected',
    [
        (dict(interval=2, max_keep_ckpts=3), 3),
        (dict(interval=2, max_keep_ckpts=-1), 6),
        (dict(interval=5), 3),
        (dict(max_keep_ckpts=-1), 1),
    ],
)
def test_plan_counts_all_kept_checkpoints(cfg, hook, expected):
    assert cfg.train_cfg.max_epochs == 12
    cfg.default_hooks.checkpoint = hook
    assert module.kept_checkpoints(cfg) == expected


def test_plan_imports_neither_pages_nor_scipy():
    command = [sys.executable, '-W', 'ignore', '-c', 'import sys, mmairl.study.commands; print(*sys.modules)']
    names = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout.split()
    heavy = {'scipy.stats', 'sklearn', 'pandas', 'mmairl.study.pages.study_page', 'mmairl.study.run_study'}
    assert 'mmairl.study.planner' in names and not heavy & set(names)
