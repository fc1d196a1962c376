"""The teacher's average."""

import pytest
import torch
from torch import nn

from mmairl.models.teacher import Teacher


def student() -> nn.ModuleDict:
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    return nn.ModuleDict(dict(backbone=backbone, projector=nn.Linear(4, 2), predictor=nn.Linear(2, 2)))


@pytest.mark.parametrize('momentum', [0.0, 0.5, 0.99, 1.0, 0.9999])
def test_it_starts_as_the_student_and_equals_the_closed_form_after_200_steps(momentum):
    net = student()
    teacher = Teacher(net['backbone'], net['projector'], net['predictor'])
    for p in net.parameters():
        p.data.normal_()
    teacher.copy_from(net)
    first = {name: p.double().clone() for name, p in teacher.named_parameters()}
    assert all(torch.equal(p, net.get_parameter(name).double()) for name, p in first.items())
    for p in net.parameters():
        p.data.add_(1.0)
    for _ in range(200):
        teacher.follow(net, momentum)
    for name, p in teacher.named_parameters():
        expected = first[name] * momentum**200 + net.get_parameter(name).double() * (1 - momentum**200)
        torch.testing.assert_close(p.double(), expected, atol=2e-6, rtol=0)


def test_only_parameters_move_and_no_gradient_reaches_it():
    net = student()
    teacher = Teacher(net['backbone'], net['projector'], None)
    net['backbone'](torch.randn(8, 3, 5, 5))
    before = teacher.backbone[1].running_mean.clone()
    teacher.follow(net, 0.0)
    assert torch.equal(teacher.backbone[1].running_mean, before)
    assert not torch.equal(net['backbone'][1].running_mean, before)
    assert not any(p.requires_grad for p in teacher.parameters())
