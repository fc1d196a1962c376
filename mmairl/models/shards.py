"""Tensors of which each process may have a part only (ZeRO's DTensors)."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def own_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This process's part of each; a whole tensor is its own."""
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
