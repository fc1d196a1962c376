"""MoCo v3's loss equals mmpretrain's."""

from harness.losses import assert_same, rows
from mmpretrain.models.heads import MoCoV3Head
from torch import nn

from mmairl.models.heads.mocov3 import BatchContrastiveHead


def test_mocov3_equals_mmpretrain():
    q, k = rows(2, 6, 5).values()
    loss = dict(type='mmpretrain.CrossEntropyLoss', loss_weight=2 * 0.2)
    predictor = dict(type='mmpretrain.LinearNeck', in_channels=5, out_channels=5)
    theirs = MoCoV3Head(predictor=predictor, loss=loss, temperature=0.2)
    theirs.predictor = nn.Identity()
    ours = BatchContrastiveHead(temperature=0.2)({0: q}, {1: k}, None)['loss']
    assert_same(ours, theirs.loss(q, k.detach()), [q], 1e-10)
