"""Time two implementations of the same work in turn (A B A B), so that other programs on the machine slow both."""

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.dist import barrier

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One comparison: `ours` and `peer` do the same work, and `check` compares their results.

    `images` is the number of images per call. If `memory`, the peak memory of `ours` and `peer` is measured, too. `aim` is the
    aimed ratio or memory, as text for the table. `flops` is the least number of operations for this work, and `moved` the
    least number of bytes to read and write. `note` is printed below the table.
    """

    name: str
    peer_name: str
    ours: Work
    peer: Work
    check: Callable[[object, object], None] | None = None
    images: int | None = None
    memory: bool = False
    aim: str = ''
    flops: float = 0
    moved: float = 0
    note: str = ''


@dataclass(frozen=True)
class Row:
    """The result of a case.

    `ours` and `peer` are the median seconds per call over the rounds, and `ours_spread` and `peer_spread` the maximum minus the
    minimum. `ours_bytes` and `peer_bytes` are the peak memory. The other fields are those of the case.
    """

    name: str
    peer_name: str
    ours: float
    peer: float
    ours_spread: float
    peer_spread: float
    images_per_second: float | None
    ours_bytes: int | None
    peer_bytes: int | None
    aim: str
    flops: float = 0
    moved: float = 0
    note: str = ''

    @property
    def ratio(self) -> float:
        """Return the time of the peer over the time of mmairl."""
        return self.peer / self.ours


def compare(case: Case, rounds: int, device: str = 'cpu') -> Row:
    """Run `ours` and `peer` once to warm up and to compare their results, then `rounds` times in turn."""
    results = case.ours(), case.peer()
    if case.check is not None:
        case.check(*results)
    del results
    times = [(timed(case.ours, device), timed(case.peer, device)) for _ in range(rounds)]
    peaks = [peak_bytes(work, device) if case.memory else None for work in (case.ours, case.peer)]
    ours, peer = (statistics.median(side) for side in zip(*times))
    spreads = [max(side) - min(side) for side in zip(*times)]
    speed = case.images / ours if case.images else None
    description = case.aim, case.flops, case.moved, case.note
    return Row(case.name, case.peer_name, ours, peer, *spreads, speed, *peaks, *description)


def timed(work: Work, device: str = 'cpu') -> float:
    """Return the seconds of a call. Several processes start together, and the time ends when the slowest has finished."""
    gc.collect()
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def peak_bytes(work: Work, device: str) -> int | None:
    """Return the peak memory of a call minus the memory before it, or None if the system does not report it."""
    gc.collect()
    if device == 'cuda':
        torch.cuda.reset_peak_memory_stats()
        baseline = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - baseline
    try:
        # Return freed memory to the system. Otherwise, the work would reuse this memory without a measurable growth.
        ctypes.CDLL(None).malloc_trim(0)
        Path('/proc/self/clear_refs').write_text('5')  # reset the peak
        baseline = _resident('VmRSS')
        work()
        return _resident('VmHWM') - baseline
    except (OSError, AttributeError):
        return None


def _resident(field: str) -> int:
    line = next(
        line
        for line in Path('/proc/self/status').read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def _wait(device: str) -> None:
    if device == 'cuda':
        torch.cuda.synchronize()
    barrier()
