"""Time two implementations of the same work in turn (A B A B), so that other programs on the machine slow both."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One comparison: `ours` and `peer` do the same work, and `check` compares their results.

    Args:
        name: The work.
        peer_name: The other library.
        ours: mmairl's implementation.
        peer: The other implementation.
        check: Raises AssertionError if the two results differ.
        images: The number of images per call.
    """

    name: str
    peer_name: str
    ours: Work
    peer: Work
    check: Callable[[object, object], None] | None = None
    images: int | None = None


@dataclass(frozen=True)
class Row:
    """The median seconds per call of both sides, and the maximum minus the minimum."""

    name: str
    peer_name: str
    ours: float
    peer: float
    ours_spread: float
    peer_spread: float
    images_per_second: float | None

    @property
    def ratio(self) -> float:
        """Return the time of the peer over the time of mmairl."""
        return self.peer / self.ours


def compare(case: Case, rounds: int, device: str = 'cpu') -> Row:
    """Run both sides once to warm up and to compare their results, then `rounds` times in turn."""
    results = case.ours(), case.peer()
    if case.check is not None:
        case.check(*results)
    del results
    times = [(timed(case.ours, device), timed(case.peer, device)) for _ in range(rounds)]
    ours, peer = (statistics.median(side) for side in zip(*times))
    spreads = [max(side) - min(side) for side in zip(*times)]
    speed = case.images / ours if case.images else None
    return Row(case.name, case.peer_name, ours, peer, *spreads, speed)


def timed(work: Work, device: str) -> float:
    gc.collect()
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device == 'cuda':
        torch.cuda.synchronize()
