"""Helpers for training with several processes: gather rows, read sharded tensors, unwrap models."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from mmengine.model import is_model_wrapper
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather


def gather(rows: Tensor) -> Tensor:
    """Return the rows of all processes in rank order. No gradients flow to other processes."""
    count = get_world_size()
    if count == 1:
        return rows
    everyone = rows.new_empty(count * len(rows), *rows.shape[1:])
    dist.all_gather_into_tensor(everyone, rows.contiguous())
    return everyone


def gather_with_gradient(rows: Tensor) -> Tensor:
    """Return the rows of all processes in rank order. Gradients flow back to the process from which a row came.

    DDP averages the gradients over the processes, so the parameters get the gradient of the mean of all processes' losses.
    This gradient is correct if the loss of a process is the mean over its own rows. It is also correct if all processes
    compute the same loss over all rows.
    """
    return rows if get_world_size() == 1 else torch.cat(all_gather(rows))


def own_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return this process's part of each tensor that ZeRO has sharded. Return other tensors unchanged."""
    return [tensor.to_local() if hasattr(tensor, 'device_mesh') else tensor for tensor in tensors]


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of each tensor.

    If the tensors are sharded, a single all-reduce sums the squared norms of their parts.

    >>> norms([torch.ones(4), torch.full((9,), 2.0)])
    tensor([2., 6.])
    """
    own = torch.stack(torch._foreach_norm(own_parts(tensors)))
    if not hasattr(tensors[0], 'device_mesh'):
        return own
    squares = own.square().to(tensors[0].device_mesh.device_type)
    dist.all_reduce(squares)
    return squares.sqrt().to(own.device)


def network_of(runner: object) -> nn.Module:
    """Return the runner's model without the wrapper, such as DDP, that training with several processes requires."""
    return runner.model.module if is_model_wrapper(runner.model) else runner.model
