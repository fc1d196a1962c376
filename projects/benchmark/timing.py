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
    """

    name: str
    peer_name: str
    ours: Work
    peer: Work
    check: Callable[[object, object], None] = lambda ours, theirs: None


def compare(case: Case, rounds: int, device: str = 'cpu') -> tuple[float, float]:
    """Run both sides once to warm up and to compare their results, then `rounds` times in turn.

    Returns:
        The median seconds per call of mmairl and of the other library.
    """
    case.check(case.ours(), case.peer())
    times = [(timed(case.ours, device), timed(case.peer, device)) for _ in range(rounds)]
    ours, peer = map(statistics.median, zip(*times))
    return ours, peer


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
