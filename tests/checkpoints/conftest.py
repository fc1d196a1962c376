"""Checkpoints in memory."""

import pytest
from harness.backbones import State


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> State:
    """The tensors that every file appears to contain; print nothing about them."""
    state: State = {}
    monkeypatch.setattr('mmairl.checkpoints.read.load_checkpoint', lambda path: dict(state_dict=dict(state)))
    monkeypatch.setattr('mmairl.checkpoints.read.print_log', lambda *_, **__: None)
    return state
