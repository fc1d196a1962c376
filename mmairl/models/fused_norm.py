"""Batch norm of each view, plus a residual, then ReLU: two Triton kernels forward and two backward.

Eager kernels read and write each activation once more for the addition and for ReLU. These kernels are checked in
Triton's interpreter. They have not run on a GPU yet.
"""

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from mmengine.dist import get_world_size
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from mmairl.models.processes import own_group
from mmairl.models.sync_norm import joined_statistics

ROWS = tl.constexpr(64)  # of a tile
COLUMNS = tl.constexpr(64)  # must divide the number of channels
TILES = 1024  # about eight for each multiprocessor


@triton.jit
def tile(first_row, rows, channels):
    """Return the channels of a tile in (views, channels), its elements, and which of its rows exist."""
    view = tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = first_row + tl.arange(0, ROWS)
    elements = (view * rows + row).to(tl.int64)[:, None] * channels + column[None, :]
    return view * channels + column, elements, (row < rows)[:, None]


@triton.jit
def sums_kernel(x, center, grad, y, out, rows, channels, share):
    """Sum g and g d per view and channel over a share of the rows; d is x - center.

    g is the gradient, where y > 0 if there is a y. Without a gradient, g is d.
    """
    first = tl.zeros((COLUMNS,), tl.float32)
    second = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, share, ROWS):
        channel, at, valid = tile(tl.program_id(0) * share + start, rows, channels)
        distance = tl.load(x + at, valid, 0.0).to(tl.float32) - tl.load(center + channel)
        value = distance
        if grad is not None:
            value = tl.load(grad + at, valid, 0.0).to(tl.float32)
        if y is not None:
            valid = valid & (tl.load(y + at, valid, 0.0) > 0)
        value = tl.where(valid, value, 0.0)
        first += tl.sum(value, 0)
        second += tl.sum(value * distance, 0)
    channel, _, _ = tile(0, rows, channels)
    size = tl.num_programs(2) * channels
    place = out + tl.program_id(0) * 2 * size + channel
    tl.store(place, first)
    tl.store(place + size, second)


@triton.jit
def combine_kernel(x, scale, shift, out, other, factor, y, masked_out, rows, channels):
    """Store x scale + shift, plus the residual (forward) or factor g (backward).

    Forward, ReLU follows if y is `out`. Backward, g is the gradient, where y > 0 if there is a y. It is also the
    gradient of the residual.
    """
    channel, at, valid = tile(tl.program_id(0) * ROWS, rows, channels)
    value = tl.load(x + at, valid, 0.0).to(tl.float32) * tl.load(scale + channel)
    value += tl.load(shift + channel)
    if other is not None:
        term = tl.load(other + at, valid, 0.0).to(tl.float32)
        if factor is not None:
            if y is not None:
                term = tl.where(tl.load(y + at, valid, 0.0) > 0, term, 0.0)
            if masked_out is not None:
                tl.store(masked_out + at, term, valid)
            term *= tl.load(factor + channel)
        value += term
    if factor is None and y is not None:
        value = tl.maximum(value, 0.0)
    tl.store(out + at, value, valid)


def channel_sums(x: Tensor, center: Tensor, grad: Tensor | None, y: Tensor | None) -> Tensor:
    """Return the two sums of `sums_kernel`, (2, views, channels)."""
    views, channels = center.shape
    rows = len(x) // views
    columns = channels // COLUMNS.value
    tiles = min(triton.cdiv(rows, ROWS.value), triton.cdiv(TILES, columns))
    share = triton.cdiv(rows, tiles * ROWS.value) * ROWS.value
    out = center.new_empty(tiles, 2, views, channels)
    sums_kernel[tiles, columns, views](x, center, grad, y, out, rows, channels, share)
    return out.sum(dim=0)


def combine(x: Tensor, scale: Tensor, shift: Tensor, *others: Tensor | None) -> None:
    """Run `combine_kernel`; `others` are its next tensors."""
    views, channels = scale.shape
    rows = len(x) // views
    grid = (triton.cdiv(rows, ROWS.value), channels // COLUMNS.value, views)
    combine_kernel[grid](x, scale, shift, *others, rows, channels)


def in_rows(x: Tensor) -> Tensor:
    """Return a (rows, channels) view of a dense tensor, channels last."""
    return x if x.ndim == 2 else x.permute(0, 2, 3, 1).flatten(0, 2)


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class FusedBatchNorm(torch.autograd.Function):
    """Batch norm of each view with the statistics of all processes; with `relu`, plus a residual, then ReLU."""

    @staticmethod
    def supports(x: Tensor, layer: nn.Module) -> bool:
        return layer.affine and x.ndim in (2, 4) and x.shape[1] % COLUMNS.value == 0

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        layer: nn.Module,
        relu: bool,
    ) -> Tensor:
        x = channels_last(x)
        y = torch.empty_like(x)
        rows, y_rows = in_rows(x), in_rows(y)
        count = len(rows) // layer.views
        center = (
            rows[::count].float().contiguous()
        )  # a row near the mean keeps the sums of squares accurate
        first, second = channel_sums(rows, center, None, None) / count
        invstd = (second - first.square() + layer.eps).rsqrt()
        joined, counts = joined_statistics(list(zip(center + first, invstd)), count, layer)
        mean, invstd = (torch.stack(statistic) for statistic in zip(*joined))
        scale = invstd * weight
        other = None if residual is None else in_rows(channels_last(residual))
        combine(
            rows, scale, bias - mean * scale, y_rows, other, None, y_rows if relu else None, None
        )
        ctx.group = own_group(layer.group)
        ctx.residual = residual is not None
        ctx.save_for_backward(x, y if relu else None, scale, mean, invstd, counts)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients. Those of weight and bias cover this process's rows, as DDP requires."""
        x, y, scale, mean, invstd, counts = ctx.saved_tensors
        rows, grad = in_rows(x), in_rows(channels_last(grad))
        y = None if y is None else in_rows(y)
        to_x = torch.empty_like(x)
        to_residual = torch.empty_like(x) if ctx.residual else None
        sums = channel_sums(rows, mean, grad, y)
        to_bias = sums[0].sum(dim=0)
        to_weight = (sums[1] * invstd).sum(dim=0)
        if get_world_size(ctx.group) > 1:
            dist.all_reduce(sums, group=ctx.group)
        sum_dy, sum_dy_xmu = sums / counts.sum()
        slope = -scale * invstd.square() * sum_dy_xmu
        offset = -scale * sum_dy - slope * mean
        masked_out = in_rows(to_residual) if ctx.residual else None
        combine(rows, slope, offset, in_rows(to_x), grad, scale, y, masked_out)
        return to_x, to_weight, to_bias, to_residual, None, None
