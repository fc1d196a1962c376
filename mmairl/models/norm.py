"""Batch norm over several processes or over parts of a batch, ShuffleBN, and statistics that are measured anew."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
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
    return [
        layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)
    ]


@torch.no_grad()
def measure_statistics(
    network: nn.Module, batches: Iterable, forward: Callable[[Any], object]
) -> None:
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
            nn.functional.batch_norm(
                part, mean, var, self.weight, self.bias, True, self.momentum, self.eps
            )
            for part, mean, var in zip(x.chunk(parts), means, variances)
        ]
        self.running_mean.copy_(means.mean(dim=0))
        self.running_var.copy_(variances.mean(dim=0))
        return torch.cat(normalised)


class CPUKernels:
    """torch's kernels for batch norm over processes, which it has for GPUs alone, under their names there."""

    @staticmethod
    def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        mean, var = torch.batch_norm_update_stats(wide(x), None, None, 0.0)
        return mean, torch.rsqrt(var + eps)

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        _, means: Tensor, invstds: Tensor, *settings
    ) -> tuple[Tensor, Tensor]:
        """Join the processes' variances, each about its own mean, and move the running statistics."""
        running_mean, running_var, momentum, eps, counts = settings
        shares, total = counts.unsqueeze(1), counts.sum()
        mean = (shares * means).sum(dim=0) / total
        var = (shares * (invstds**-2 - eps + (means - mean).square())).sum(dim=0) / total
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * total / (total - 1)).to(running_var.dtype), momentum)
        return mean, torch.rsqrt(var + eps)

    @staticmethod
    def batch_norm_elemt(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        invstd: Tensor,
        eps: float,
        *,
        out: Tensor,
    ) -> None:
        unused = [mean.new_empty(0) for _ in range(2)]
        given = (x, weight, bias, mean, invstd**-2, False, 0.0, 0.0)
        torch.ops.aten.native_batch_norm.out(
            *given, out=out, save_mean=unused[0], save_invstd=unused[1]
        )

    @staticmethod
    def batch_norm_backward_reduce(
        grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *_: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The sums of dy and of dy (x - m), and the gradients of weight and bias, over the own rows."""
        given = (
            wide(grad),
            wide(x),
            weight,
            mean,
            invstd**-2,
            None,
            None,
            False,
            0.0,
            [False, True, True],
        )
        _, to_weight, to_bias = torch.ops.aten.native_batch_norm_backward(*given)
        return to_bias, to_weight / invstd, to_weight, to_bias

    @staticmethod
    def batch_norm_backward_elemt(
        grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight, *sums
    ) -> Tensor:
        """dx = w s (dy - sum dy / n - (x - m) s^2 sum (dy (x - m)) / n), with s = 1 / deviation and the sums over all rows."""
        sum_dy, sum_dy_xmu, counts = sums
        scale, total = invstd if weight is None else invstd * weight, counts.sum()
        slope, offset = -scale * invstd.square() * sum_dy_xmu / total, -scale * sum_dy / total
        rest, *_ = torch.native_batch_norm(
            wide(x), slope, offset, mean, torch.ones_like(mean), False, 0.0, 0.0
        )
        return rest.addcmul_(wide(grad), scale.view(-1, *[1] * (x.ndim - 2))).to(x.dtype)


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _OfViews(torch.autograd.Function):
    """Batch norm of each view with the statistics of all processes' rows: one exchange forward, one backward, for all views.

    Counts travel with the statistics, so shares may differ. Nothing waits for the device.
    """

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: 'SyncBN'
    ) -> Tensor:
        ctx.kernels = torch if x.is_cuda else CPUKernels
        ctx.group = own_group(layer.group)
        x = dense(x, like=x)
        views, channels = x.chunk(layer.views), x.shape[1]
        own = [ctx.kernels.batch_norm_stats(view, layer.eps) for view in views]
        count = own[0][0].new_full((1,), views[0].numel() // channels)
        everyone = gather(torch.cat([*chain.from_iterable(own), count]).unsqueeze(0), ctx.group)
        *statistics, counts = everyone.split([*[channels] * 2 * len(views), 1], dim=1)
        settings = (
            layer.running_mean,
            layer.running_var,
            layer.momentum,
            layer.eps,
            counts.flatten(),
        )
        joined = [
            ctx.kernels.batch_norm_gather_stats_with_counts(means, means, invstds, *settings)
            for means, invstds in zip(statistics[::2], statistics[1::2])
        ]
        made = torch.empty_like(x)
        for view, (mean, invstd), out in zip(views, joined, made.chunk(len(views))):
            ctx.kernels.batch_norm_elemt(view, weight, bias, mean, invstd, layer.eps, out=out)
        ctx.save_for_backward(x, weight, counts, *chain.from_iterable(joined))
        return made

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        """The gradients of weight and bias are sums over the own rows, as DDP wants them."""
        x, weight, counts, *statistics = ctx.saved_tensors
        views, affine = len(statistics) // 2, weight is not None
        given = list(
            zip(dense(grad, like=x).chunk(views), x.chunk(views), statistics[::2], statistics[1::2])
        )
        own = [
            ctx.kernels.batch_norm_backward_reduce(*view, weight, True, affine, affine)
            for view in given
        ]
        sums = torch.cat(
            [total for sum_dy, sum_dy_xmu, *_ in own for total in (sum_dy, sum_dy_xmu)]
        )
        if get_world_size(ctx.group) > 1:
            dist.all_reduce(sums, group=ctx.group)
        sums, counts = sums.view(views, 2, -1), counts.flatten().to(torch.int32)
        to_x = [
            ctx.kernels.batch_norm_backward_elemt(*view, weight, *both, counts)
            for view, both in zip(given, sums)
        ]
        *_, to_weight, to_bias = zip(*own)
        of_layer = [reduce(torch.add, parts) if affine else None for parts in (to_weight, to_bias)]
        return torch.cat(to_x) if views > 1 else to_x[0], *of_layer, None


class _OfOwnViews(torch.autograd.Function):
    """The same on one process: a kernel forward and one backward for each view."""

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: 'SyncBN'
    ) -> Tensor:
        x = dense(x, like=x)
        made, statistics = torch.empty_like(x), []
        settings = (
            weight,
            bias,
            layer.running_mean,
            layer.running_var,
            True,
            layer.momentum,
            layer.eps,
        )
        for view, out in zip(x.chunk(layer.views), made.chunk(layer.views)):
            own = [
                x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32)) for _ in range(2)
            ]
            torch.ops.aten.native_batch_norm.out(
                view, *settings, out=out, save_mean=own[0], save_invstd=own[1]
            )
            statistics += own
        ctx.eps = layer.eps
        ctx.save_for_backward(x, weight, *statistics)
        return made

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight, *statistics = ctx.saved_tensors
        views, affine = len(statistics) // 2, weight is not None
        given = zip(
            dense(grad, like=x).chunk(views), x.chunk(views), statistics[::2], statistics[1::2]
        )
        made = [
            torch.ops.aten.native_batch_norm_backward(
                view_grad,
                view,
                weight,
                None,
                None,
                mean,
                invstd,
                True,
                ctx.eps,
                [True, affine, affine],
            )
            for view_grad, view, mean, invstd in given
        ]
        to_x, *of_layer = zip(*made)
        return (
            torch.cat(to_x),
            *(reduce(torch.add, parts) if affine else None for parts in of_layer),
            None,
        )


def dense(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor in one piece, with channels last where the other's are."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(
        like.ndim, torch.contiguous_format
    )
    channels_last = like.is_contiguous(memory_format=last)
    return tensor.contiguous(memory_format=last if channels_last else torch.contiguous_format)


@MODELS.register_module('SyncBN')
class SyncBN(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the batch of all processes, on GPUs by torch's kernels and on CPUs; untested on a GPU.

    torch's own SyncBatchNorm refuses CPU tensors, and on GPUs the host waits for the device three times in each layer, for
    counts of images that could differ. DDP refuses that class on a CPU, so this one is not derived from it. With one process,
    or in evaluation, it is plain batch norm. A batch of several views (`each_view`) keeps the statistics of each view apart.

    Args:
        group: how many neighbouring processes share their statistics, such as those of one machine; all unless given.
    """

    _check_input_dim = nn.SyncBatchNorm._check_input_dim

    def __init__(self, num_features: int, group: int | None = None, **kwargs) -> None:
        super().__init__(num_features, **kwargs)
        self.group = group
        self.views = 1  # in the batch of the current pass; see `each_view`

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or get_world_size() == self.views == 1:
            return super().forward(x)
        fused = torch.compiler.is_compiling() or x.device.type not in ('cpu', 'cuda', 'meta')
        if get_world_size() == 1 and fused:
            return torch.cat([super(SyncBN, self).forward(view) for view in x.chunk(self.views)])
        return self._of_views(x)

    @torch.compiler.disable  # traced collectives gave other gradients, so what is compiled ends before and begins after
    def _of_views(self, x: Tensor) -> Tensor:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(self.views)
        function = _OfOwnViews if get_world_size(own_group(self.group)) == 1 else _OfViews
        return function.apply(x, self.weight, self.bias, self)


@contextmanager
def views_in_batch(modules: Iterable[nn.Module], views: int) -> Iterator[None]:
    """Set how many views, one after another, the batch of a pass holds."""
    modules = list(modules)
    for module in modules:
        module.views = views
    try:
        yield
    finally:
        for module in modules:
            module.views = 1


def each_view(
    network: nn.Module, run: Callable[[nn.Module, Tensor], Tensor], views: Sequence[Tensor]
) -> list[Tensor]:
    """`run(network, view)` of each view, in their order; the batch statistics are each view's own.

    Views of one shape go through in one pass, so that the crops of two sizes take two passes, on one process or many. The
    rows of a pass are those of its first view, then those of the second. A view is alone where a norm over the batch is not
    a SyncBN. `run` returns a row for each image.
    """
    norms = norms_of(network)
    joins = all(isinstance(norm, SyncBN) for norm in norms)
    passes: dict[object, list[int]] = {}
    for number, view in enumerate(views):
        passes.setdefault(view.shape if joins else number, []).append(number)
    outputs: dict[int, Tensor] = {}
    for numbers in passes.values():
        batch = (
            torch.cat([views[number] for number in numbers])
            if len(numbers) > 1
            else views[numbers[0]]
        )
        with views_in_batch([network, *norms], len(numbers)):
            outputs.update(zip(numbers, run(network, batch).chunk(len(numbers))))
    return [outputs[number] for number in range(len(views))]


def first_view(network: nn.Module, rows: Tensor) -> Tensor:
    """Return the first view's rows of the output of a part of `network`, during a pass of `each_view`."""
    return rows.chunk(getattr(network, 'views', 1))[0]
