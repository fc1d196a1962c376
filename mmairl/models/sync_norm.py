"""The autograd functions of SyncBN: batch norm of each view in a batch, in one process or over several.

In the formulas, x is the input, m and s are its mean and inverse standard deviation, w is the weight, and dx and dy are the
gradients of the input and of the output.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from mmairl.models.heads.base import widened
from mmairl.models.processes import gather, own_group

aten = torch.ops.aten


class CPUKernels:
    """CPU versions of torch's kernels for batch norm over processes. torch has these kernels for GPUs only."""

    @staticmethod
    def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        mean, var = torch.batch_norm_update_stats(widened(x), None, None, 0.0)
        return mean, torch.rsqrt(var + eps)

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        _: Tensor,
        means: Tensor,
        invstds: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Combine the statistics of the processes, and update the running statistics."""
        shares = counts.unsqueeze(1)
        total = counts.sum()
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
        """Normalize x, apply weight and bias, and write the result to `out`."""
        unused = mean.new_empty(0)
        aten.native_batch_norm.out(
            x,
            weight,
            bias,
            mean,
            invstd**-2,
            False,
            0.0,
            0.0,
            out=out,
            save_mean=unused,
            save_invstd=unused.clone(),
        )

    @staticmethod
    def batch_norm_backward_reduce(
        grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *_: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the sums of dy and of dy (x - m) in this process, and the gradients of weight and bias."""
        _, to_weight, to_bias = aten.native_batch_norm_backward(
            widened(grad),
            widened(x),
            weight,
            mean,
            invstd**-2,
            None,
            None,
            False,
            0.0,
            [False, True, True],
        )
        return to_bias, to_weight / invstd, to_weight, to_bias

    @staticmethod
    def batch_norm_backward_elemt(
        grad: Tensor,
        x: Tensor,
        mean: Tensor,
        invstd: Tensor,
        weight: Tensor | None,
        sum_dy: Tensor,
        sum_dy_xmu: Tensor,
        counts: Tensor,
    ) -> Tensor:
        """Return the gradient dx = w s (dy - sum dy / n - (x - m) s^2 sum (dy (x - m)) / n).

        The sums are over the n rows of all processes in the group.
        """
        scale = invstd if weight is None else invstd * weight
        total = counts.sum()
        slope = -scale * invstd.square() * sum_dy_xmu / total
        offset = -scale * sum_dy / total
        ones = torch.ones_like(mean)
        rest, *_ = torch.native_batch_norm(widened(x), slope, offset, mean, ones, False, 0.0, 0.0)
        return rest.addcmul_(widened(grad), scale.view(-1, *[1] * (x.ndim - 2))).to(x.dtype)


