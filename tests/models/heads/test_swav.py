"""SwAV's loss equals mmpretrain's, and prototypes can be frozen."""

import torch
import torch.nn.functional as F
from harness.losses import assert_same, rows
from mmpretrain.models.losses import SwAVLoss

from mmairl.models.heads.dino import PrototypeNeck
from mmairl.models.heads.swav import SwAVHead


def test_swav_equals_mmpretrain_with_small_crops():
    theirs = SwAVLoss(feat_dim=5, num_crops=[2, 3], num_prototypes=7).double()
    head = SwAVHead(channels=5, prototypes=7).double()
    head.prototypes.load_state_dict(theirs.prototypes.state_dict())
    z = rows(5, 6, 5)
    expected = theirs(torch.cat([F.normalize(view, dim=1) for view in z.values()]))
    ours = head(z, {view: z[view].detach() for view in (0, 1)}, None)['loss']
    assert_same(ours, expected, list(z.values()), 1e-10)


def test_frozen_prototypes_have_no_gradient():
    neck = PrototypeNeck(prototypes=4, in_channels=5, hidden_channels=None, out_channels=3)
    head = SwAVHead(channels=5, prototypes=4)
    calls = {neck: neck, head: lambda x: head({0: x, 1: x + 1}, {0: x.detach()}, None)['loss']}
    for part, call in calls.items():
        for frozen in (1, 0):
            part.frozen = frozen
            part.zero_grad()
            x = torch.randn(6, 5, requires_grad=True)
            call(x).square().sum().backward()
            assert (part.prototypes.weight.grad == 0).all() == bool(frozen)
            assert x.grad.abs().sum() > 0
