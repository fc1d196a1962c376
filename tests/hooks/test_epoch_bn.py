"""BYOL's BN momentum follows the length of an epoch."""

from types import SimpleNamespace

import pytest
from torch import nn

from mmairl.hooks import EpochBatchNormHook


@pytest.mark.parametrize('steps, decay', [(50, 0.9), (100, 0.9), (400, 1 - 10 / 400), (5000, 1 - 10 / 5000)])
def test_decay_is_the_larger_of_one_minus_ten_steps_and_nine_tenths(steps, decay):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4)))
    EpochBatchNormHook().before_train(SimpleNamespace(model=model, train_dataloader=range(steps)))
    assert [1 - m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)] == pytest.approx([decay] * 2)
