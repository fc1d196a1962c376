"""Barlow Twins' loss equals mmpretrain's."""

from harness.losses import assert_same, rows
from mmpretrain.models.heads import LatentCrossCorrelationHead

from mmairl.models.heads.barlow import BarlowTwinsHead


def test_barlow_twins_equals_mmpretrain():
    a, b = rows(2, 6, 5).values()
    loss = dict(type='mmpretrain.CrossCorrelationLoss', lambd=0.0051)
    theirs = LatentCrossCorrelationHead(in_channels=5, loss=loss).double()
    ours = BarlowTwinsHead(weight=0.0051)({0: a}, {1: b}, None)['loss']
    assert_same(ours, theirs.loss(a, b), [a, b], 1e-10)
