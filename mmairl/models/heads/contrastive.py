"""Contrastive heads with negatives from a queue (MoCo) or from the batch (SimCLR, BYOL's Eq. 6)."""

import torch
from mmengine.dist import get_rank
from torch import Tensor

from mmairl.errors import UserError
from mmairl.models.heads.base import ByView, Head, PairwiseHead, unit
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class ContrastiveHead(PairwiseHead):
    """InfoNCE loss against a queue of negatives (MoCo).

    For each query ``q`` with positive key ``k`` and negatives ``n``::

        loss = -log( exp(q·k/t) / (exp(q·k/t) + sum_n exp(q·n/t)) )

    Args:
        temperature: Softmax temperature ``t``. Default: 0.2 (MoCo v2).

    Returns (forward):
        ``loss``: mean over the batch, summed over view pairs.
        ``instance_accuracy``: fraction of queries whose positive is closer than every negative.

    Raises:
        UserError: If the model has no queue.
    """

    page_metrics = ('instance_accuracy',)

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        if negatives is None:
            raise UserError(
                'ContrastiveHead requires a queue of negatives; set model.queue', code='no-queue'
            )
        q = unit(q) / self.temperature
        positive = (q * unit(k)).sum(dim=1)
        # Autocast reduces only the precision of the products with the negatives.
        negative = (q @ negatives.to(q.dtype).T).to(q.dtype)
        logits = torch.cat([positive.unsqueeze(1), negative], dim=1)
        loss = logits.logsumexp(dim=1) - positive
        closer = positive.detach().unsqueeze(1) > negative.detach()
        return {'loss': loss.mean(), 'instance_accuracy': closer.all(dim=1).float().mean()}


@MODELS.register_module()
class InfoNCEHead(Head):
    """InfoNCE loss with weighted negatives (BYOL's Eq. 6).

    The negatives of an image are the other images in the batch of all processes. The loss is the sum
    of ``-InfoNCE(alpha, beta)`` over two directions: queries of the first view with keys of the second view, and vice versa::

        InfoNCE(alpha, beta) = 2/B sum_i S(v_i, v'_i)
            - beta 2 alpha/B sum_i ln( sum_{j != i} exp(S(v_i, v_j)/alpha) + sum_j exp(S(v_i, v'_j)/alpha) )

    ``S(a, b)`` is the cosine of the query of view ``a`` and the key of view ``b``, ``v_i`` and ``v'_i`` are the two views of
    image ``i``, and ``B`` is the number of images. At ``beta = 0``, the loss is BYOL's loss minus 4.
    At ``beta = 1``, it is 4 alpha times SimCLR's NT-Xent loss at temperature alpha.

    Args:
        alpha: Softmax temperature.
        beta: Weight of the negatives, from 0 (BYOL) to 1 (SimCLR).

    Returns (forward):
        ``loss``: mean over the batch, summed over both directions.
        ``similarity``: mean cosine of a query and its positive key.

    Raises:
        UserError: If there are not exactly two views of queries and of keys.
    """

    page_metrics = ('similarity',)

    def __init__(self, alpha: float = 0.1, beta: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha
        self.beta = beta

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        if len(q) != 2 or len(k) != 2:
            raise UserError(
                f"InfoNCEHead: requires queries and keys of two views ('{len(q)} and {len(k)} views'); "
                'use two views and set model.symmetric=True',
                code='not-two-views',
            )
        q = {view: unit(rows) for view, rows in q.items()}
        k = {view: unit(rows) for view, rows in k.items()}
        one, two = q
        first, cosine = self.direction(q[one], k[one], k[two])
        second, other_cosine = self.direction(q[two], k[two], k[one])
        similarity = (cosine + other_cosine) / 2
        return {'loss': first + second, 'similarity': similarity.detach()}

    def direction(self, query: Tensor, same: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of one direction, in which one view has the queries, and the mean cosine of its positive pairs.

        Args:
            query: The queries.
            same: Keys of the queries' view. These keys serve as negatives, except for the key of the query's own image.
            other: Keys of the other view. The key of the query's own image is the positive.
        """
        cosine = (query * other).sum(dim=1).mean()
        attraction = -2 * cosine
        if self.beta == 0:
            return attraction, cosine
        near = self.logits(query, same)
        far = self.logits(query, other)
        rows = torch.arange(len(query), device=query.device)
        itself = rows + get_rank() * len(query)
        nothing = near.new_full((), float('-inf'))
        near = near.index_put((rows, itself), nothing)
        logits = torch.cat([near, far], dim=1)
        repulsion = logits.logsumexp(dim=1).mean()
        return attraction + self.beta * 2 * self.alpha * repulsion, cosine

    def logits(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the products of the queries with the keys of all processes, divided by alpha.

        Autocast reduces only the precision of the matrix product.
        """
        return (query @ gather_with_gradient(keys).T).to(query.dtype) / self.alpha
