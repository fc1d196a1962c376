"""Rows of all processes by one collective, with and without a gradient."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from mmengine.dist import get_rank, get_world_size
from torch import Tensor


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes in rank order, without gradient."""
    everyone, wait = start_gather(rows)
    if wait is not None:
        wait()
    return everyone


def start_gather(rows: Tensor) -> tuple[Tensor, Callable[[], object] | None]:
    """The output buffer and a function that waits until it is filled; None where there is nothing to wait for."""
    if get_world_size() == 1:
        return rows, None
    everyone = rows.new_empty(get_world_size() * len(rows), *rows.shape[1:])
    return everyone, dist.all_gather_into_tensor(everyone, rows.contiguous(), async_op=True).wait


class _GatherWithGradient(torch.autograd.Function):
    """Gather forward; backward, every process's gradient of these rows is summed."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        return gather(rows)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(get_world_size())[get_rank()]


def gather_with_gradient(rows: Tensor) -> Tensor:
    """The rows of all processes in rank order; gradients go back to the process that each row came from.

    With a loss that is a mean over the process's own rows, DDP's average of the gradients is that of the whole batch.
    """
    return rows if get_world_size() == 1 else _GatherWithGradient.apply(rows)
