"""Fixtures for tests of data sets."""

import pytest

from mmairl.data import reading


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> None:
    """Make the cache of shard indices an empty folder for this test."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


class Clock:
    """A clock that advances only when the code under test sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    monkeypatch.setattr(reading, 'time', clock := Clock())
    return clock
