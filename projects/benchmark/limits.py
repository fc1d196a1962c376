"""Measure the limits of this machine: float32 matrix products and memory traffic."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from projects.benchmark.timing import Row, timed

# The number of rows and columns of the multiplied matrices. At this size, arithmetic and not memory limits the speed of a
# product, which takes less than a second.
MATRIX = dict(cpu=1024, cuda=8192)
COPIED = dict(cpu=2**28, cuda=2**31)  # number of copied bytes, which exceeds the size of any cache


@dataclass(frozen=True)
class Limits:
    """The highest speeds of a machine.

    `flops` is the number of operations per second of a matrix product. `moved` is the number of bytes per second that a copy
    or an in-place sum reads and writes.
    """

    flops: float
    moved: float

    def __str__(self) -> str:
        return f'{self.flops / 1e9:.3g} GFLOP/s (float32 matrix product), {self.moved / 1e9:.3g} GB/s (memory)'

    def seconds(self, flops: float, moved: float) -> float:
        """Return the shortest possible time for the work, with perfect overlap of arithmetic and memory traffic."""
        return max(flops / self.flops, moved / self.moved)

    def reached(self, row: Row) -> float | None:
        """Return the shortest possible time divided by the measured time. A cache can raise this fraction above 1.

        Return None if the case states neither operations nor bytes.
        """
        return self.seconds(row.flops, row.moved) / row.ours if row.flops or row.moved else None


def measure(device: str, rounds: int = 12) -> Limits:
    """Measure the speeds of arithmetic and memory. The best round counts, because other programs can only slow a round down."""
    size = MATRIX[device]
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    source = torch.zeros(COPIED[device] // 4, device=device)
    target = torch.empty_like(source)

    def best(work: Callable[[], object]) -> float:
        return min([timed(work, device) for _ in range(rounds + 1)][1:])

    product = best(lambda: torch.mm(left, right))
    # Before a copy overwrites its target, the processor also reads the target. These reads are not counted, so the speed of
    # a copy may be too low. An in-place sum has no such extra reads.
    copy_seconds, sum_seconds = (
        best(lambda: target.copy_(source)),
        best(lambda: target.add_(source)),
    )
    return Limits(2 * size**3 / product, COPIED[device] * max(2 / copy_seconds, 3 / sum_seconds))
