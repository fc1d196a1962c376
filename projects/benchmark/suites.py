"""Define the suites of the benchmark: functions that yield cases at full size or, if `quick`, at tiny size."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.evaluation.knn import nearest
from projects.benchmark.augment import augment
from projects.benchmark.loader import loader
from projects.benchmark.step import step
from projects.benchmark.timing import Case


def knn(device: str, quick: bool) -> Iterator[Case]:
    """Compare the k-NN search, which works in blocks, with a search in the full similarity matrix."""
    bank, queries, width = (2000, 100, 64) if quick else (200_000, 4096, 2048)
    generator = torch.Generator().manual_seed(0)
    x, q = (
        torch.randn(bank, width, generator=generator),
        torch.randn(queries, width, generator=generator),
    )

    def whole() -> Tensor:
        return (F.normalize(q.to(device)) @ F.normalize(x.to(device)).T).topk(200).values.cpu()

    def check(ours: Tensor, theirs: Tensor) -> None:
        # mmairl's search computes some cosines in float64 and returns float64. The full matrix is in float32.
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0, check_dtype=False)

    name = f'k-NN, {queries} images against {bank} x {width}, k = 200'
    ours = lambda: nearest(q, x, 200, device)[0]  # noqa: E731
    yield Case(name, 'full similarity matrix', ours, whole, check, queries)


SUITES: dict[str, Callable[[str, bool], Iterator[Case]]] = dict(
    step=step, loader=loader, augment=augment, knn=knn
)
