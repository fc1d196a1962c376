"""Batch norm over several processes or over parts of a batch, ShuffleBN, and statistics that are measured anew."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from mmengine.dist import broadcast, get_rank, get_world_size
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.processes import gather, own_group
from mmairl.registry import MODELS


def norms_of(network: nn.Module) -> list[nn.Module]:
    return [layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


@torch.no_grad()
def measure_statistics(network: nn.Module, batches: Iterable, forward: Callable[[Any], object]) -> None:
    """Replace the running statistics of each norm in training mode by their plain mean over the batches, weights fixed.

    `forward` sends a batch through the network. Batch k moves each statistic by 1/k, whatever the statistics were.
    """
    norms = [norm for norm in norms_of(network) if norm.training]
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

    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def __init__(self, num_features: int, replicas: int = 8, **kwargs) -> None:
        super().__init__(num_features, **kwargs)
        self.replicas = replicas

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
        means, variances = self.running_mean.repeat(parts, 1), self.running_var.repeat(parts, 1)
        normalised = [
            nn.functional.batch_norm(part, mean, var, self.weight, self.bias, True, self.momentum, self.eps)
            for part, mean, var in zip(x.chunk(parts), means, variances)
        ]
        self.running_mean.copy_(means.mean(dim=0))
        self.running_var.copy_(variances.mean(dim=0))
        return torch.cat(normalised)


class _OverProcesses(torch.autograd.Function):
    """Batch norm of each view with the statistics of all processes' rows: one exchange forward, one backward, for all views.

    Nothing waits for the device.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: 'SyncBN') -> Tensor:
        """Counts travel with the statistics, so shares may differ. Variances are about each share's own mean, then joined."""
        wide, channels = x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[1]
        views, axes = wide.chunk(layer.views), [axis for axis in range(x.ndim) if axis != 1]
        own = [(mean, var) for var, mean in (torch.var_mean(v, axes, correction=0) for v in views)]
        count = own[0][0].new_full((1,), views[0].numel() // channels)
        ctx.group = own_group(layer.group)
        everyone = gather(torch.cat([*chain.from_iterable(own), count]).unsqueeze(0), ctx.group)
        counts, statistics = everyone[:, -1].view(-1, 1, 1), everyone[:, :-1].unflatten(1, (-1, 2, channels))
        means, variances = statistics.unbind(dim=2)
        total = counts.sum()
        mean = (counts * means).sum(dim=0) / total
        var = (counts * (variances + (means - mean).square())).sum(dim=0) / total
        if layer.running_mean is not None:
            for of_view, deviation in zip(mean, var * total / (total - 1)):
                layer.running_mean.lerp_(of_view.to(layer.running_mean.dtype), layer.momentum)
                layer.running_var.lerp_(deviation.to(layer.running_var.dtype), layer.momentum)
        ctx.save_for_backward(x, weight, mean, var, total)
        ctx.eps = layer.eps
        made = [nn.functional.batch_norm(v, *of, weight, bias, eps=layer.eps) for v, *of in zip(views, mean, var)]
        return torch.cat(made).to(x.dtype) if len(made) > 1 else made[0].to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        """dx = w s (dy - sum dy / n - x^ sum dy x^ / n), with x^ = (x - m) s, and the sums over a view in all processes.

        The gradients of weight and bias are these sums over the own rows, as DDP wants them.
        """
        x, weight, mean, var, total = ctx.saved_tensors
        shape = [len(mean), 1, -1] + [1] * (x.ndim - 2)
        rows, grad = (of.to(mean.dtype).unflatten(0, (len(mean), -1)) for of in (x, grad))
        inverse = torch.rsqrt(var + ctx.eps)
        centred = rows - mean.view(shape)
        axes = [axis for axis in range(rows.ndim) if axis not in (0, 2)]
        own = torch.stack([grad.sum(dim=axes), (grad * centred).sum(dim=axes) * inverse])
        sums = own.clone()
        dist.all_reduce(sums, group=ctx.group)
        of_mean, of_variance = (sums / total).view(2, *shape)
        scale = inverse if weight is None else inverse * weight
        slope = inverse.view(shape) * of_variance
        to_x = torch.addcmul(grad - of_mean, centred, slope, value=-1).mul_(scale.view(shape))
        to_bias, to_weight = own.sum(dim=1)
        wanted = (to_weight.to(weight.dtype), to_bias.to(weight.dtype)) if weight is not None else (None, None)
        return to_x.flatten(0, 1).to(x.dtype), *wanted, None


@MODELS.register_module('SyncBN')
class SyncBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the batch of all processes, on GPUs and on CPUs; untested on a GPU.

    torch's own SyncBatchNorm refuses CPU tensors, and on GPUs the host waits for the device three times in each layer, for
    counts of images that could differ. DDP refuses that class on a CPU, so this one is not derived from it. With one process,
    or in evaluation, it is plain batch norm. A batch of several views (`each_view`) keeps the statistics of each view apart.

    Args:
        group: how many neighbouring processes share their statistics, such as those of one machine; all unless given.
    """

    views = 1
    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def __init__(self, num_features: int, group: int | None = None, **kwargs) -> None:
        super().__init__(num_features, **kwargs)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or get_world_size() == 1:
            return super().forward(x)
        return self._over_processes(x)

    @torch.compiler.disable  # traced collectives gave other gradients, so what is compiled ends before and begins after
    def _over_processes(self, x: Tensor) -> Tensor:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(self.views)
        return _OverProcesses.apply(x, self.weight, self.bias, self)


def each_view(network: nn.Module, run: Callable[[nn.Module, Tensor], Tensor], views: Sequence[Tensor]) -> list[Tensor]:
    """`run(network, view)` of each view, whose batch statistics are its own.

    Over several processes all views go through in one pass, which halves the exchanges of two, where every norm over the
    batch is a SyncBN and the views have one shape.
    """
    norms = norms_of(network)
    apart = not all(isinstance(norm, SyncBN) for norm in norms) or len({view.shape for view in views}) > 1
    if get_world_size() == 1 or not norms or apart:
        return [run(network, view) for view in views]
    for norm in norms:
        norm.views = len(views)
    found = run(network, torch.cat(list(views))).chunk(len(views))
    for norm in norms:
        norm.views = 1
    return list(found)


def first_view(network: nn.Module, rows: Tensor) -> Tensor:
    """The first view's rows of what this part of a network has just put out."""
    return rows.chunk(next((layer.views for layer in network.modules() if isinstance(layer, SyncBN)), 1))[0]
