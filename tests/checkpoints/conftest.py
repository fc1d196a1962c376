"""Checkpoints in memory, and the warnings about checkpoints."""

import pytest
from harness.backbones import State


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> State:
    """The tensors that every file appears to contain."""
    state: State = {}
    monkeypatch.setattr('mmairl.checkpoints.read.load_checkpoint', lambda path: dict(state_dict=dict(state)))
    return state


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings that reading checkpoints has logged."""
    lines: list[str] = []
    monkeypatch.setattr('mmairl.checkpoints.load.print_log', lambda text, **_: lines.append(text))
    return lines
