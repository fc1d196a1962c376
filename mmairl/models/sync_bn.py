"""Synchronised batch norm that runs wherever the processes do, GPUs or CPUs."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as FusedSyncBN

from mmairl.registry import MODELS


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
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if not (self.training and several):
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
