"""DINO: the student predicts the prototypes that the teacher assigns to another view."""

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
    """An MLP followed by the cosines between its output and learned prototypes, which are part of the teacher's average.

    Args:
        prototypes: Number of prototypes.
        **settings: The arguments of `MLPNeck`.

    Attributes:
        frozen: 1 while the prototypes get no gradient. `ScheduleHook` sets it.
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
    """Cross entropy of ``softmax(q / t)`` with ``softmax((k - c) / t_k)``, averaged over the view pairs.

    The center ``c`` is the moving mean of the keys of all processes. It prevents all images from being assigned to one
    prototype. The low temperature of the keys prevents uniform assignments.

    Args:
        prototypes: Number of prototypes, as in `model.projector`.
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
                f"DINOHead: expected keys of {len(self.centre)} prototypes ('{width}'); "
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
        # The optimizer skips the step if the batch is not finite, so the center does not move either.
        mean = torch.where(mean.isfinite(), mean, self.centre)
        self.centre.lerp_(mean, 1 - self.centre_momentum)
