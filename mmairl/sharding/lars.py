"""LARS on ZeRO's flat shards, with the norms of whole layers."""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from mmairl.optim.lars import multi_tensor_lars
from mmairl.sharding.layout import Layout, Piece


class ShardedUpdate:
    """Stands in for `LARS.update`: cuts a flat shard along its layers and joins their norms by one all-reduce a step."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], **hyper) -> None:
        for param, grad, buffer in zip(params, grads, buffers):
            if not hyper['adapt']:
                multi_tensor_lars([param], [grad], [buffer], **hyper)
                continue
            number = next(at for at, shard in enumerate(self.layout.shards) if shard is param)
            pieces, tensors = self.layout.own[number], len(self.layout.parameters[number])
            cut = [[flat[p.at : p.at + p.length] for p in pieces] for flat in (param, grad, buffer)]
            norms = partial(_joined_norms, pieces=pieces, tensors=tensors, like=param)
            multi_tensor_lars(*cut, norms=norms, **hyper)


def _joined_norms(
    params: list[Tensor], grads: list[Tensor], *, pieces: list[Piece], tensors: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """|w| and |g| of the layers that these pieces are cut from: squares are added up over the processes."""
    squares = torch.zeros(2, tensors, device=like.device, dtype=like.dtype)
    index = torch.tensor([piece.index for piece in pieces], device=like.device, dtype=torch.int64)
    for row, parts in zip(squares, (params, grads)):
        if parts:
            row[index] = torch.stack(torch._foreach_norm(parts)).square()
    exchanged = squares.cuda() if dist.get_backend() == 'nccl' else squares
    dist.all_reduce(exchanged)
    return tuple(exchanged.to(like.device).sqrt()[:, index])
