"""MoCo v3's loss against mmpretrain's."""

import torch
from harness.losses import assert_same
from mmpretrain.models.heads import MoCoV3Head
from torch import Tensor, nn

from mmairl.models.heads.mocov3 import BatchContrastiveHead


def rows(count: int = 6, dim: int = 5) -> Tensor:
    return torch.randn(count, dim, dtype=torch.float64)


def test_mocov3_is_mmpretrains():
    q, k = rows().requires_grad_(), rows()
    loss = dict(type='mmpretrain.CrossEntropyLoss', loss_weight=2 * 0.2)
    theirs = MoCoV3Head(
        predictor=dict(type='mmpretrain.LinearNeck', in_channels=5, out_channels=5), loss=loss, temperature=0.2
    )
    theirs.predictor = nn.Identity()
    ours = BatchContrastiveHead(temperature=0.2)({0: q}, {1: k}, None)['loss']
    assert_same(ours, theirs.loss(q, k), [q], 1e-10)
