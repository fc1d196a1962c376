"""Normalize each view of a batch, add a residual and apply ReLU in a single Triton kernel.

torch's SyncBN kernels compute the batch statistics, and the sums that the gradients require. A single Triton kernel
then computes the output in the forward pass, and also the gradient of the input in the backward pass. This kernel has
been tested in Triton's interpreter, but not on a GPU yet.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from mmairl.models.processes import own_group
from mmairl.models.sync_norm import dense, gradient_sums, view_statistics

# Each block of the kernel processes this many rows and columns. COLUMNS must divide the number of channels.
ROWS = tl.constexpr(64)
COLUMNS = tl.constexpr(64)


@triton.jit
def affine_kernel(x, center, slope, offset, other, factor, y, rows, channels, RELU: tl.constexpr):
    """Store (x - center) * slope + offset + other * factor in y, after ReLU if RELU is true.

    Each view has its own center, slope, offset and factor.
    """
    view = tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = view * channels + column
    at = (view * rows + row).to(tl.int64)[:, None] * channels + column[None, :]
    valid = (row < rows)[:, None]
    value = tl.load(x + at, valid, 0.0).to(tl.float32) - tl.load(center + channel)
    value = value * tl.load(slope + channel) + tl.load(offset + channel)
    if other is not None:
        value += tl.load(other + at, valid, 0.0).to(tl.float32) * tl.load(factor + channel)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value, valid)


def affine(
    x: Tensor,
    center: Tensor,
    slope: Tensor,
    offset: Tensor,
    other: Tensor | None,
    factor: Tensor,
    relu: bool = False,
) -> Tensor:
    """Run the kernel on a batch of views.

    In memory, `x` and `other` are matrices of (views * rows, channels), where `rows` is the number of rows per view. The
    arguments center, slope, offset and factor are matrices of (views, channels).
    """
    y = torch.empty_like(x)
    views, channels = center.shape
    rows = x.numel() // center.numel()
    grid = (triton.cdiv(rows, ROWS.value), channels // COLUMNS.value, views)
    affine_kernel[grid](x, center, slope, offset, other, factor, y, rows, channels, RELU=relu)
    return y


class FusedBatchNorm(torch.autograd.Function):
    """Normalize each view, add the residual, and apply ReLU if `relu` is true.

    The statistics of a view are computed over the processes of the layer's group (`SyncBN.group`).
    """

    @staticmethod
    def supports(x: Tensor, layer: nn.Module) -> bool:
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        in_rows = x.ndim in (2, 4) and x.is_contiguous(memory_format=layout)
        return layer.affine and in_rows and x.shape[1] % COLUMNS.value == 0

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
        means, deviations, counts = view_statistics(x, layer)
        mean = torch.stack(means)
        invstd = torch.stack(deviations)
        other = None if residual is None else dense(residual, like=x)
        offset = bias.repeat(len(mean), 1)
        y = affine(x, mean, invstd * weight, offset, other, torch.ones_like(mean), relu)
        ctx.group = own_group(layer.group)
        ctx.residual = residual is not None
        ctx.save_for_backward(x, y if relu else None, mean, invstd, weight, counts)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs.

        The gradients of weight and bias are sums over the rows of this process only, because DDP averages them later.
        """
        x, y, mean, invstd, weight, counts = ctx.saved_tensors
        grad = dense(grad, like=x)
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        sums, to_weight, to_bias = gradient_sums(grad, x, weight, mean, invstd, ctx.group)
        sum_dy, sum_dy_xmu = sums.unbind(dim=1)
        scale = invstd * weight
        slope = -scale * invstd.square() * sum_dy_xmu / counts.sum()
        offset = -scale * sum_dy / counts.sum()
        to_x = affine(x, mean, slope, offset, grad, scale)
        return to_x, to_weight, to_bias, grad if ctx.residual else None, None, None
