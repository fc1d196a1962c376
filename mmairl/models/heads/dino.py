"""DINO: the student predicts how the teacher assigns another view of the same image to learned prototypes."""

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.heads.base import ByView, PrototypeHead, prototype_weight
from mmairl.models.necks import MLPNeck
from mmairl.registry import MODELS


@MODELS.register_module()
class PrototypeNeck(MLPNeck):
    """DINO's projector: an MLP, and then the cosines between its output and learned prototypes.

    The prototypes of the teacher's projector are a moving average of the student's prototypes.

    Args:
        prototypes: Number of prototypes.
        **settings: The arguments of `MLPNeck`.

    Attributes:
        frozen: 1 while the prototypes are not trained, otherwise 0. `ScheduleHook` changes it during a run.
    """

    def __init__(self, prototypes: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.prototypes = nn.Linear(self.out_channels, prototypes, bias=False)
        self.frozen = 0

    def forward(self, x: Tensor) -> Tensor:
        weight = prototype_weight(self.prototypes, self.frozen)
        return F.linear(F.normalize(super().forward(x), dim=1), F.normalize(weight, dim=1))


@MODELS.register_module()
class DINOHead(PrototypeHead):
    """DINO's loss: the cross entropy between ``softmax(q / t)`` and ``softmax((k - c) / t_k)``.

    ``q`` are the query's cosines with the prototypes and ``k`` are those of a key of another view. The loss is averaged over
    the pairs of views. The center ``c`` is a moving average of the keys of all processes. Subtracting it prevents the
    assignment of all images to one prototype. The low temperature of the keys prevents uniform assignments.

    Args:
        prototypes: Number of prototypes, the same as in `model.projector`.
        temperature: Softmax temperature ``t`` of the queries.
        key_temperature: Softmax temperature ``t_k`` of the keys.
        centre_momentum: Momentum of the center. 1 disables centering.

    Returns (forward):
        ``loss``; ``key_entropy``: mean entropy of the assignments, in nats.

    Raises:
        UserError: If the projector has another number of prototypes.
    """

    def __init__(
        self,
        prototypes: int,
        temperature: float = 0.1,
        key_temperature: float = 0.04,
        centre_momentum: float = 0.9,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.key_temperature = key_temperature
        self.centre_momentum = centre_momentum
        self.register_buffer('centre', torch.zeros(prototypes))

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        width = next(iter(k.values())).shape[1]
        if width != len(self.centre):
            raise UserError(
                f"DINOHead: the head has {len(self.centre)} prototypes, but the keys have '{width}' dimensions; "
                'set model.head.prototypes and model.projector.prototypes to the same number',
                code='head-width',
            )
        dtype = self.centre.dtype
        logs = {view: (z.to(dtype) / self.temperature).log_softmax(dim=1) for view, z in q.items()}
        assigned = {view: self.assignments(z.to(dtype)) for view, z in k.items()}
        results = super().forward(logs, assigned, negatives)
        if self.training:
            self.move_center(torch.cat(list(k.values())))
        return results

    def assignments(self, keys: Tensor) -> Tensor:
        return ((keys - self.centre) / self.key_temperature).softmax(dim=1)

    @torch.no_grad()
    def move_center(self, keys: Tensor) -> None:
        mean = keys.to(self.centre.dtype).mean(dim=0)
        all_reduce(mean, 'mean')
        # If a key is not finite, the optimizer skips the step, so the center does not move either.
        mean = torch.where(mean.isfinite(), mean, self.centre)
        self.centre.lerp_(mean, 1 - self.centre_momentum)
