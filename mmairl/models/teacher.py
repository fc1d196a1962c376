"""The teacher: an average of the student that gradients never reach."""

import copy

import torch
from torch import Tensor, nn

from mmairl.models.shards import own_parts


class Teacher(nn.Module):
    """Copies of the student's parts without gradient, moved towards the student after each optimizer step.

    Parameters are averaged; batch-norm statistics are the teacher's own, since it runs in training mode.
    The average is kept in float32: 1 - m falls to 1e-6, which half precision rounds away.
    """

    def __init__(self, backbone: nn.Module, projector: nn.Module, predictor: nn.Module | None) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone)
        self.projector = copy.deepcopy(projector)
        self.predictor = copy.deepcopy(predictor)
        self.requires_grad_(False)

    def init_weights(self) -> None:
        """Leave the weights alone: the network copies the student here once the student is initialised."""

    @torch.no_grad()
    def copy_from(self, student: nn.Module) -> None:
        """Start as the student is, statistics included."""
        for part in ('backbone', 'projector', 'predictor'):
            if getattr(self, part) is not None:
                getattr(self, part).load_state_dict(getattr(student, part).state_dict())

    @torch.no_grad()
    def follow(self, student: nn.Module, momentum: float) -> None:
        """T <- m T + (1 - m) S, all tensors in one call."""
        torch._foreach_lerp_(*map(own_parts, self.pairs(student)), 1 - momentum)

    def pairs(self, student: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Own parameters and theirs, paired by order, which a copy shares: names would cost a quarter of a step on a CPU."""
        own, theirs = [], []
        for part, copied in self.named_children():
            own += copied.parameters()
            theirs += getattr(student, part).parameters()
        return own, theirs
