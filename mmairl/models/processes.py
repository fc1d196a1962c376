"""Several processes: the rows of all of them, tensors of which each has a part, and the network below their wrapper."""

from collections.abc import Sequence
from functools import cache

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from mmengine.model import is_model_wrapper
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather

from mmairl.errors import UserError


def gather(rows: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The rows of all processes, or those of a group, in rank order, without gradient."""
    if (count := get_world_size(group)) == 1:
        return rows
    everyone = rows.new_empty(count * len(rows), *rows.shape[1:])
    dist.all_gather_into_tensor(everyone, rows.contiguous(), group=group)
    return everyone


def own_group(size: int | None) -> dist.ProcessGroup | None:
    """The group of so many neighbouring ranks that this process is in; None are all. All processes make it together."""
    return None if size is None or get_world_size() == 1 else _own_group(size, dist.group.WORLD)


@cache
def _own_group(size: int, everyone: dist.ProcessGroup) -> dist.ProcessGroup:
    if get_world_size() % size:
        raise UserError(
            f"{get_world_size()} processes cannot be cut into groups of {size}; change the norm_cfg's group"
        )
    return dist.new_subgroups(size)[0]


def gather_with_gradient(rows: Tensor) -> Tensor:
    """The rows of all processes in rank order; gradients go back to the process that each row came from.

    With a loss that is a mean over the process's own rows, DDP's average of the gradients is that of the whole batch.
    """
    return rows if get_world_size() == 1 else torch.cat(all_gather(rows))


def own_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This process's part of each of ZeRO's DTensors; a whole tensor is its own."""
    return [tensor.to_local() if hasattr(tensor, 'device_mesh') else tensor for tensor in tensors]


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each whole tensor; of parts, the squares are added up over the processes in one exchange.

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
    """The runner's network itself, without the wrapper that joins several processes."""
    return runner.model.module if is_model_wrapper(runner.model) else runner.model
