"""Batch norm over several processes or over parts of a batch, ShuffleBN, and statistics that are measured anew."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from mmengine.dist import broadcast, get_rank, get_world_size
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as FusedSyncBN

from mmairl.errors import UserError
from mmairl.models.gather import gather
from mmairl.registry import MODELS


@torch.no_grad()
def measure_statistics(network: nn.Module, batches: Iterable, forward: Callable[[Any], object]) -> None:
    """Replace the running statistics of each norm in training mode by their plain mean over the batches, weights fixed.

    `forward` sends a batch through the network. Batch k moves each statistic by 1/k, whatever the statistics were.
    """
    norms = [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.training]
    momenta = [norm.momentum for norm in norms]
    for count, batch in enumerate(batches, start=1):
        for norm in norms:
            norm.momentum = 1 / count
        forward(batch)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def shuffle(images: Tensor) -> tuple[Tensor, Tensor]:
    """This process's share of the permuted batch of all processes, and the permutation, which all processes share."""
    everyone = gather(images)
    order = torch.randperm(len(everyone), device=images.device)
    broadcast(order)
    return everyone[order.chunk(get_world_size())[get_rank()]], order


def unshuffle(keys: Tensor, order: Tensor) -> Tensor:
    """This process's own keys out of everybody's permuted ones."""
    own = order.argsort().chunk(get_world_size())[get_rank()]
    return gather(keys)[own]


@MODELS.register_module('SplitBN')
class SplitBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm over a replica's part of the batch, as if each of `replicas` GPUs held its own.

    With P processes, each stands for replicas / P of them, and for one where there are more processes than replicas.
    The running statistics are the average over the parts.
    """

    def __init__(self, num_features: int, replicas: int = 8, **kwargs) -> None:
        super().__init__(num_features, **kwargs)
        if replicas < 1:
            raise UserError(f'SplitBN.replicas={replicas} leaves no batch to normalise over; set 1 or more')
        self.replicas = replicas

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f'SplitBN wants (batch, channels, ...) and got {tuple(x.shape)}')

    def forward(self, x: Tensor) -> Tensor:
        parts = max(1, self.replicas // get_world_size())
        if not self.training or parts == 1:
            return super().forward(x)
        if len(x) % parts or len(x) == parts:
            raise UserError(
                f'a batch of {len(x)} cannot be split among {parts} virtual replicas of two images or more; '
                'change total_batch_size or the replicas of SplitBN'
            )
        self.num_batches_tracked.add_(1)
        # Parts side by side as channels: one call normalises all of them.
        wide = x.unflatten(0, (parts, -1)).transpose(0, 1).flatten(1, 2)
        mean, var = self.running_mean.repeat(parts), self.running_var.repeat(parts)
        weight, bias = self.weight.repeat(parts), self.bias.repeat(parts)
        wide = nn.functional.batch_norm(wide, mean, var, weight, bias, True, self.momentum, self.eps)
        self.running_mean.copy_(mean.view(parts, -1).mean(0))
        self.running_var.copy_(var.view(parts, -1).mean(0))
        return wide.unflatten(1, (parts, -1)).transpose(0, 1).flatten(0, 1)


class _SumOverProcesses(torch.autograd.Function):
    """An all-reduced sum whose gradient is the all-reduced sum of the gradients."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total


@MODELS.register_module('SyncBN')
class SyncBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the batch of all processes: torch's fused kernels on GPUs, the same arithmetic on CPUs.

    torch's own SyncBatchNorm refuses CPU tensors, and DDP refuses that class on a CPU; so this one is not derived
    from it. With one process, or in evaluation, it is plain batch norm.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f'SyncBN wants (batch, channels, ...) and got {tuple(x.shape)}')

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or get_world_size() == 1:
            return super().forward(x)
        self._check_input_dim(x)
        self.num_batches_tracked.add_(1)
        return self._fused(x) if x.is_cuda else self._synchronised(x)

    def _fused(self, x: Tensor) -> Tensor:
        statistics = (self.running_mean, self.running_var, self.eps, self.momentum)
        return FusedSyncBN.apply(x, self.weight, self.bias, *statistics, dist.group.WORLD, dist.get_world_size())

    def _synchronised(self, x: Tensor) -> Tensor:
        """Two passes, mean then squared deviation: one pass of sums and squares cancels in float32.

        Statistics of half-precision activations are taken in float32, as the fused kernels do.
        """
        kind, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        others = [axis for axis in range(x.ndim) if axis != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        count = x.new_tensor([x.numel() // x.shape[1]])
        dist.all_reduce(count)
        mean = _SumOverProcesses.apply(x.sum(dim=others)) / count
        centred = x - mean.view(shape)
        variance = _SumOverProcesses.apply((centred * centred).sum(dim=others)) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale.view(shape) + self.bias.view(shape)).to(kind)
