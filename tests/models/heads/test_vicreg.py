"""VICReg's loss against loops over the formula."""

import torch
from harness.losses import assert_same
from torch import Tensor

from mmairl.models.heads.vicreg import VICRegHead


def rows(count: int = 6, dim: int = 5) -> Tensor:
    return torch.randn(count, dim, dtype=torch.float64)


def test_vicreg_is_the_papers_sum():
    a, b = rows().requires_grad_(), rows().requires_grad_()
    expected = 25 * sum((x - y) ** 2 for x, y in zip(a.flatten(), b.flatten())) / a.numel()
    for z in (a, b):
        deviation = [(sum((x - column.mean()) ** 2 for x in column) / 5 + 1e-4) ** 0.5 for column in z.T]
        expected = expected + 25 * sum(max(1 - d, 0 * d) for d in deviation) / 5
        centred = z - z.mean(dim=0)
        for i in range(5):
            for j in set(range(5)) - {i}:
                expected = expected + ((centred[:, i] @ centred[:, j]) / 5) ** 2 / 5
    found = VICRegHead()({0: a}, {1: b}, None)['loss']
    assert_same(found, expected, [a, b], 1e-10)
