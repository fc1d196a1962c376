"""Measure the limits of this machine: float32 matrix products and memory traffic."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from projects.benchmark.timing import Row, timed

# Rows and columns of the matrices. A product is limited by arithmetic, not memory, and takes less than a second.
MATRIX = dict(cpu=1024, cuda=8192)
COPIED = dict(cpu=2**28, cuda=2**31)  # number of bytes, more than any cache holds


@dataclass(frozen=True)
class Limits:
    """FLOPs per second of a matrix product, and bytes per second, read and written, of a copy or an in-place sum."""

    flops: float
    moved: float

    def __str__(self) -> str:
        return f'{self.flops / 1e9:.3g} GFLOP/s (float32 matrix product), {self.moved / 1e9:.3g} GB/s (memory)'

    def seconds(self, flops: float, moved: float) -> float:
        """Return the least time for the work, if arithmetic and memory traffic overlap perfectly."""
        return max(flops / self.flops, moved / self.moved)

    def reached(self, row: Row) -> float | None:
        """Return the least time over the measured time, or None without a least time. A cache can raise it above 1."""
        return self.seconds(row.flops, row.moved) / row.ours if row.flops or row.moved else None


def measure(device: str, rounds: int = 12) -> Limits:
    """Return the best of some rounds after a warm-up, because other work on the machine can only slow a round down."""
    size = MATRIX[device]
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    source = torch.zeros(COPIED[device] // 4, device=device)
    target = torch.empty_like(source)

    def best(work: Callable[[], object]) -> float:
        return min([timed(work, device) for _ in range(rounds + 1)][1:])

    product = best(lambda: torch.mm(left, right))
    # A copy reads its target before it overwrites it, and these bytes are not counted. An in-place sum has no such extra
    # reads.
    copied, summed = best(lambda: target.copy_(source)), best(lambda: target.add_(source))
    return Limits(2 * size**3 / product, COPIED[device] * max(2 / copied, 3 / summed))
