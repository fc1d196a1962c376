"""LARS's update equals the papers' rule in plain Python.

By default, biases and parameters of norms have no adapted learning rate.
"""

import math

import pytest
import torch
from harness.errors import raises_code
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn

from mmairl.engine.optim.lars import LARS, multi_tensor_lars

SHAPES = [(7,), (5, 4), (3, 2, 3, 3)]
HYPER = {'momentum': 0.9, 'weight_decay': 0.05, 'eta': 0.001}


def warm_up_then_cosine(step: int) -> float:
    """Return a learning rate that changes at every step."""
    return 2.0 * (step + 1) / 5 if step < 5 else 1 + math.cos(math.pi * (step - 5) / 15)


def tensors(seed: int) -> list[Tensor]:
    """Return one random tensor of each shape, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def scalar_lars(
    w: list[float], grads: list[list[float]], lrs: list[float], adapt: bool, inside: bool = True
) -> list[float]:
    """Apply the papers' formula to one tensor, given as a list of Python floats, for a sequence of gradients.

    Return its final values.
    """
    mu, wd, eta = HYPER['momentum'], HYPER['weight_decay'] if adapt else 0.0, HYPER['eta']
    v = [0.0] * len(w)
    for g, lr in zip(grads, lrs):
        w_norm, g_norm = (
            math.sqrt(math.fsum(x * x for x in w)),
            math.sqrt(math.fsum(x * x for x in g)),
        )
        local = (
            eta * w_norm / (g_norm + wd * w_norm) if adapt and w_norm > 0 and g_norm > 0 else 1.0
        )
        within, outside = (lr, 1.0) if inside else (1.0, lr)
        v = [mu * vi + within * local * (gi + wd * wi) for vi, gi, wi in zip(v, g, w)]
        w = [wi - outside * vi for wi, vi in zip(w, v)]
    return w


def steps(
    optimizer: LARS, params: list[nn.Parameter], seed: int, count: int = 20, first: int = 0
) -> None:
    """Take steps with a changing learning rate and random gradients. The gradients depend on `seed` and on the step."""
    for step in range(first, first + count):
        for group in optimizer.param_groups:
            group['lr'] = warm_up_then_cosine(step)
        for param, grad in zip(params, tensors(1000 * seed + 100 + step)):
            param.grad = grad.to(param.dtype)
        optimizer.step()


def expected_of(seed: int, dtype: torch.dtype, inside: bool = True) -> list[float]:
    rates, values = [warm_up_then_cosine(step) for step in range(20)], []
    for index, before in enumerate(tensors(seed)):
        grads = [
            tensors(1000 * seed + 100 + step)[index].to(dtype).flatten().tolist()
            for step in range(20)
        ]
        values += scalar_lars(
            before.to(dtype).flatten().tolist(), grads, rates, before.ndim > 1, inside
        )
    return values


@pytest.mark.parametrize(
    'dtype,tolerance', [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize('inside', [True, False])
@pytest.mark.parametrize('seed', range(2))
def test_twenty_steps_equal_the_scalar_rule(dtype, tolerance, inside, seed):
    params, idle = (
        [nn.Parameter(p.to(dtype)) for p in tensors(seed)],
        nn.Parameter(torch.ones(2, 2)),
    )
    steps(LARS([*params, idle], lr=1.0, inside=inside, **HYPER), params, seed)
    values = torch.cat([param.detach().flatten() for param in params])
    expected = torch.tensor(expected_of(seed, dtype, inside), dtype=dtype)
    torch.testing.assert_close(values, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(idle, torch.ones(2, 2))


def test_a_zero_norm_makes_the_local_rate_one():
    params, grads = [torch.zeros(3), torch.full((3,), 2.0)], [torch.full((3,), 0.5), torch.zeros(3)]
    group = dict(HYPER, lr=0.1, inside=True, trust=True)
    multi_tensor_lars(params, grads, [torch.zeros(3), torch.zeros(3)], group, is_weight=True)
    torch.testing.assert_close(params[0], torch.full((3,), -0.1 * 0.5))
    torch.testing.assert_close(params[1], torch.full((3,), 2.0 - 0.1 * 0.05 * 2.0))


class Student(nn.Module):
    """A model with a backbone, a projector and a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.mlp = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        self.teacher = nn.Linear(8, 4).requires_grad_(False)


@pytest.mark.parametrize('kind', ['AutocastOptimWrapper', 'LARSOptimWrapper'])
def test_parts_of_the_model_have_separate_rates(kind):
    rates = dict(custom_keys={'mlp': dict(lr_mult=10)})
    cfg = dict(type=kind, optimizer=dict(type='LARS', lr=0.3), paramwise_cfg=rates)
    student = Student()
    optimizer = build_optim_wrapper(student, cfg).optimizer
    rate_of = {param: group['lr'] for group in optimizer.param_groups for param in group['params']}
    assert rate_of[student.mlp[0].weight] == 3.0 and rate_of[student.backbone[0].weight] == 0.3


@pytest.mark.parametrize('name', ['lr', 'momentum', 'weight_decay', 'eta'])
@pytest.mark.parametrize('number', [-1e-9, float('nan')])
def test_negative_number_of_a_group_raises(name, number):
    student = Student()
    optimizer = LARS(student.mlp.parameters(), lr=1.0)
    before = list(optimizer.param_groups)
    with raises_code('bad-number'):
        optimizer.add_param_group({'params': student.backbone.parameters(), name: number})
    assert optimizer.param_groups == before


def test_lars_without_trust_is_sgd_with_exclusions():
    ours = [nn.Parameter(value) for value in tensors(0)]
    reference = [nn.Parameter(value.clone()) for value in tensors(0)]
    options = dict(lr=0.3, momentum=0.9, weight_decay=0.05)
    decays = [0.0 if param.ndim == 1 else 0.05 for param in reference]
    groups = [dict(params=[param], weight_decay=decay) for param, decay in zip(reference, decays)]
    optimizers = LARS(ours, trust=False, **options), torch.optim.SGD(groups, **options)
    for step in range(5):
        for params, optimizer in zip((ours, reference), optimizers):
            for param, grad in zip(params, tensors(step + 1)):
                param.grad = grad
            optimizer.step()
    for one, other in zip(ours, reference):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
