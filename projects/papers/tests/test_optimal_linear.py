"""The optimal linear predictor equals torch's least-squares solution."""

import pytest
import torch

from projects.papers.optimal_linear import OptimalLinearHead


def test_optimal_linear_predictor_is_least_squares():
    head = OptimalLinearHead(ridge=1e-12)
    q, k = torch.randn(2, 64, 8).unbind()
    best = torch.linalg.lstsq(q.double(), k.double()).solution.float()
    torch.testing.assert_close(head.solve(q, k), best)
    q.requires_grad_()
    loss = head({0: q, 1: q}, {0: k, 1: k}, None)['loss']
    cosine = torch.cosine_similarity(q @ best, k)
    assert loss.item() == pytest.approx(2 * (2 - 2 * cosine).mean().item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, q)
    (expected,) = torch.autograd.grad(2 * (2 - 2 * cosine).mean(), q)
    torch.testing.assert_close(gradient, expected)
