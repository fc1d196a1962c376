"""Regression heads, in which each query predicts the key of another view, without negatives (BYOL, SimSiam)."""

from torch import Tensor

from mmairl.models.heads.base import PairwiseHead, unit
from mmairl.registry import MODELS


@MODELS.register_module()
class RegressionHead(PairwiseHead):
    """BYOL's loss, the squared distance between normalized queries and keys: ``2 - 2 cos(q, k)``.

    Args:
        weight: Factor of the loss. With 0.25, the result is SimSiam's loss (``-cos / 2`` per pair of views) plus a constant.

    Returns (forward):
        ``loss``: mean over the batch, summed over view pairs.
        ``similarity``: mean cosine between a query and its key.
    """

    page_metrics = ('similarity',)

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        similarity = (unit(q) * unit(k)).sum(dim=1).mean()
        loss = self.weight * (2 - 2 * similarity)
        return {'loss': loss, 'similarity': similarity.detach()}
