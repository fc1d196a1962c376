"""Script that runs the Triton kernels of batch norm in Triton's interpreter, in one process or in several."""

import sys
from itertools import product
from pathlib import Path

import torch
from mmengine.dist import get_rank, get_world_size
from torch import Tensor

from mmairl.engine.distributed import start_processes
from mmairl.models.fused_norm import FusedBatchNorm
from mmairl.models.norm import SyncBN, views_in_batch
from mmairl.models.processes import gather
from mmairl.signals import stop_processes

SHAPES = {'image': (12, 128, 5, 3), 'rows': (132, 64)}
# Each case has a key of `SHAPES`, the number of views, and whether a residual is added and a ReLU
# applied. Cases with a residual but without a ReLU are left out, because a ReLU follows the
# addition in every block of a ResNet.
CASES = [case for case in product(SHAPES, (1, 2), (False, True), (False, True)) if not case[2] or case[3]]


def seeded(kind: type, shape: str) -> tuple[torch.nn.Module, Tensor]:
    """Return a norm layer with random weights, and a tensor that stacks a random input, residual and gradient of the
    output.
    """
    torch.manual_seed(1)
    layer = kind(SHAPES[shape][1])
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    values = torch.randn(3, *SHAPES[shape])
    values[:2] = values[:2] * 3 + 7
    return layer, values


def step(shape: str, views: int, residual: bool, relu: bool) -> dict[str, Tensor]:
    """Return output, gradients and running statistics over the batch of all processes."""
    layer, values = seeded(SyncBN, shape)
    share = values.unflatten(1, (views, get_world_size(), -1))[:, :, get_rank()].flatten(1, 2)
    x, other, grad = (dense(part) for part in share)
    x.requires_grad_()
    other.requires_grad_()
    with views_in_batch([layer], views):
        y = FusedBatchNorm.apply(x, layer.weight, layer.bias, other if residual else None, layer, relu)
    # The kernels must accept a gradient that is not contiguous in memory.
    y.backward(grad.mT.contiguous().mT)
    tensors = {'y': y.detach(), 'x': x.grad, **({'residual': other.grad} if residual else {})}
    # The batch of a single process has all rows of the first view, and then all rows of the second
    # view. The rows that are gathered from several processes are brought into the same order.
    joined = {
        name: gather(value.contiguous()).unflatten(0, (get_world_size(), views, -1)).transpose(0, 1)
        for name, value in tensors.items()
    }
    weights = {name: weight.grad.unsqueeze(0) for name, weight in layer.named_parameters()}
    return {
        **{name: value.flatten(0, 2) for name, value in joined.items()},
        **{name: gather(value).sum(dim=0) for name, value in weights.items()},
        'mean': layer.running_mean,
        'var': layer.running_var,
    }


def dense(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


if __name__ == '__main__':
    start_processes('pytorch')
    results = {str(case): step(*case) for case in CASES}
    if get_rank() == 0:
        torch.save(results, Path(sys.argv[1]))
    stop_processes()
