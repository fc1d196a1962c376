"""Fixtures that keep checkpoints in memory and record warnings about checkpoints."""

import pytest
from harness.backbones import State


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> State:
    """Return a dict. Every file appears to contain the tensors that a test stores in the dict."""
    state: State = {}
    monkeypatch.setattr(
        'mmairl.checkpoints.read.load_checkpoint', lambda path: dict(state_dict=dict(state))
    )
    return state


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of warnings that were logged while checkpoints were read."""
    lines: list[str] = []
    monkeypatch.setattr('mmairl.checkpoints.load.print_log', lambda text, **_: lines.append(text))
    return lines
