"""Batch norm of each view, plus a residual, then ReLU: two Triton kernels forward and two backward.

Eager kernels read and write each activation once more for the addition and for ReLU. These kernels are checked in
Triton's interpreter. They have not run on a GPU yet.
"""

from functools import cache

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from mmengine.dist import get_world_size
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from mmairl.models.processes import own_group
from mmairl.models.sync_norm import join_statistics, joined_statistics

ROWS = tl.constexpr(64)  # that are loaded at a time
COLUMNS = tl.constexpr(64)  # must divide the number of channels
PROGRAMS = 1024  # of a reduction, per view: about eight for each multiprocessor


@triton.jit
def tile(first_row, rows, channels):
    """Return a tile's columns, its channels in (views, channels), its elements, and which of its rows exist."""
    view = tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = first_row + tl.arange(0, ROWS)
    elements = (view * rows + row).to(tl.int64)[:, None] * channels + column[None, :]
    return column, view * channels + column, elements, (row < rows)[:, None]


@triton.jit
def statistics_kernel(x, means, invstds, rows, channels, share, eps):
    """Store mean and inverse deviation of a share of the rows, computed from distances to its first row."""
    start = tl.program_id(0) * share
    column, _, at, valid = tile(start, rows, channels)
    center = tl.load(x + (tl.program_id(2) * rows + start).to(tl.int64) * channels + column)
    center = center.to(tl.float32)
    first = tl.zeros((COLUMNS,), tl.float32)
    second = tl.zeros((COLUMNS,), tl.float32)
    for offset in range(0, share, ROWS):
        _, _, at, valid = tile(start + offset, rows, channels)
        distance = tl.load(x + at, valid, 0.0).to(tl.float32) - center
        distance = tl.where(valid, distance, 0.0)
        first += tl.sum(distance, 0)
        second += tl.sum(distance * distance, 0)
    count = tl.minimum(share, rows - start)
    first /= count
    place = (tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)) * channels + column
    tl.store(means + place, center + first)
    tl.store(invstds + place, tl.rsqrt(second / count - first * first + eps))


@triton.jit
def normalize_kernel(
    x, mean, invstd, weight, bias, residual, y, rows, channels, RELU: tl.constexpr
):
    column, channel, at, valid = tile(tl.program_id(0) * ROWS, rows, channels)
    value = tl.load(x + at, valid, 0.0).to(tl.float32) - tl.load(mean + channel)
    value = value * (tl.load(invstd + channel) * tl.load(weight + column)) + tl.load(bias + column)
    if residual is not None:
        value += tl.load(residual + at, valid, 0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value, valid)


@triton.jit
def masked(grad, y, at, valid):
    """Return the gradient before ReLU; without y there was none."""
    value = tl.load(grad + at, valid, 0.0).to(tl.float32)
    if y is not None:
        value = tl.where(tl.load(y + at, valid, 0.0) > 0, value, 0.0)
    return value


@triton.jit
def sums_kernel(x, mean, grad, y, sums, rows, channels, share):
    """Store the sums of dy and of dy (x - m) over a share of the rows."""
    first = tl.zeros((COLUMNS,), tl.float32)
    second = tl.zeros((COLUMNS,), tl.float32)
    _, channel, _, _ = tile(0, rows, channels)
    for offset in range(0, share, ROWS):
        _, _, at, valid = tile(tl.program_id(0) * share + offset, rows, channels)
        value = masked(grad, y, at, valid)
        first += tl.sum(value, 0)
        second += tl.sum(value * (tl.load(x + at, valid, 0.0) - tl.load(mean + channel)), 0)
    size = tl.num_programs(2) * channels
    place = sums + tl.program_id(0) * 2 * size + channel
    tl.store(place, first)
    tl.store(place + size, second)


@triton.jit
def gradient_kernel(
    x, mean, invstd, weight, grad, y, sums, total, to_x, to_residual, rows, channels
):
    """Store dx = w s (dy - sum dy / n - (x - m) s^2 sum (dy (x - m)) / n); s is 1 / deviation."""
    column, channel, at, valid = tile(tl.program_id(0) * ROWS, rows, channels)
    value = masked(grad, y, at, valid)
    if to_residual is not None:
        tl.store(to_residual + at, value, valid)
    scale = tl.load(invstd + channel)
    distance = tl.load(x + at, valid, 0.0) - tl.load(mean + channel)
    slope = tl.load(sums + tl.num_programs(2) * channels + channel) * scale * scale
    value -= (tl.load(sums + channel) + distance * slope) / tl.load(total)
    tl.store(to_x + at, value * (scale * tl.load(weight + column)), valid)


