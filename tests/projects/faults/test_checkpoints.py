"""A damaged checkpoint is refused or read as it was written; the long form has the same function run five times as long."""

import pytest
import torch

from mmairl.weights import read
from projects.faults.checkpoints import KINDS, Canary, fuzz_checkpoints, training_checkpoint
from projects.faults.compare import differing


def test_no_damage_passes_for_another_checkpoint_and_nothing_runs(tmp_path):
    found = fuzz_checkpoints(100, 0, tmp_path)
    assert found['failed'] == 0 and found['refused'] + found['equal'] == 100
    assert all(any(key.startswith(f'{name}: ') for key in found) for name in KINDS)


def test_without_the_sums_the_same_damage_is_loaded_as_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(read, 'damage', lambda path: None)
    assert fuzz_checkpoints(100, 0, tmp_path)['failed'] > 10


def test_a_reader_that_runs_what_it_is_given_is_caught(tmp_path, monkeypatch):
    careless = torch.load
    monkeypatch.setattr(torch, 'load', lambda path, **how: careless(path, **{**how, 'weights_only': False}))
    monkeypatch.setattr(read, 'plain', lambda value: value)
    found = fuzz_checkpoints(100, 0, tmp_path)
    assert found['hostile pickle: failed'] == 10


def test_the_canary_sings(tmp_path):
    torch.save(Canary(tmp_path / 'canary'), tmp_path / 'a.pth')
    torch.load(tmp_path / 'a.pth', weights_only=False)
    assert (tmp_path / 'canary').exists()


@pytest.mark.parametrize('part', ['meta', 'state_dict', 'optimizer', 'message_hub'])
def test_any_difference_is_seen(part):
    ours, theirs = training_checkpoint(0), training_checkpoint(0)
    assert not differing(ours, theirs, 'all')
    theirs[part] = training_checkpoint(1)[part]
    assert all(name.startswith(f'all.{part}') for name in differing(ours, theirs, 'all'))
    assert differing(ours, theirs, 'all')
