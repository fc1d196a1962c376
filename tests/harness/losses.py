"""Helpers for tests of heads."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rows(views: int, count: int, dim: int = 4) -> dict[int, Tensor]:
    """Return random embeddings of each view. They are not normalized, and require gradients."""
    return {
        view: torch.randn(count, dim, dtype=torch.float64).requires_grad_() for view in range(views)
    }


def units(side: dict[int, Tensor]) -> dict[int, Tensor]:
    return {view: F.normalize(row, dim=1) for view, row in side.items()}


def assert_same(
    loss: Tensor, expected: Tensor, inputs: list[Tensor], tolerance: float = 1e-12
) -> None:
    """Check that two losses have equal values and equal gradients."""
    torch.testing.assert_close(loss, expected, atol=tolerance, rtol=tolerance)
    for a, b in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs)):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)