def reduction(rows: int, channels: int) -> tuple[int, int]:
    """Return the number of programs that share the rows of a view, and the rows of each."""
    programs = triton.cdiv(PROGRAMS * COLUMNS.value, channels)
    share = triton.cdiv(rows, programs * ROWS.value) * ROWS.value
    return triton.cdiv(rows, share), share


@cache
def share_counts(rows: int, share: int, device: torch.device) -> Tensor:
    """Return the number of rows of each program."""
    starts = torch.arange(0, rows, share, dtype=torch.float32, device=device)
    return (rows - starts).clamp(max=share)


def statistics(x: Tensor, views: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and inverse deviation of shares of the rows, (views, shares, channels), and the shares' sizes."""
    rows, channels = len(x) // views, x.shape[1]
    programs, share = reduction(rows, channels)
    means = x.new_empty(views, programs, channels, dtype=torch.float32)
    invstds = torch.empty_like(means)
    grid = (programs, channels // COLUMNS.value, views)
    statistics_kernel[grid](x, means, invstds, rows, channels, share, eps)
    return means, invstds, share_counts(rows, share, x.device)


def gradient_sums(x: Tensor, mean: Tensor, grad: Tensor, y: Tensor | None) -> Tensor:
    """Return the sums of dy and of dy (x - m), (2, views, channels)."""
    views, channels = mean.shape
    rows = len(x) // views
    programs, share = reduction(rows, channels)
    sums = mean.new_empty(programs, 2, views, channels)
    grid = (programs, channels // COLUMNS.value, views)
    sums_kernel[grid](x, mean, grad, y, sums, rows, channels, share)
    return sums.sum(dim=0)


def each_tile(
    kernel: triton.JITFunction, views: int, x: Tensor, *tensors: Tensor | None, **flags: bool
) -> None:
    """Run a kernel on all tiles of x."""
    rows, channels = len(x) // views, x.shape[1]
    grid = (triton.cdiv(rows, ROWS.value), channels // COLUMNS.value, views)
    kernel[grid](x, *tensors, rows, channels, **flags)


def in_rows(x: Tensor | None) -> Tensor | None:
    """Return a (rows, channels) tensor, channels last; a view if x is laid out like that."""
    if x is None:
        return None
    if x.ndim == 2:
        return x.contiguous()
    return x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).flatten(0, 2)


class FusedBatchNorm(torch.autograd.Function):
    """Batch norm of each view with the statistics of all processes; with `relu`, plus a residual, then ReLU."""

    @staticmethod
    def supports(x: Tensor, layer: nn.Module) -> bool:
        rows = x.is_contiguous(
            memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format
        )
        return layer.affine and x.ndim in (2, 4) and rows and x.shape[1] % COLUMNS.value == 0

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
        y = torch.empty_like(x)
        rows = in_rows(x)
        ctx.group = own_group(layer.group)
        alone = get_world_size(ctx.group) == 1
        *own, counts = statistics(rows, layer.views, layer.eps)
        joined = [join_statistics(*view, counts, layer, track=alone) for view in zip(*own)]
        if not alone:
            joined, counts = joined_statistics(joined, len(rows) // layer.views, layer)
        mean, invstd = (torch.stack(statistic) for statistic in zip(*joined))
        tensors = (mean, invstd, weight, bias, in_rows(residual), in_rows(y))
        each_tile(normalize_kernel, layer.views, rows, *tensors, RELU=relu)
        ctx.residual = residual is not None
        ctx.save_for_backward(x, y if relu else None, mean, invstd, weight, counts.sum())
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients. Those of weight and bias cover this process's rows, as DDP requires."""
        x, y, mean, invstd, weight, total = ctx.saved_tensors
        to_x = torch.empty_like(x)
        to_residual = torch.empty_like(x) if ctx.residual else None
        rows, grad, y = map(in_rows, (x, grad, y))
        sums = gradient_sums(rows, mean, grad, y)
        to_bias = sums[0].sum(dim=0)
        to_weight = (sums[1] * invstd).sum(dim=0)
        if get_world_size(ctx.group) > 1:
            dist.all_reduce(sums, group=ctx.group)
        tensors = (mean, invstd, weight, grad, y, sums, total, in_rows(to_x), in_rows(to_residual))
        each_tile(gradient_kernel, len(mean), rows, *tensors)
        return to_x, to_weight, to_bias, to_residual, None, None
