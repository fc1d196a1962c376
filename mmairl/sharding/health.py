"""The health hook's norms where weights and gradients are in shards: each process adds up the squares of what it has."""

from collections.abc import Sequence

import torch
from mmengine.dist import all_reduce
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mmairl.models.teacher import Teacher
from mmairl.sharding.layout import Layout, own_part
from mmairl.sharding.teacher import Masters


class ShardWatch:
    """Measures one step; all processes call it together, before the step, and `values` is filled during it."""

    def __init__(self, optimizer: Optimizer, layout: Layout, masters: Masters | None) -> None:
        self.optimizer, self.layout, self.masters = optimizer, layout, masters

    def __call__(
        self, parts: dict[str, list[nn.Parameter]], model: nn.Module, values: dict[str, Tensor]
    ) -> list[RemovableHandle]:
        if isinstance(getattr(model, 'teacher', None), Teacher):
            values['teacher_distance'] = self.teacher_distance(model)
        learning = {id(parameter) for group in self.layout.parameters for parameter in group}
        parts = {name: part for name, part in parts.items() if any(id(parameter) in learning for parameter in part)}
        row = {id(parameter): row for row, part in enumerate(parts.values()) for parameter in part}
        squares = torch.zeros(3, len(parts), device=self.layout.shards[0].device)  # of gradients, weights and changes
        before: dict[int, Tensor] = {}

        def number_of(optimizer: Optimizer) -> int:
            """The shard that is about to move, or has: DeepSpeed steps one at a time."""
            shard = next(p for group in optimizer.param_groups for p in group['params'])
            return next(number for number, other in enumerate(self.layout.shards) if other is shard)

        def add(kind: int, number: int, shard: Tensor) -> None:
            for piece in self.layout.own[number]:
                at = row[id(self.layout.parameters[number][piece.index])]
                squares[kind, at] += torch.linalg.vector_norm(shard[piece.at : piece.at + piece.length]).square()

        @torch.no_grad()
        def pre(optimizer: Optimizer, *_: object) -> None:
            number = number_of(optimizer)
            shard = self.layout.shards[number]
            before[number] = shard.detach().clone()
            add(0, number, shard.grad)
            add(1, number, shard)

        @torch.no_grad()
        def post(optimizer: Optimizer, *_: object) -> None:
            number = number_of(optimizer)
            add(2, number, self.layout.shards[number] - before.pop(number))
            if number == len(self.layout.shards) - 1:
                all_reduce(squares)
                values.update(named(list(parts), squares))

        return [self.optimizer.register_step_pre_hook(pre), self.optimizer.register_step_post_hook(post)]

    @torch.no_grad()
    def teacher_distance(self, model: nn.Module) -> Tensor:
        """|T - S| / |S| over the parameters that the teacher has."""
        own, theirs = self._pairs(model)
        squares = torch.stack([squared(torch._foreach_sub(own, theirs)), squared(theirs)])
        if self.masters is not None or self.layout.stage3:
            all_reduce(squares)
        return (squares[0] / squares[1]).sqrt()

    def _pairs(self, model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """The parts of teacher and student that this process has."""
        if self.masters is None:
            own, theirs = model.teacher.pairs(model)
            return tuple([own_part(p) if self.layout.stage3 else p.detach() for p in side] for side in (own, theirs))
        own, theirs = [], []
        for number, teachers in enumerate(self.masters.teachers):
            for piece in self.layout.own[number]:
                if teachers[piece.index] is not None:
                    cut = slice(piece.at, piece.at + piece.length)
                    own.append(self.masters.shards[number][cut])
                    theirs.append(self.layout.shards[number].detach()[cut])
        return own, theirs


def squared(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).square().sum()


def named(parts: list[str], squares: Tensor) -> dict[str, Tensor]:
    """The hook's quantities of each part and of the whole."""
    gradients, weights, changes = squares.sqrt()
    ratios, found = changes / weights.clamp_min(1e-12), {}
    for place, part in enumerate(parts):
        found[f'gradient_norm_{part}'], found[f'weight_norm_{part}'] = gradients[place], weights[place]
        found[f'update_ratio_{part}'] = ratios[place]
    return {**found, 'gradient_norm': torch.linalg.vector_norm(gradients), 'update_ratio': ratios.max()}
