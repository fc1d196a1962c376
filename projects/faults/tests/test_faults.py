"""Test short runs of `python -m projects.faults`, and that its counts rise if a reader of files is faulty."""

import itertools
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from harness import resume as resuming

from mmairl.checkpoints import load
from mmairl.data.decode import Reason
from mmairl.engine.hooks import progress
from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.io import replacing
from projects.faults import checkpoints, disk, images, kills, long_run
from projects.faults.compare import different_runs, differing
from projects.faults.disk import TmpFs

as_root = pytest.mark.skipif(os.geteuid() != 0, reason='only root can mount a file system')


def test_damaged_checkpoint_never_loads_or_runs_code(tmp_path):
    counts = checkpoints.fuzz_checkpoints(100, 0, tmp_path)
    assert counts['failed'] == 0 and counts['refused'] + counts['equal'] == 100


def test_a_careless_reader_of_checkpoints_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(load, 'damage', lambda path: None)
    assert checkpoints.fuzz_checkpoints(100, 0, tmp_path / 'no sums')['failed'] > 10
    monkeypatch.undo()
    careless = torch.load
    monkeypatch.setattr(
        torch, 'load', lambda path, **how: careless(path, **{**how, 'weights_only': False})
    )
    monkeypatch.setattr(load, 'plain', lambda value: value)
    assert (
        checkpoints.fuzz_checkpoints(100, 0, tmp_path / 'pickles')['hostile pickle: failed'] == 10
    )


def test_any_difference_of_two_runs_is_seen(tmp_path):
    zero = torch.zeros(1)
    rising = [
        zero,
        -zero,
        zero.double(),
        None,
        1,
        1.0,
        1.0 + 2**-52,
        [1],
        [1, 1],
        dict(a=1),
        dict(b=1),
    ]
    for one, other in itertools.pairwise(rising):
        assert differing(dict(part=[one]), dict(part=[other]), 'all') == ['all.part.0']
        assert differing(dict(part=[one]), dict(part=[one]), 'all') == []
    resuming.run(resuming.config('views_of_the_batch', str(tmp_path), leave_at=9))
    differences = different_runs(tmp_path / 'iter_4.pth', tmp_path / 'iter_8.pth')
    assert {
        'meta.iter',
        'state_dict.backbone.conv1.weight',
        'random_states.0.torch',
        'train/loss',
    } <= set(differences)
    assert {'optimizer', 'online_probe'} <= {name.split('.')[0] for name in differences}
    assert different_runs(tmp_path / 'iter_8.pth', tmp_path / 'iter_8.pth') == []


@as_root
@pytest.mark.slow
def test_run_on_a_full_disk_resumes_later(tmp_path):
    counts = disk.full_disks(1, 0, tmp_path)
    assert {name: counts[name] for name in disk.FAULTS} == dict.fromkeys(disk.FAULTS, 0)
    assert counts['full disks'] == counts['went on'] == 1


