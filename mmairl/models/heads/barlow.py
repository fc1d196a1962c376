"""Barlow Twins: the loss draws the cross-correlation matrix of two views' projections toward the identity."""

import torch.nn.functional as F
from torch import Tensor

from mmairl.models.heads.base import PairwiseHead, full_precision, widened
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class BarlowTwinsHead(PairwiseHead):
    """Barlow Twins' loss, computed over the batch of all processes.

    ``C`` is the matrix of correlations between the dimensions of two views' projections::

        loss = scale ( sum_i (1 - C_ii)^2 + weight sum_{i != j} C_ij^2 )

    Args:
        weight: Weight of the second sum, the redundancy.
        scale: Factor of the loss, 0.024 in the command that trained the released checkpoint. LARS largely cancels this factor
            in the updates of weight matrices, but not in the updates of biases and norm layers.

    Returns (forward):
        ``loss``; ``invariance``: the first sum; ``redundancy``: the second sum.
    """

    page_metrics = ('invariance', 'redundancy')

    def __init__(self, weight: float = 0.0051, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.scale = scale

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        with full_precision(q):
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
    """Return the embeddings of all processes, shifted and scaled to mean 0 and variance 1 in each dimension."""
    everyone = gather_with_gradient(widened(z))
    return F.batch_norm(everyone, None, None, training=True)
