"""SwAV: each view predicts the code of another view. A code is a soft assignment of an image to prototypes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.heads.base import (
    ByView,
    PrototypeHead,
    full_precision,
    prototype_weight,
    sinkhorn,
    unit,
)
from mmairl.registry import MODELS


@MODELS.register_module()
class SwAVHead(PrototypeHead):
    """SwAV's loss: the cross entropy between ``softmax(q·c / t)`` and the codes of the other views' keys.

    The loss is averaged over the pairs of views. The prototypes ``c`` are normalized to length 1 before each step. Unlike the
    released code, which uses a queue for batches of 256 images, this head uses no queue.

    Args:
        channels: Width of the projections.
        prototypes: Number of prototypes.
        temperature: Softmax temperature ``t``.
        epsilon: Softmax temperature of the codes. Larger values give smoother codes.
        iterations: Number of Sinkhorn iterations, which balance the codes over the prototypes.

    Attributes:
        frozen: 1 while the prototypes are not trained, otherwise 0. `ScheduleHook` changes it during a run.

    Returns (forward):
        ``loss``; ``key_entropy``: mean entropy of the codes, in nats.

    Raises:
        UserError: If the projections do not have `channels` dimensions.
    """

    def __init__(
        self,
        channels: int,
        prototypes: int,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
    ) -> None:
        super().__init__()
        self.prototypes = nn.Linear(channels, prototypes, bias=False)
        self.temperature = temperature
        self.epsilon = epsilon
        self.iterations = iterations
        self.frozen = 0

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        first = next(iter(q.values()))
        channels = self.prototypes.in_features
        if first.shape[1] != channels:
            raise UserError(
                f"SwAVHead: expected projections of {channels} dimensions ('{first.shape[1]}'); set model.head.channels to "
                'the number of dimensions that the projector returns',
                code='head-width',
            )
        with full_precision(first):
            if self.training:
                self.normalize_prototypes()
            weight = self.prototypes.weight
            codes = {
                view: sinkhorn(unit(z) @ weight.T, self.epsilon, self.iterations)
                for view, z in k.items()
            }
            weight = prototype_weight(self.prototypes, self.frozen)
            logs = {
                view: (unit(z) @ weight.T / self.temperature).log_softmax(dim=1)
                for view, z in q.items()
            }
            return super().forward(logs, codes, negatives)

    @torch.no_grad()
    def normalize_prototypes(self) -> None:
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))
