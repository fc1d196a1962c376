"""Barlow Twins' loss against mmpretrain's."""

import torch
from harness.losses import assert_same
from mmpretrain.models.heads import LatentCrossCorrelationHead
from torch import Tensor

from mmairl.models.heads.barlow import BarlowTwinsHead


def rows(count: int = 6, dim: int = 5) -> Tensor:
    return torch.randn(count, dim, dtype=torch.float64)


def test_barlow_twins_is_mmpretrains():
    a, b = rows().requires_grad_(), rows().requires_grad_()
    loss = dict(type='mmpretrain.CrossCorrelationLoss', lambd=0.0051)
    theirs = LatentCrossCorrelationHead(in_channels=5, loss=loss).double()
    ours = BarlowTwinsHead(weight=0.0051)({0: a}, {1: b}, None)['loss']
    assert_same(ours, theirs.loss(a, b), [a, b], 1e-10)