@as_root
def test_full_disk_leaves_no_file(tmp_path):
    """If the disk is full, torch.save raises a RuntimeError with the OSError as `__context__`. `replacing` must look there."""
    with TmpFs(tmp_path / 'disk') as full:
        full.fill(disk.SIZE // 8)
        path, too_much = full.folder / 'a.pth', dict(weight=torch.zeros(disk.SIZE // 16))
        with (
            pytest.raises(UserError, match='a.pth: the disk is full'),
            replacing(path) as partial_file,
            partial_file.open('wb') as file,
        ):
            torch.save(too_much, file)
        assert list(full.folder.iterdir()) == [full.filler]


def test_no_broken_image_harms_the_run(tmp_path):
    counts = images.fuzz_images(150, seed=0, folder=tmp_path)
    assert [counts[kind] for kind in ('escaped', 'misread', 'warnings', 'crashes', 'hangs')] == [
        0
    ] * 5
    unreadable = sum(counts.get(reason.phrase, 0) for reason in Reason)
    assert counts['read'] + unreadable == 150 and counts['read'] > 30 and unreadable > 50
    # Without `max_pixels` of FileDataset, one of the broken headers makes the reader request gigabytes.
    assert counts['memory_mib'] < 100


def fail() -> None:
    warnings.warn('one', stacklevel=1)
    raise MemoryError


# For each case: a function that is called when the third of ten images is loaded, and the expected counts of escaped
# exceptions, warnings, crashes and hangs.
MISCHIEF = {
    'crash': (lambda: os.kill(os.getpid(), signal.SIGKILL), (0, 0, 1, 0)),
    'hang': (lambda: time.sleep(10**6), (0, 0, 0, 1)),
    'warning': (fail, (1, 1, 0, 0)),
}


@pytest.mark.parametrize('name', MISCHIEF)
def test_hostile_image_is_counted_and_others_are_read(monkeypatch, tmp_path, name):
    act, expected = MISCHIEF[name]
    real = images.FileDataset.raw
    monkeypatch.setattr(images, 'KINDS', [lambda content, draw: content] * 1000)
    monkeypatch.setattr(images, 'PATIENCE', 1.0 if name == 'hang' else 60.0)
    monkeypatch.setattr(
        images.FileDataset, 'raw', lambda data, index: act() if index == 2 else real(data, index)
    )
    counts = images.fuzz_images(10, seed=1, folder=tmp_path)
    assert (
        counts['read'],
        *(counts[kind] for kind in ('escaped', 'warnings', 'crashes', 'hangs')),
    ) == (9, *expected)


@pytest.mark.slow
def test_killed_run_ends_as_the_undisturbed_run(tmp_path):
    counts = kills.killed_runs(2, 0, tmp_path)
    assert {name: counts[name] for name in kills.FAULTS} == dict.fromkeys(kills.FAULTS, 0)
    assert (
        counts['kills'] == 2 and counts['during a save'] >= 1 and counts['before a new step'] == 0
    )
    assert counts['checkpoints read back'] >= 1


def test_next_start_removes_leftovers_of_a_killed_run(tmp_path, monkeypatch):
    """Imitate a kill after iter_6.pth was written and before iter_2.pth was removed (max_keep_ckpts is 2)."""

    def run(**options) -> None:
        cfg = resuming.config('views_of_the_batch', str(tmp_path / 'run'), leave_at=7, **options)
        cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=2)
        resuming.run(cfg)

    monkeypatch.setattr(ExactCheckpointHook, '_outdated', lambda hook: [])
    run()
    monkeypatch.undo()
    leftovers = [
        tmp_path / 'run' / name
        for name in ('.iter_6.pth.4242.tmp', '.last_checkpoint.4242.tmp', 'iter_2.pth')
    ]
    for path in leftovers[:2]:
        path.write_text('half')
    assert all(path.exists() for path in leftovers)
    run(resume=True)
    assert not any(path.exists() for path in leftovers)
    assert sorted(path.name for path in (tmp_path / 'run').glob('*.pth')) == [
        'iter_4.pth',
        'iter_6.pth',
    ]


@pytest.mark.slow
def test_run_leaks_no_memory_files_or_threads(tmp_path, run_processes):
    """Train in a new process, because in pytest's process a leak could reuse memory that earlier tests have freed."""
    run_processes(1, __file__, tmp_path)
    counts = json.loads((tmp_path / 'found.json').read_text())
    assert {name: counts[name] for name in long_run.FAULTS} == dict.fromkeys(long_run.FAULTS, 0)


if __name__ == '__main__':
    # A history of logged values keeps the last 100 of the 600 steps, so it stops growing within the ignored first samples.
    progress.KEPT = 100
    register()
    folder = Path(sys.argv[1])
    (folder / 'found.json').write_text(json.dumps(long_run.long_run(600, 0, folder)))
