"""Barlow Twins: the cross-correlation of two views' projections is driven to the identity."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.models.heads import PairwiseHead
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class BarlowTwinsHead(PairwiseHead):
    """sum_i (1 - C_ii)^2 + weight * sum_{i != j} C_ij^2, with C the correlations over the batch of all processes.

    `scale` multiplies the loss, 0.024 in the release: LARS hides it from weights, and not from biases and norms.
    """

    rewards = ('alignment', 'RankMe')

    def __init__(self, weight: float = 0.0051, scale: float = 1.0) -> None:
        super().__init__()
        self.weight, self.scale = weight, scale

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        with torch.autocast(q.device.type, enabled=False):  # correlations in half precision are none
            q, k = (gather_with_gradient(z.to(torch.promote_types(z.dtype, torch.float32))) for z in (q, k))
            q, k = (F.batch_norm(z, None, None, training=True) for z in (q, k))
            correlation = q.T @ k / len(q)
            own = correlation.diagonal()
            invariance = (1 - own).square().sum()
            redundancy = correlation.square().sum() - own.square().sum()
        loss = self.scale * (invariance + self.weight * redundancy)
        return dict(loss=loss, invariance=invariance.detach(), redundancy=redundancy.detach())
