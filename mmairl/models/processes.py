"""Several processes: the rows of all of them, and tensors of which each has a part."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from torch import Tensor
from torch.distributed.nn.functional import all_gather


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
    found = torch.stack(torch._foreach_norm(own_parts(tensors)))
    if not hasattr(tensors[0], 'device_mesh'):
        return found
    squares = found.square().to(tensors[0].device_mesh.device_type)
    dist.all_reduce(squares)
    return squares.sqrt().to(found.device)
