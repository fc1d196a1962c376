"""The machine at its best, measured: float32 matrix products and memory traffic."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from projects.benchmark.timing import Row, timed

MATRIX = dict(
    cpu=1024, cuda=8192
)  # rows and columns: enough to be bound by arithmetic, little enough for a second
COPIED = dict(cpu=2**28, cuda=2**31)  # bytes: beyond any cache


@dataclass(frozen=True)
class Limits:
    """FLOPs a second of a matrix product, and bytes a second, read and written, of a copy or a sum in place."""

    flops: float
    moved: float

    def __str__(self) -> str:
        return f'{self.flops / 1e9:.3g} GFLOP/s (float32 matrix product), {self.moved / 1e9:.3g} GB/s (memory)'

    def seconds(self, flops: float, moved: float) -> float:
        """The least time for the work: arithmetic and memory traffic at best overlap."""
        return max(flops / self.flops, moved / self.moved)

    def reached(self, row: Row) -> float | None:
        """Divide the least time by ours; above 1 where a cache spared the memory. None where no least work is given."""
        return self.seconds(row.flops, row.moved) / row.ours if row.flops or row.moved else None


def measure(device: str, rounds: int = 12) -> Limits:
    """The best of some rounds, after one to warm up: whatever else runs here can only slow a round."""
    size = MATRIX[device]
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    source = torch.zeros(COPIED[device] // 4, device=device)
    target = torch.empty_like(source)

    def best(work: Callable[[], object]) -> float:
        return min([timed(work, device) for _ in range(rounds + 1)][1:])

    product = best(lambda: torch.mm(left, right))
    # a processor reads what a copy is about to overwrite, unseen; a sum in place has nothing of that kind
    copied, summed = best(lambda: target.copy_(source)), best(lambda: target.add_(source))
    return Limits(2 * size**3 / product, COPIED[device] * max(2 / copied, 3 / summed))
