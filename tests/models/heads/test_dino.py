"""DINO's loss and center against loops over the formula."""

import torch
from harness.losses import assert_same
from torch import Tensor

from mmairl.models.heads.dino import DINOHead


def rows(count: int = 6, dim: int = 5) -> Tensor:
    return torch.randn(count, dim, dtype=torch.float64)


def test_dino_equals_loops_over_the_formula():
    head = DINOHead(prototypes=5).double()
    head.centre.copy_(rows()[0])
    centre, k = head.centre.clone(), {0: rows(), 1: rows()}
    q = {view: rows().requires_grad_() for view in (0, 1)}
    expected = 0.0
    for view in (0, 1):
        assigned = torch.softmax((k[1 - view] - centre) / 0.04, dim=1)
        predicted = torch.softmax(q[view] / 0.1, dim=1)
        expected = expected - (assigned * predicted.log()).sum() / 6 / 2
    assert_same(head(q, k, None)['loss'], expected, list(q.values()), 1e-10)
    mean = torch.cat([k[0], k[1]]).mean(dim=0)
    torch.testing.assert_close(head.centre, 0.9 * centre + 0.1 * mean)
    head(q, {view: one * float('nan') for view, one in k.items()}, None)
    assert head.centre.isfinite().all()
