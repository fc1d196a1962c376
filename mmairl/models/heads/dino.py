"""DINO: the student predicts how the teacher assigns another view of the same image to learned prototypes.

With masked patches (iBOT), it also predicts how the teacher assigns these patches. Both targets can be balanced by the
Sinkhorn algorithm (DINOv2).
"""

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce, get_world_size
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
        rows = F.normalize(super().forward(x), dim=1)
        return F.linear(rows, F.normalize(weight, dim=1))


class Center(nn.Module):
    """A moving average of the keys of all processes, which centers the targets.

    Args:
        width: Number of prototypes.
        momentum: Momentum of the average. 1 disables centering.
    """

    def __init__(self, width: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer('mean', torch.zeros(width))

    def forward(self, keys: Tensor, temperature: float) -> Tensor:
        targets = ((keys - self.mean) / temperature).softmax(dim=1)
        if self.training:
            self.move(keys)
        return targets

    @torch.no_grad()
    def move(self, keys: Tensor) -> None:
        own_count = keys.new_full((1,), len(keys))
        total = torch.cat([keys.sum(dim=0), own_count])
        all_reduce(total)
        count = total[-1]
        # In a batch without masked patches, the center stays.
        mean = torch.where(count > 0, total[:-1] / count, self.mean)
        self.mean.lerp_(mean, 1 - self.momentum)


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
        center_momentum: Momentum of the center. 1 disables centering.
        targets: `'center'`, or `'sinkhorn'` to balance the assignments over the prototypes by three iterations of the
            Sinkhorn algorithm over the keys of all processes (DINOv2). Masked patches have a center, or iterations, of their
            own.

    Returns (forward):
        ``loss``; ``key_entropy``: mean entropy of the assignments, in nats.

    Raises:
        UserError: If `targets` is unknown, or if the projector has another number of prototypes.
    """

    def __init__(
        self,
        prototypes: int,
        temperature: float = 0.1,
        key_temperature: float = 0.04,
        center_momentum: float = 0.9,
        targets: str = 'center',
    ) -> None:
        super().__init__()
        if targets not in ('center', 'sinkhorn'):
            raise UserError(
                f"model.head.targets: unknown value ('{targets}'); set 'center' or 'sinkhorn'",
                code='unknown-targets',
            )
        self.prototypes = prototypes
        self.temperature = temperature
        self.key_temperature = key_temperature
        self.targets = targets
        self.center = Center(prototypes, center_momentum)
        self.patch_center = Center(prototypes, center_momentum)

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        keys = torch.cat(list(k.values()))
        if keys.shape[1] != self.prototypes:
            raise UserError(
                f"DINOHead: the head has {self.prototypes} prototypes, but the keys have '{keys.shape[1]}' dimensions; "
                'set model.head.prototypes and model.projector.prototypes to the same number',
                code='head-width',
            )
        if self.targets == 'sinkhorn' and len(keys) * get_world_size() < 2:
            raise UserError(
                f"model.head.targets: Sinkhorn requires two keys or more ('{len(keys)}'); raise total_batch_size",
                code='batch-of-one',
            )
        assigned = self.assign(keys, self.center).chunk(len(k))
        logs = {view: self.log_probabilities(z) for view, z in q.items()}
        return super().forward(logs, dict(zip(k, assigned)), negatives)

    def patch_loss(self, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the cross entropies of masked patches (iBOT).

        Args:
            q: The student's outputs for the masked patches of all crops in this process.
            k: The teacher's outputs for these patches, which it sees.
            weights: The weight of each patch. May be on the CPU.
        """
        targets = self.assign(k, self.patch_center)
        entropies = -(targets * self.log_probabilities(q)).sum(dim=1)
        return (weights.to(entropies, non_blocking=True) * entropies).sum()

    def assign(self, keys: Tensor, center: Center) -> Tensor:
        keys = keys.to(center.mean.dtype)
        if self.targets == 'sinkhorn':
            return sinkhorn(keys, self.key_temperature, 3)
        return center(keys, self.key_temperature)

    def log_probabilities(self, queries: Tensor) -> Tensor:
        scores = queries.to(self.center.mean.dtype)
        return (scores / self.temperature).log_softmax(dim=1)


def koleo(features: Tensor) -> Tensor:
    """Return KoLeo, which is low if the features of this process are spread evenly (DINOv2).

    It is the mean of ``-log |x_i - x_n(i)|`` over unit vectors ``x_i``, where ``x_n(i)`` is the nearest other vector.
    """
    if len(features) < 2:
        raise UserError(
            f"model.koleo: requires two images or more per process ('{len(features)}'); raise total_batch_size",
            code='batch-of-one',
        )
    with full_precision(features):
        x = unit(features)
        with torch.no_grad():
            nearest = (x @ x.T).fill_diagonal_(-1).argmax(dim=1)
        distance = F.pairwise_distance(x, x[nearest], eps=1e-8)
        return -(distance + 1e-8).log().mean()
