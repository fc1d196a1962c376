"""The teacher's average."""

import pytest
import torch
from torch import nn

from mmairl.models.teacher import Teacher, multi_tensor_average


def student() -> nn.Module:
    parts = dict(
        backbone=nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
        projector=nn.Linear(4, 2),
        predictor=nn.Linear(2, 2),
    )
    return nn.ModuleDict(parts)


def teacher_of(net: nn.Module, predictor: bool = False) -> Teacher:
    return Teacher(net['backbone'], net['projector'], net['predictor'] if predictor else None)


@pytest.mark.parametrize('momentum', [0.0, 0.5, 0.99, 1.0])
def test_multi_tensor_equals_the_plain_loop(momentum):
    shapes = [(3, 4), (5,), ()]
    teacher, other = [torch.randn(s) for s in shapes], [torch.randn(s) for s in shapes]
    plain = [momentum * t + (1 - momentum) * s for t, s in zip(teacher, other)]
    multi_tensor_average(teacher, other, momentum)
    for fast, slow in zip(teacher, plain):
        torch.testing.assert_close(fast, slow, atol=1e-7, rtol=1e-6)


def test_it_equals_the_closed_form_under_a_momentum_near_one():
    net = student()
    teacher = teacher_of(net, predictor=True)
    first = {name: p.double().clone() for name, p in teacher.named_parameters()}
    for p in net.parameters():
        p.data.add_(1.0)
    for _ in range(200):
        teacher.follow(net, 0.9999)
    for name, p in teacher.named_parameters():
        expected = first[name] * 0.9999**200 + net.get_parameter(name).double() * (1 - 0.9999**200)
        torch.testing.assert_close(p.double(), expected, atol=2e-6, rtol=0)


def test_only_parameters_move_and_no_gradient_reaches_it():
    net = student()
    teacher = teacher_of(net)
    net['backbone'](torch.randn(8, 3, 5, 5))
    before = teacher.backbone[1].running_mean.clone()
    teacher.follow(net, 0.0)
    assert torch.equal(teacher.backbone[1].running_mean, before)
    assert not torch.equal(net['backbone'][1].running_mean, before)
    assert not any(p.requires_grad for p in teacher.parameters())


def test_it_starts_as_the_student_is():
    net = student()
    teacher = teacher_of(net)
    for p in net.parameters():
        p.data.normal_()
    teacher.copy_from(net)
    for name, p in teacher.named_parameters():
        assert torch.equal(p, net.get_parameter(name))
