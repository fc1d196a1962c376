"""Heads: queries and keys of an image's views, as the network computed them, to a loss."""

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.contrast import info_nce
from mmairl.registry import MODELS


def unit(embeddings: Tensor) -> Tensor:
    """The rows scaled to length 1, in float32 or better."""
    return F.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), dim=1)


class PairwiseHead(nn.Module):
    """The loss of every (query, key) pair of two different views, summed over the pairs.

    With two views and a symmetric network that is both directions; with one query it is one direction.
    """

    def forward(self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None) -> dict[str, Tensor]:
        pairs = [self.pair(q[i], k[j], negatives) for i, j in product(q, k) if i != j]
        terms = {name: torch.stack([pair[name] for pair in pairs]) for name in pairs[0]}
        return {name: term.sum() if name == 'loss' else term.mean() for name, term in terms.items()}

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        """The loss of one view's predictions and another's targets, not normalised; the negatives are unit vectors."""
        raise NotImplementedError


@MODELS.register_module()
class ContrastiveHead(PairwiseHead):
    """InfoNCE against a queue of negatives: -log e^(q.k+/t) / (e^(q.k+/t) + sum_n e^(q.n/t)), averaged over the batch.

    Also reports the instance accuracy: how often the positive is nearer than every negative.
    """

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        if temperature <= 0:
            raise UserError(f'temperature={temperature} would divide by zero or flip the loss; set a positive one')
        self.temperature = temperature

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        if negatives is None:
            raise UserError('the contrastive head wants negatives and the network has no queue; set model.queue')
        loss, nearer = info_nce(unit(q), unit(k), negatives, self.temperature)
        return dict(loss=loss.mean(), instance_accuracy=nearer.float().mean())


@MODELS.register_module()
class RegressionHead(PairwiseHead):
    """The squared distance of unit vectors, 2 - 2 cos(q, k), averaged over the batch; no negatives.

    Summed over both directions this is BYOL's loss; a `weight` of a quarter makes it SimSiam's, -cos / 2 a direction,
    but for a constant.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        similarity = (unit(q) * unit(k)).sum(dim=1).mean()
        return dict(loss=self.weight * (2 - 2 * similarity), similarity=similarity.detach())
