"""Batch norm over processes and over parts of a batch, MoCo's ShuffleBN, and a function that measures running statistics."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from mmengine.dist import broadcast, get_rank, get_world_size
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from mmairl.errors import UserError
from mmairl.models.processes import gather
from mmairl.registry import MODELS


def norms_of(network: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a network."""
    kind = nn.modules.batchnorm._BatchNorm
    return [layer for layer in network.modules() if isinstance(layer, kind)]


@torch.no_grad()
def measure_statistics(
    network: nn.Module, batches: Iterable, forward: Callable[[Any], object]
) -> None:
    """Set the running statistics to the mean of the batch statistics.

    Only batch norms that are in training mode are changed.

    Args:
        network: The network. Its weights do not change.
        batches: The batches. Batch k is averaged with a momentum of 1 / k, so the old statistics have no influence.
        forward: Function that passes a batch through the network.
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
    """Permute the images of all processes. Return this process's part of the permuted images, and the permutation."""
    everyone = gather(images)
    order = torch.randperm(len(everyone), device=images.device)
    broadcast(order)
    return everyone[order.chunk(get_world_size())[get_rank()]], order


def unshuffle(keys: Tensor, order: Tensor) -> Tensor:
    """Undo `shuffle`: return the keys of this process's own images.

    Args:
        keys: The keys of the images that `shuffle` gave to this process.
        order: The permutation that `shuffle` returned.
    """
    own = order.argsort().chunk(get_world_size())[get_rank()]
    return gather(keys)[own]


@MODELS.register_module()
class SplitBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm that normalizes each part of a batch separately, as if each part were on its own GPU.

    Each of P processes splits its batch into `replicas` / P parts, rounded down. If this number is below 2, the batch is not
    split. The running statistics are averaged over the parts of the process.

    Args:
        num_features: Number of channels.
        replicas: Number of GPUs to imitate. If P divides this number, the batch of all processes together is split into this
            many parts.
        **kwargs: The arguments of `torch.nn.BatchNorm2d`.

    Raises:
        UserError: If a process cannot split its batch into equal parts of at least two images.
    """

    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def __init__(self, num_features: int, replicas: int = 8, **kwargs: Any) -> None:
        super().__init__(num_features, **kwargs)
        self.replicas = replicas

    def forward(self, x: Tensor) -> Tensor:
        parts = max(1, self.replicas // get_world_size())
        if not self.training or parts == 1:
            return super().forward(x)
        if len(x) % parts or len(x) == parts:
            raise UserError(
                f"SplitBN: a batch of '{len(x)}' images cannot be split into {parts} equal parts of at least two images; "
                'change total_batch_size or norm_cfg.replicas',
                code='unequal-replicas',
            )
        self.num_batches_tracked.add_(1)
        means = self.running_mean.repeat(parts, 1)
        variances = self.running_var.repeat(parts, 1)
        outputs = [
            nn.functional.batch_norm(
                part, mean, var, self.weight, self.bias, True, self.momentum, self.eps
            )
            for part, mean, var in zip(x.chunk(parts), means, variances)
        ]
        self.running_mean.copy_(means.mean(dim=0))
        self.running_var.copy_(variances.mean(dim=0))
        return torch.cat(outputs)


@MODELS.register_module()
class SyncBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the batch of all processes, on CPUs and GPUs.

    `torch.nn.SyncBatchNorm` rejects CPU tensors, and on GPUs it makes the host wait for the device in every layer. With one
    process, or in evaluation mode, `SyncBN` is plain batch norm.

    Args:
        num_features: Number of channels.
        **kwargs: The arguments of `torch.nn.BatchNorm2d`.

    Attributes:
        views: Number of views in the batch, one after another. Each is normalized by its own statistics. `passes` sets it.
    """

    _check_input_dim = nn.SyncBatchNorm._check_input_dim
    views = 1

    def forward(self, x: Tensor) -> Tensor:
        if self.training and get_world_size() > 1:
            return self._normalize(x)
        if self.training and self.views > 1:
            return torch.cat(list(map(super().forward, x.chunk(self.views))))
        return super().forward(x)

    # Compiled collectives gave wrong gradients.
    @torch.compiler.disable
    def _normalize(self, x: Tensor) -> Tensor:
        kind = torch.promote_types(x.dtype, torch.float32)
        zeros = x.new_zeros(self.num_features, dtype=kind)
        weight, bias = zeros + 1, zeros
        if self.affine:
            weight, bias = self.weight, self.bias
        shift = self.running_mean if self.track_running_stats else zeros
        views = x.unflatten(0, (self.views, -1))
        y, means, variances, count = _SharedBatchNorm.apply(views, weight, bias, shift, self.eps)
        if self.track_running_stats:
            self.num_batches_tracked.add_(self.views)
            for mean, var in zip(means, variances * count / (count - 1)):
                self.running_mean.lerp_(mean.to(shift), self.momentum)
                self.running_var.lerp_(var.to(shift), self.momentum)
        return y.flatten(0, 1)


