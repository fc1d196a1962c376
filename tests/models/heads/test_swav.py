"""SwAV's loss against mmpretrain's, and frozen prototypes."""

import torch
import torch.nn.functional as F
from harness.losses import assert_same
from mmpretrain.models.losses import SwAVLoss
from torch import Tensor

from mmairl.models.heads.dino import PrototypeNeck
from mmairl.models.heads.swav import SwAVHead


def rows(count: int = 6, dim: int = 5) -> Tensor:
    return torch.randn(count, dim, dtype=torch.float64)


def test_swav_is_mmpretrains_with_small_crops():
    theirs = SwAVLoss(feat_dim=5, num_crops=[2, 3], num_prototypes=7).double()
    head = SwAVHead(channels=5, prototypes=7).double()
    head.prototypes.load_state_dict(theirs.prototypes.state_dict())
    z = {view: rows().requires_grad_() for view in range(5)}
    expected = theirs(torch.cat([F.normalize(view, dim=1) for view in z.values()]))
    ours = head(z, {view: z[view].detach() for view in (0, 1)}, None)['loss']
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    assert_same(ours, expected, list(z.values()), 1e-10)


def test_frozen_prototypes_stay_and_the_rest_learns():
    neck = PrototypeNeck(prototypes=4, in_channels=5, hidden_channels=None, out_channels=3)
    head = SwAVHead(channels=5, prototypes=4)
    for part, run in (
        (neck, lambda x: neck(x)),
        (head, lambda x: head({0: x, 1: x + 1}, {0: x.detach()}, None)['loss']),
    ):
        for frozen in (1, 0):
            part.frozen, x = frozen, rows().float().requires_grad_()
            part.zero_grad()
            run(x).square().sum().backward()
            assert (part.prototypes.weight.grad == 0).all() == bool(frozen) and x.grad.abs().sum() > 0
