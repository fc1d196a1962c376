"""Which checkpoint a run goes on from."""

import os
from pathlib import Path

import pytest
import resuming
import torch

from mmairl.engine import launch
from mmairl.engine.newest import newest_checkpoint
from mmairl.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints, written one after the other, and a best one that cannot be resumed from."""
    for place, name in enumerate(['epoch_1.pth', 'epoch_2.pth', 'iter_25.pth', 'best_top1.pth']):
        torch.save(dict(weights=torch.randn(100)), tmp_path / name)
        os.utime(tmp_path / name, (place, place))
    return tmp_path


def flip(path: Path) -> None:
    """One bit of the weights, where torch would not notice."""
    data = bytearray(path.read_bytes())
    data[data.index(b'data/0') + 200] ^= 4
    time = path.stat().st_mtime
    path.write_bytes(data)
    os.utime(path, (time, time))


def test_the_one_written_last_is_taken_or_the_one_that_openmmlabs_note_names(folder):
    assert newest_checkpoint(folder).name == 'iter_25.pth'
    (folder / 'last_checkpoint').write_text('/another/machine/epoch_2.pth')
    assert newest_checkpoint(folder).name == 'epoch_2.pth'
    (folder / 'last_checkpoint').write_text('/gone/epoch_9.pth')
    assert newest_checkpoint(folder).name == 'iter_25.pth'


def test_a_damaged_one_gives_way_to_the_one_before(folder):
    flip(folder / 'iter_25.pth')
    assert newest_checkpoint(folder).name == 'epoch_2.pth'
    (folder / 'epoch_2.pth').write_bytes((folder / 'epoch_2.pth').read_bytes()[:-100])
    assert newest_checkpoint(folder).name == 'epoch_1.pth'
    (folder / 'epoch_1.pth').write_bytes(b'')
    with pytest.raises(UserError, match='none of the 3 checkpoints in .* is whole'):
        newest_checkpoint(folder)


def test_checkpoints_that_go_elsewhere_are_found_from_the_work_dir(tmp_path):
    whole = resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'whole')))
    for resume, leave_at in ((False, 9), (True, None)):
        cfg = resuming.config('views_of_the_batch', str(tmp_path / 'run'), leave_at=leave_at, resume=resume)
        cfg.default_hooks.checkpoint.out_dir = str(tmp_path / 'elsewhere')
        last = resuming.run(cfg)
    assert last.parent == tmp_path / 'elsewhere' / 'run' and not list((tmp_path / 'run').glob('*.pth'))
    resuming.assert_the_same_run(whole, last)


def test_the_best_weights_may_be_saved_before_the_first_checkpoint(toy_config):
    cfg = toy_config()
    launch.share_batch(cfg, 1)
    found = {}
    launch.build(cfg).call_hook('before_save_checkpoint', checkpoint=found)
    assert found['random_states'] == []


def test_a_folder_without_any_starts_a_run(tmp_path):
    assert newest_checkpoint(tmp_path) is None and newest_checkpoint(tmp_path / 'not there') is None


def test_a_run_whose_newest_checkpoint_is_damaged_ends_as_if_it_had_not_been(tmp_path):
    whole = resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'whole')))
    resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'run'), leave_at=9))
    flip(tmp_path / 'run' / 'iter_8.pth')
    resuming.assert_the_same_run(
        whole, resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'run'), resume=True))
    )


def test_resuming_in_an_empty_folder_starts_from_the_beginning(tmp_path):
    """What a job that the scheduler starts again before its first checkpoint needs."""
    one = resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'a')))
    other = resuming.run(resuming.config('views_of_the_batch', str(tmp_path / 'b'), resume=True))
    resuming.assert_the_same_run(one, other)