class _SharedBatchNorm(torch.autograd.Function):
    """Normalize each view of a batch by its statistics over all processes.

    The processes may have different numbers of rows. Each pass, forward or backward, needs one all-reduce for all views, and
    the host does not wait for the device. In the formulas below, x is the input, m and s are its mean and inverse standard
    deviation over the n rows of a view in all processes, w is the weight, and dx and dy are the gradients of the input and of
    the output.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor, eps: float
    ) -> tuple[Tensor, ...]:
        """Return the output, and the means, the variances and the number of rows, which have no gradients.

        Sums of squares are taken about the running mean, which is close to the mean and equal in all processes. Squares of
        large numbers would cancel.

        Args:
            x: The views, of shape (views, B, C, ...).
            weight: The weight.
            bias: The bias.
            shift: The running mean.
            eps: The number that is added to the variances.
        """
        centered = x - _spread(shift, x)
        total = _sum(centered)
        rows = torch.full_like(total, x[0].numel() // x.shape[2])
        squares = _sum(centered.square())
        sums = torch.stack([total, squares, rows])
        dist.all_reduce(sums)
        offset, square, _ = sums / sums[2]
        count = sums[2, 0, 0]
        mean = shift + offset
        var = square - offset.square()
        scale = torch.rsqrt(var + eps)
        slope = _spread(scale * weight, x)
        y = (x - _spread(mean, x)) * slope + _spread(bias, x)
        ctx.save_for_backward(x, weight, mean, scale, count)
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    def backward(ctx: FunctionCtx, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients ``dx = w s (dy - mean(dy) - y mean(dy y))`` with ``y = (x - m) s``, and those of the weights.

        The means are over the rows of all processes. The gradients of weight and bias are sums over the rows of this process
        only, because DDP averages them later.
        """
        x, weight, mean, scale, count = ctx.saved_tensors
        y = (x - _spread(mean, x)) * _spread(scale, x)
        to_weight = _sum(dy * y)
        to_bias = _sum(dy.to(y.dtype))
        own = torch.stack([to_weight, to_bias])
        everyone = own.clone()
        dist.all_reduce(everyone)
        slope, level = (_spread(part, x) for part in everyone / count)
        dx = (dy - level - y * slope) * _spread(scale * weight, x)
        return dx.to(x.dtype), *own.sum(dim=1), None, None


def _spread(values: Tensor, x: Tensor) -> Tensor:
    """Return one value per channel, or per view and channel, in a shape that broadcasts to `x`."""
    views = len(values) if values.ndim == 2 else 1
    return values.view(views, 1, -1, *[1] * (x.ndim - 3))


def _sum(x: Tensor) -> Tensor:
    """Return the sums over the rows of each view, of shape (views, C)."""
    return x.sum(dim=[1, *range(3, x.ndim)])


def passes(
    network: nn.Module, views: dict[int, Tensor], masked: Collection[int] = ()
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield the indices of the views that share a forward pass, and the joined images of these views.

    Batch norm must normalize each view by its own statistics. With several processes, views of the same shape share a pass,
    and SyncBN separates them, because it exchanges the statistics of all views of a pass at once. With one process, they
    share a pass only if the backbone has no batch norm. With other batch norms, each view has its own pass.

    Args:
        network: The network.
        views: The images of each view.
        masked: The views with masks, which do not share a pass with other views.
    """
    norms = norms_of(network)
    synced = all(isinstance(norm, SyncBN) for norm in norms)
    if get_world_size() == 1 and norms_of(getattr(network, 'backbone', network)):
        synced = False
    groups: dict[object, list[int]] = {}
    for number in sorted(views):
        # Rows of masked patches follow those of all views, so SyncBN could not separate these views.
        alone = not synced or (norms and number in masked)
        kind = number if alone else (views[number].shape, number in masked)
        groups.setdefault(kind, []).append(number)
    for numbers in groups.values():
        together = [views[number] for number in numbers]
        for norm in norms:
            norm.views = len(numbers)
        yield numbers, torch.cat(together) if len(together) > 1 else together[0]
    for norm in norms:
        norm.views = 1
