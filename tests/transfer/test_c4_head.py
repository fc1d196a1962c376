"""The C4 shared head equals torchvision's layer4, followed by a batch norm."""

import pytest
import torch
from torch import nn
from torchvision import models

from mmairl.transfer.c4_head import Res5Head

WIDTH = {18: 512, 50: 2048}


def by_hand(depth: int) -> nn.Sequential:
    layer4 = getattr(models, f'resnet{depth}')(weights=None).layer4
    assembly = nn.Sequential(layer4, nn.BatchNorm2d(WIDTH[depth]))
    for value in assembly.state_dict().values():
        if value.is_floating_point() and value.ndim == 1:
            value.uniform_(0.5, 1.5)
    return assembly.double()


@pytest.mark.parametrize('depth', WIDTH)
def test_res5_head_equals_its_assembled_parts(depth: int) -> None:
    head, assembly = Res5Head(depth).double(), by_hand(depth)
    head.layer4.load_state_dict(assembly[0].state_dict())
    head.norm.load_state_dict(assembly[1].state_dict())
    regions = torch.randn(2, WIDTH[depth] // 2, 8, 8, dtype=torch.float64)
    for training in (True, False):
        head.train(training)
        ours, theirs = head(regions), assembly.train(training)(regions)
        assert ours.shape == (2, WIDTH[depth], 4, 4)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
        assert ours.min() < 0, (
            'the output has no negative values, although no ReLU follows the norm'
        )
    upstream = torch.randn_like(ours)
    (ours * upstream).sum().backward()
    (theirs * upstream).sum().backward()
    torch.testing.assert_close(head.layer4[0].conv1.weight.grad, assembly[0][0].conv1.weight.grad)
    torch.testing.assert_close(head.norm.weight.grad, assembly[1].weight.grad)
    for mine, other in ((head.norm, assembly[1]), (head.layer4[0].bn1, assembly[0][0].bn1)):
        torch.testing.assert_close(mine.running_mean, other.running_mean)
