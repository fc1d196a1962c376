"""LARS's update against the rule worked out in plain Python numbers, and which parameters it adapts."""

import math

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmpretrain.models import VisionTransformer
from torch import Tensor, nn

from mmairl.optim.lars import LARS, multi_tensor_lars, split

SHAPES = [(7,), (5, 4), (3, 2, 3, 3)]
HYPER = {'momentum': 0.9, 'weight_decay': 0.05, 'eta': 0.001}


def warm_up_then_cosine(step: int) -> float:
    """A learning rate that changes every step."""
    return 2.0 * (step + 1) / 5 if step < 5 else 1 + math.cos(math.pi * (step - 5) / 15)


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """One random tensor per shape."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def scalar_lars(
    w: list[float], grads: list[list[float]], lrs: list[float], adapt: bool, inside: bool = True
) -> list[float]:
    """The papers' formula on a list of Python floats, for one tensor and a sequence of gradients."""
    mu, wd, eta = HYPER['momentum'], HYPER['weight_decay'] if adapt else 0.0, HYPER['eta']
    v = [0.0] * len(w)
    for g, lr in zip(grads, lrs):
        w_norm, g_norm = math.sqrt(math.fsum(x * x for x in w)), math.sqrt(math.fsum(x * x for x in g))
        local = eta * w_norm / (g_norm + wd * w_norm) if adapt and w_norm > 0 and g_norm > 0 else 1.0
        within, outside = (lr, 1.0) if inside else (1.0, lr)
        v = [mu * vi + within * local * (gi + wd * wi) for vi, gi, wi in zip(v, g, w)]
        w = [wi - outside * vi for wi, vi in zip(w, v)]
    return w


@pytest.mark.parametrize('dtype,tolerance', [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize('inside', [True, False])
def test_twenty_steps_under_a_changing_lr_equal_the_scalar_rule(dtype, tolerance, inside):
    params, idle = [nn.Parameter(p) for p in tensors(0, dtype)], nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([*params, idle], lr=1.0, inside=inside, **HYPER)
    lrs, expected = [warm_up_then_cosine(step) for step in range(20)], []
    for step, lr in enumerate(lrs):
        for group in optimizer.param_groups:
            group['lr'] = lr
        for param, grad in zip(params, tensors(100 + step, dtype)):
            param.grad = grad
        optimizer.step()
    found = torch.cat([param.detach().flatten() for param in params])
    for index, before in enumerate(tensors(0, dtype)):
        grads = [tensors(100 + step, dtype)[index].flatten().tolist() for step in range(20)]
        expected += scalar_lars(before.flatten().tolist(), grads, lrs, before.ndim > 1, inside)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=tolerance, atol=tolerance)
    assert torch.equal(idle, torch.ones(2, 2)) and idle not in optimizer.state  # it had no gradient


def test_tensors_that_lie_differently_in_memory_are_stepped_all_the_same():
    start, grad = tensors(0, torch.float64)[2], tensors(100, torch.float64)[2]
    expected = scalar_lars(start.flatten().tolist(), [grad.flatten().tolist()], [0.1], True)
    laid_out = start.clone(memory_format=torch.channels_last)
    with_gaps = torch.stack([torch.zeros_like(grad), torch.ones_like(grad)], dim=-1)[..., 0]
    multi_tensor_lars([laid_out], [grad], [with_gaps], dict(lr=0.1, adapt=True, **HYPER))
    torch.testing.assert_close(laid_out.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_a_zero_norm_makes_the_local_rate_one():
    params, grads = [torch.zeros(3), torch.full((3,), 2.0)], [torch.full((3,), 0.5), torch.zeros(3)]
    multi_tensor_lars(params, grads, [torch.zeros(3), torch.zeros(3)], dict(lr=0.1, adapt=True, **HYPER))
    torch.testing.assert_close(params[0], torch.full((3,), -0.1 * 0.5))
    torch.testing.assert_close(params[1], torch.full((3,), 2.0 - 0.1 * 0.05 * 2.0))


def test_a_vits_tokens_count_as_weights_and_its_gains_do_not():
    arch = {'embed_dims': 16, 'num_layers': 1, 'num_heads': 2, 'feedforward_channels': 32}
    model = VisionTransformer(arch=arch, img_size=32, patch_size=16, layer_scale_init_value=0.1)
    name_of = {param: name for name, param in model.named_parameters()}
    adapted, excluded = ({name_of[param] for param in group['params']} for group in split(model.parameters()))
    assert {'cls_token', 'pos_embed', 'layers.0.attn.qkv.weight'} <= adapted
    assert {'ln1.weight', 'layers.0.ln1.bias', 'layers.0.attn.qkv.bias', 'layers.0.attn.gamma1.weight'} <= excluded


class Student(nn.Module):
    """A backbone and a projector, beside a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.mlp = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        self.teacher = nn.Linear(8, 4).requires_grad_(False)


@pytest.mark.parametrize('kind', ['AutocastOptimWrapper', 'LARSOptimWrapper'])
def test_parts_of_the_network_may_have_rates_of_their_own(kind):
    """As BYOL's predictor has; each part is split into weights and the rest. Older configs say the second name."""
    rates = dict(custom_keys={'mlp': dict(lr_mult=10)})
    cfg = dict(type=kind, optimizer=dict(type='LARS', lr=0.3), paramwise_cfg=rates)
    student = Student()
    optimizer = build_optim_wrapper(student, cfg).optimizer
    found = {param: (group['lr'], group['adapt']) for group in optimizer.param_groups for param in group['params']}
    assert found[student.mlp[0].weight] == (3.0, True) and found[student.mlp[1].weight] == (3.0, False)
    assert found[student.backbone[0].weight] == (0.3, True) and student.teacher.weight not in found
