"""DINOHead's loss and center equal a direct computation of DINO's formulas."""

import torch
from harness.losses import assert_same, rows

from mmairl.models.heads.dino import DINOHead


def test_dino_equals_loops_over_the_formula():
    head = DINOHead(prototypes=5).double()
    head.center.mean.copy_(torch.randn(5))
    center = head.center.mean.clone()
    q = rows(2, 6, 5)
    k = {view: z.detach() for view, z in rows(2, 6, 5).items()}
    expected = 0.0
    for view in (0, 1):
        assigned = torch.softmax((k[1 - view] - center) / 0.04, dim=1)
        predicted = torch.softmax(q[view] / 0.1, dim=1)
        expected = expected - (assigned * predicted.log()).sum() / 6 / 2
    assert_same(head(q, k, None)['loss'], expected, list(q.values()), 1e-10)
    mean = torch.cat([k[0], k[1]]).mean(dim=0)
    torch.testing.assert_close(head.center.mean, 0.9 * center + 0.1 * mean)