class SharedBatchNorm(torch.autograd.Function):
    """Normalize each view by its statistics over the processes of the layer's group (`SyncBN.group`).

    All views share one collective operation in the forward pass and one in the backward pass. Each process sends its number
    of rows with its statistics, so processes may have different numbers of rows, and the host does not wait for the device.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: nn.Module
    ) -> Tensor:
        x = dense(x, like=x)
        mean, invstd, counts = view_statistics(x, layer)
        y = torch.empty_like(x)
        for view, m, s, out in zip(x.chunk(layer.views), mean, invstd, y.chunk(layer.views)):
            kernels_of(x).batch_norm_elemt(view, weight, bias, m, s, layer.eps, out=out)
        ctx.group = own_group(layer.group)
        ctx.save_for_backward(x, weight, counts, *mean, *invstd)
        return y

    @staticmethod
    def backward(
        ctx: FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        """Return the gradients of all inputs.

        The gradients of weight and bias are sums over the rows of this process only, because DDP averages them later.
        """
        x, weight, counts, *statistics = ctx.saved_tensors
        views = len(statistics) // 2
        mean = statistics[:views]
        invstd = statistics[views:]
        grad = dense(grad, like=x)
        sums, to_weight, to_bias = gradient_sums(grad, x, weight, mean, invstd, ctx.group)
        counts = counts.to(torch.int32)
        to_x = [
            kernels_of(x).batch_norm_backward_elemt(dy, view, m, s, weight, *both, counts)
            for dy, view, m, s, both in zip(grad.chunk(views), x.chunk(views), mean, invstd, sums)
        ]
        return joined_views(to_x), to_weight, to_bias, None


def kernels_of(x: Tensor) -> Any:
    return torch if x.is_cuda else CPUKernels


def view_statistics(
    x: Tensor, layer: nn.Module
) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor]:
    """Compute each view's statistics over the processes of the layer's group, and update the running statistics view by view.

    Returns:
        Mean and inverse standard deviation of each view, and the number of rows per view in each process.
    """
    kernels = kernels_of(x)
    own = [kernels.batch_norm_stats(view, layer.eps) for view in x.chunk(layer.views)]
    rows = x.numel() // (x.shape[1] * layer.views)
    values = torch.cat([*chain.from_iterable(own), own[0][0].new_full((1,), rows)])
    everyone = gather(values.unsqueeze(0), own_group(layer.group))
    counts = everyone[:, -1]
    by_view = everyone[:, :-1].unflatten(1, (layer.views, 2, -1)).permute(1, 2, 0, 3)
    running = layer.running_mean, layer.running_var, layer.momentum, layer.eps
    joined = [
        kernels.batch_norm_gather_stats_with_counts(means, means, invstds, *running, counts)
        for means, invstds in by_view
    ]
    mean, invstd = zip(*joined)
    return mean, invstd, counts


def gradient_sums(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Sequence[Tensor],
    invstd: Sequence[Tensor],
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the sums of dy and of dy (x - m) over the group, and this process's gradients of weight and bias.

    The sums are one tensor of shape (views, 2, channels): for each view, first the sum of dy, then the sum of dy (x - m).
    """
    views = len(mean)
    affine = weight is not None
    own = [
        kernels_of(x).batch_norm_backward_reduce(dy, view, m, s, weight, True, affine, affine)
        for dy, view, m, s in zip(grad.chunk(views), x.chunk(views), mean, invstd)
    ]
    *own_sums, to_weight, to_bias = zip(*own)
    sums = torch.cat([*chain.from_iterable(zip(*own_sums))]).view(views, 2, -1)
    if get_world_size(group) > 1:
        dist.all_reduce(sums, group=group)
    return sums, added(to_weight, affine), added(to_bias, affine)


class LocalBatchNorm(torch.autograd.Function):
    """Normalize each view by its statistics in this process. Each pass, forward or backward, calls one kernel per view."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: nn.Module
    ) -> Tensor:
        x = dense(x, like=x)
        y = torch.empty_like(x)
        statistics = []
        for view, out in zip(x.chunk(layer.views), y.chunk(layer.views)):
            mean, invstd = (widened(x.new_empty(0)) for _ in range(2))
            aten.native_batch_norm.out(
                view,
                weight,
                bias,
                layer.running_mean,
                layer.running_var,
                True,
                layer.momentum,
                layer.eps,
                out=out,
                save_mean=mean,
                save_invstd=invstd,
            )
            statistics += [mean, invstd]
        ctx.eps = layer.eps
        ctx.save_for_backward(x, weight, *statistics)
        return y

    @staticmethod
    def backward(
        ctx: FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight, *statistics = ctx.saved_tensors
        views = len(statistics) // 2
        affine = weight is not None
        grads = dense(grad, like=x).chunk(views)
        own = [
            aten.native_batch_norm_backward(
                dy, view, weight, None, None, mean, invstd, True, ctx.eps, [True, affine, affine]
            )
            for dy, view, mean, invstd in zip(
                grads, x.chunk(views), statistics[::2], statistics[1::2]
            )
        ]
        to_x, to_weight, to_bias = zip(*own)
        return joined_views(to_x), added(to_weight, affine), added(to_bias, affine), None


def joined_views(views: Sequence[Tensor]) -> Tensor:
    return torch.cat(views) if len(views) > 1 else views[0]


def added(gradients: Sequence[Tensor], affine: bool) -> Tensor | None:
    return reduce(torch.add, gradients) if affine else None


def dense(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the tensor in contiguous memory, in channels-last layout if `like` has that layout."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(like.ndim)
    if last is not None and like.is_contiguous(memory_format=last):
        return tensor.contiguous(memory_format=last)
    return tensor.contiguous()
