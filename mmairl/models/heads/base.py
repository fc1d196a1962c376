"""The base of heads: a loss over pairs of views, and declarations for health advice and pages."""

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ByView = dict[int, Tensor]  # rows of each view, one per image of this process


def widened(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged if it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit(embeddings: Tensor) -> Tensor:
    """Return the rows scaled to length 1, in float32 or wider."""
    return F.normalize(widened(embeddings), dim=1)


class Head(nn.Module):
    """A loss of the views' embeddings.

    A subclass implements `forward(q, k, negatives)`. `q` and `k` map the index of a view to its
    queries or keys, one row per image of this process, not normalized. `negatives` holds the
    queue's unit vectors, or is None without a queue. It returns a dictionary whose `loss` is
    minimized. The other values are logged.

    Attributes:
        queue_role: The role of the queue's keys in this loss: `'negatives'`, or `'support'` for a
            set from which positives are taken (NNCLR). Health advice about negatives applies only
            to the former.
        page_metrics: Names of the returned values that the health page shows.
    """

    queue_role = 'negatives'
    page_metrics: tuple[str, ...] = ()


class PairwiseHead(Head):
    """The loss of each (query, key) pair of two different views, summed over the pairs.

    With two views and a symmetric model these are both directions, with one query one direction.
    A subclass implements `pair`.

    Attributes:
        summed: Whether the loss is the sum over the pairs, instead of their mean.
    """

    summed = True

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        pairs = [self.pair(q[i], k[j], negatives) for i, j in product(q, k) if i != j]
        results = {}
        for name in pairs[0]:
            values = torch.stack([pair[name] for pair in pairs])
            results[name] = values.mean()
            if name == 'loss' and self.summed:
                results[name] = values.sum()
        return results

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        """Return the loss of one view's queries and another view's keys, and values to log.

        Args:
            q: Queries, not normalized.
            k: Keys, not normalized.
            negatives: The queue's unit vectors, or None.
        """
        raise NotImplementedError


class PrototypeHead(PairwiseHead):
    """Cross entropy of queries with keys that are assignments to prototypes, averaged over the view pairs.

    A subclass turns embeddings into log-probabilities (queries) and assignments (keys) first.
    """

    page_metrics = ('key_entropy',)
    summed = False

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        loss = -(k * q).sum(dim=1).mean()
        return {'loss': loss, 'key_entropy': torch.special.entr(k).sum(dim=1).mean()}


def prototype_weight(prototypes: nn.Linear, frozen: int) -> Tensor:
    """Return the prototypes; while frozen, with a gradient of 0, because DDP waits for a gradient."""
    weight = prototypes.weight
    return weight.detach() + 0 * weight if frozen else weight
