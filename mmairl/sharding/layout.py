"""Where the elements of each parameter lie in the flat shards that DeepSpeed's ZeRO gives to an optimizer.

ZeRO lines the parameters of an optimizer's group up as one flat vector. Stages 1 and 2 cut this vector into one part for
each process, wherever the cut falls; stage 3 cuts each parameter and lines its parts up. Either way an optimizer sees one
tensor where there were a hundred, so that a rule that asks for a layer's norm (LARS) is silently wrong. `Layout` says
which elements of which parameter a shard holds, and puts whole parameters together and takes them apart by that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET = 50_000_000  # elements that DeepSpeed exchanges at once; its own 500 million are 2 GB of buffer
CHUNK = 1 << 26  # elements of a shard that are on their way to the first process at a time


@dataclass(frozen=True)
class Piece:
    """`length` elements of the `index`-th parameter of a shard: from `start` on in the parameter, from `at` on in the shard."""

    index: int
    start: int
    at: int
    length: int


class Layout:
    """The shards of one engine's optimizer, each a flat float32 tensor of weights, as long in every process."""

    def __init__(self, optimizer) -> None:
        self.optimizer = optimizer
        self.stage3 = hasattr(optimizer, 'fp16_partitioned_groups_flat')
        if self.stage3:
            self.shards: list[Tensor] = optimizer.fp32_partitioned_groups_flat
            self.parameters: list[list[nn.Parameter]] = optimizer.fp16_groups
            self.groups = [optimizer.sub_group_to_group_id[number] for number in range(len(self.shards))]
        else:
            self.shards = optimizer.single_partition_of_fp32_groups
            self.parameters = optimizer.round_robin_bit16_groups
            self.groups = list(range(len(self.shards)))

    def pieces(self, number: int, rank: int | None = None) -> list[Piece]:
        """What the shard of this number holds in this process, or in another."""
        rank = dist.get_rank() if rank is None else rank
        return self._of_stage3(number, rank) if self.stage3 else self._of_stages12(number, rank)

    def _of_stage3(self, number: int, rank: int) -> list[Piece]:
        found, at = [], 0
        for index, parameter in enumerate(self.parameters[number]):
            part = parameter.partition_numel()
            start = rank * part
            length = min(part, parameter.ds_numel - start)
            if length > 0:
                found.append(Piece(index, start, at, length))
            at += part
        return found

    def _of_stages12(self, number: int, rank: int) -> list[Piece]:
        size = len(self.shards[number])
        low, high, found = rank * size, (rank + 1) * size, []
        offsets = self.optimizer.round_robin_bit16_offsets[number]
        for index, (parameter, offset) in enumerate(zip(self.parameters[number], offsets)):
            start, end = max(offset, low), min(offset + parameter.numel(), high)
            if start < end:
                found.append(Piece(index, start - offset, start - low, end - start))
        return found

    @cached_property
    def own(self) -> list[list[Piece]]:
        """The pieces that this process's shards hold."""
        return [self.pieces(number) for number in range(len(self.shards))]

    def like_shards(self) -> list[Tensor]:
        """Zeros in the form of the shards, for what is kept of each element."""
        return [torch.zeros_like(shard, requires_grad=False) for shard in self.shards]

    @torch.no_grad()
    def fill(self, number: int, shard: Tensor, whole: Sequence[Tensor | None]) -> None:
        """Take this process's elements out of whole parameters; where one is missing, leave what is there."""
        for piece in self.own[number]:
            if (values := whole[piece.index]) is not None:
                part = values.detach().reshape(-1)[piece.start : piece.start + piece.length]
                shard[piece.at : piece.at + piece.length].copy_(part)

    @torch.no_grad()
    def whole(self, number: int, shard: Tensor) -> list[Tensor] | None:
        """Every parameter of this shard put together in the first process's host memory; None in the others."""
        everyone = to_first(shard)
        if everyone is None:
            return None
        found = [torch.empty(shape_of(parameter), dtype=shard.dtype) for parameter in self.parameters[number]]
        for rank, part in enumerate(everyone):
            for piece in self.pieces(number, rank):
                flat = found[piece.index].view(-1)
                flat[piece.start : piece.start + piece.length] = part[piece.at : piece.at + piece.length]
        return found


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """The parameter's shape, which stage 3 hides."""
    return getattr(parameter, 'ds_shape', parameter.shape)


def own_part(parameter: nn.Parameter) -> Tensor:
    """The elements that this process keeps of a parameter under stage 3, without what pads them, which is not initialised."""
    kept = parameter.ds_tensor.view(-1)
    return kept[: max(0, min(len(kept), parameter.ds_numel - dist.get_rank() * len(kept)))]


def to_first(tensor: Tensor) -> list[Tensor] | None:
    """Every process's flat tensor, all of one length, in the first process's host memory; None in the others.

    In chunks, since the first process's device could not hold everybody's shards.
    """
    first, device = dist.get_rank() == 0, 'cuda' if dist.get_backend() == 'nccl' else 'cpu'
    found = [torch.empty(len(tensor), dtype=tensor.dtype) for _ in range(dist.get_world_size())] if first else None
    for begin in range(0, len(tensor), CHUNK):
        chunk = tensor[begin : begin + CHUNK].detach().to(device).contiguous()
        parts = [torch.empty_like(chunk) for _ in range(dist.get_world_size())] if first else None
        dist.gather(chunk, parts, dst=0)
        for one, part in zip(found or [], parts or []):
            one[begin : begin + CHUNK].copy_(part)
    return found
