"""Barlow Twins: the cross-correlation matrix of two views' projections is trained to be the identity."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.models.heads.base import PairwiseHead, widened
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class BarlowTwinsHead(PairwiseHead):
    """Barlow Twins' loss over the batch of all processes.

    ``C`` is the matrix of correlations between the dimensions of two views' projections::

        loss = scale ( sum_i (1 - C_ii)^2 + weight sum_{i != j} C_ij^2 )

    Args:
        weight: Weight of the redundancy term.
        scale: Factor of the loss, 0.024 in the released code. LARS cancels it for weights, but not for biases and norms.

    Returns (forward):
        ``loss``; ``invariance``: the first sum; ``redundancy``: the second sum.
    """

    page_metrics = ('invariance', 'redundancy')

    def __init__(self, weight: float = 0.0051, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.scale = scale

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        # Half precision is too coarse for correlations.
        with torch.autocast(q.device.type, enabled=False):
            q = standardized(q)
            k = standardized(k)
            correlation = q.T @ k / len(q)
            diagonal = correlation.diagonal()
            invariance = (1 - diagonal).square().sum()
            redundancy = correlation.square().sum() - diagonal.square().sum()
        loss = self.scale * (invariance + self.weight * redundancy)
        return {
            'loss': loss,
            'invariance': invariance.detach(),
            'redundancy': redundancy.detach(),
        }


def standardized(z: Tensor) -> Tensor:
    """Return the rows of all processes, with mean 0 and variance 1 in each dimension."""
    everyone = gather_with_gradient(widened(z))
    return F.batch_norm(everyone, None, None, training=True)
