"""ShuffleBN, across processes and, on few of them, across virtual replicas, so that MoCo v2 is itself on one GPU."""

import torch
from mmengine.dist import broadcast, get_rank, get_world_size
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.gather import gather
from mmairl.registry import MODELS


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
