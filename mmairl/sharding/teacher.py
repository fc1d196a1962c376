"""The teacher's average under ZeRO: over shards, and in float32 where the weights are not.

Under stage 3 a parameter is an empty tensor outside of its module's forward pass, so that averaging parameters averages
nothing; each process's shards of teacher and student are averaged instead, which is element by element the same and
exchanges nothing. In bfloat16 or float16, a step of 1 - m = 1e-4 is less than what the last digit holds: the average is
kept in float32, sharded like the student's own float32 weights, which it follows, and the teacher that computes is a copy.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mmairl.models.teacher import Teacher, multi_tensor_average
from mmairl.sharding.layout import Layout, own_part


def average_shards(teacher: Sequence[nn.Parameter], student: Sequence[nn.Parameter], momentum: float) -> None:
    """Stage 3 in float32: T <- m T + (1 - m) S on the elements that this process keeps."""
    multi_tensor_average([own_part(t) for t in teacher], [own_part(s) for s in student], momentum)


def partition_between_steps(teacher: Teacher, optimizer) -> None:
    """Have stage 3 keep none of the teacher's parameters whole: a small one that stayed whole would be a step behind."""
    own = {id(parameter) for parameter in teacher.parameters()}
    for parameter in teacher.parameters():
        parameter.ds_persist = False
    for kept in (optimizer.persistent_parameters, optimizer.parameter_offload.persistent_parameters):
        kept[:] = [parameter for parameter in kept if id(parameter) not in own]


class Masters:
    """The teacher's weights in float32, in shards like the student's."""

    def __init__(self, teacher: Teacher, student: nn.Module, layout: Layout, start: dict[int, Tensor]) -> None:
        own, theirs = teacher.pairs(student)
        follower = {id(s): t for t, s in zip(own, theirs)}
        self.layout, self.shards = layout, layout.like_shards()
        # In the order of the student's parameters; the student's predictor, for one, may be without a follower.
        self.teachers = [[follower.get(id(s)) for s in parameters] for parameters in layout.parameters]
        if not layout.stage3:
            self._line_up()
        for number, shard in enumerate(self.shards):
            layout.fill(number, shard, [t if t is None else start[id(t)] for t in self.teachers[number]])
        self.publish()

    @torch.no_grad()
    def _line_up(self) -> None:
        """Lay the teacher that computes out as the student is, so that one collective a group renews it."""
        self.flats = [torch.empty_like(flat) for flat in self.layout.optimizer.bit16_groups_flat]
        for number, flat in enumerate(self.flats):
            flat.zero_()
            for teacher, offset in zip(self.teachers[number], self.layout.optimizer.round_robin_bit16_offsets[number]):
                if teacher is not None:
                    teacher.data = flat[offset : offset + teacher.numel()].view(teacher.shape)

    @torch.no_grad()
    def average(self, teacher: Sequence[nn.Parameter], student: Sequence[nn.Parameter], momentum: float) -> None:
        """T <- m T + (1 - m) S in float32, and the working copy renewed from it."""
        multi_tensor_average(self.shards, self.layout.shards, momentum)
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Round the average into the weights that compute."""
        if not self.layout.stage3:
            for flat, shard in zip(self.flats, self.shards):
                dist.all_gather_into_tensor(flat, shard.to(flat))
            return
        working, exact = [], []
        for number, shard in enumerate(self.shards):
            for piece in self.layout.own[number]:
                if (teacher := self.teachers[number][piece.index]) is not None:
                    working.append(teacher.ds_tensor[: piece.length])
                    exact.append(shard[piece.at : piece.at + piece.length])
        if working:
            torch._foreach_copy_(working, exact)

    def whole(self) -> dict[int, Tensor]:
        """The average as whole tensors by the identity of the teacher's parameters, in the first process."""
        found = {}
        for number, shard in enumerate(self.shards):
            whole = self.layout.whole(number, shard)
            pairs = zip(self.teachers[number], whole or [])
            found.update({id(teacher): value for teacher, value in pairs if teacher is not None})
        return found

    def load(self, values: dict[int, Tensor]) -> None:
        """Go on from whole tensors."""
        for number, shard in enumerate(self.shards):
            self.layout.fill(number, shard, [values.get(id(teacher)) for teacher in self.teachers[number]])
        self.publish()
