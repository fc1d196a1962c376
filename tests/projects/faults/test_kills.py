"""A killed run is resumed as if nobody had killed it; the long form is python -m projects.faults kills."""

import random
import subprocess
from pathlib import Path

import pytest
import resuming
import torch

from mmairl.hooks.checkpoint import ExactCheckpointHook
from projects.faults import kills, small_run
from projects.faults.compare import different_runs, differing
from projects.faults.kills import FAULTS, killed_runs


@pytest.mark.slow
def test_a_run_killed_during_a_save_and_between_saves_ends_as_the_undisturbed_run(tmp_path):
    done = []
    found = killed_runs(2, 0, tmp_path, done.append)
    assert done == [1, 2]
    assert {name: found[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert found['kills'] == 2 and found['during a save'] >= 1 and found['before a new step'] == 0
    assert found['checkpoints read back'] >= 1


@pytest.mark.parametrize('command,counted', [('exit 1', 'starts that failed'), ('exit 0', 'runs that ended first')])
def test_a_run_that_ends_before_it_is_killed_is_counted_as_a_fault(tmp_path, monkeypatch, command, counted):
    victim = kills.Victim(tmp_path / 'none.py', tmp_path / 'killed')
    monkeypatch.setattr(small_run, 'start', lambda *_: subprocess.Popen(['sh', '-c', command], start_new_session=True))
    victim.kill_at('step', random.Random(0))
    assert victim.found == {counted: 1}


def test_a_half_written_checkpoint_under_its_final_name_is_counted(tmp_path, monkeypatch):
    victim = kills.Victim(tmp_path / 'none.py', tmp_path / 'killed')
    victim.work_dir.mkdir()
    half = victim.work_dir / 'iter_3.pth'
    torch.save(dict(weight=torch.zeros(1000)), half)
    half.write_bytes(half.read_bytes()[:-1000])
    monkeypatch.setattr(small_run, 'start', lambda *_: subprocess.Popen(['sleep', '60'], start_new_session=True))
    victim.start_takes = 0.01
    victim.kill_at('start', random.Random(0))
    expected = {'kills': 1, 'before a new step': 1, 'checkpoints read back': 1, 'damaged checkpoints': 1}
    assert victim.found == expected


def test_what_a_killed_process_was_writing_or_about_to_remove_is_gone_after_the_next_start(tmp_path, monkeypatch):
    """Killed with the third checkpoint written and the first, of which two are kept, still there."""
    write, run = ExactCheckpointHook._write, tmp_path / 'run'

    def without_removing(hook: ExactCheckpointHook, checkpoint: dict, path: Path, outdated: list[str]) -> None:
        write(hook, checkpoint, path, [])

    monkeypatch.setattr(ExactCheckpointHook, '_write', without_removing)
    cfg = resuming.config('views_of_the_batch', str(run), leave_at=7)
    cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=2)
    resuming.run(cfg)
    monkeypatch.undo()
    left = [run / name for name in ('.iter_6.pth.4242.tmp', '.last_checkpoint.4242.tmp', 'iter_2.pth')]
    for path in left[:2]:
        path.write_text('half')
    assert all(path.exists() for path in left)
    cfg = resuming.config('views_of_the_batch', str(run), resume=True, leave_at=7)
    cfg.default_hooks.checkpoint.update(interval=2, max_keep_ckpts=2)
    resuming.run(cfg)
    assert not any(path.exists() for path in left)
    assert sorted(path.name for path in run.glob('*.pth')) == ['iter_4.pth', 'iter_6.pth']


@pytest.mark.parametrize(
    'one,other',
    [
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), torch.ones(1, 2)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
        (1, 1.0),
        (0.1, 0.1 + 2**-56),
        (dict(a=1), dict(b=1)),
        ([1], [1, 1]),
        (None, torch.ones(1)),
    ],
)
def test_values_that_differ_in_a_bit_a_type_or_a_shape_are_found(one, other):
    assert differing(dict(part=[one]), dict(part=[other]), 'all') == ['all.part.0']
    assert differing(dict(part=[one]), dict(part=[one]), 'all') == []


def test_two_different_steps_are_not_the_same_run(tmp_path):
    resuming.run(resuming.config('views_of_the_batch', str(tmp_path), leave_at=9))
    found = different_runs(tmp_path / 'iter_4.pth', tmp_path / 'iter_8.pth')
    assert {'meta.iter', 'state_dict.backbone.conv1.weight', 'random_states.0.torch', 'train/loss'} <= set(found)
    assert any(name.startswith('optimizer.state') for name in found)
    assert any(name.startswith('online_probe') for name in found)
    assert different_runs(tmp_path / 'iter_8.pth', tmp_path / 'iter_8.pth') == []
