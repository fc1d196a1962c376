"""Base classes of heads."""

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ByView = dict[int, Tensor]  # for each view, one row per image of this process


def widened(x: Tensor) -> Tensor:
    """Convert `x` to float32, unless its type is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit(embeddings: Tensor) -> Tensor:
    """Normalize the rows to length 1, in float32 or wider."""
    return F.normalize(widened(embeddings), dim=1)


class Head(nn.Module):
    """Base class of losses of the views' embeddings.

    A subclass implements `forward(q, k, negatives)`. `q` and `k` map the index of a view to its queries or keys, one row per
    image of this process, not normalized. `negatives` are the unit vectors in the queue, or None without a queue. `forward`
    returns a dictionary whose `loss` is minimized. Its other values are logged.

    Attributes:
        queue_role: The role of the queue's keys in this loss: `'negatives'`, or `'support'` for a set from which positives
            are taken (NNCLR). Health advice about negatives applies only to `'negatives'`.
        page_metrics: Names of the returned values that the health page shows.
    """

    queue_role = 'negatives'
    page_metrics: tuple[str, ...] = ()


class PairwiseHead(Head):
    """Base class of losses that are sums over pairs of a query's view and a different key's view.

    With two views, a symmetric model has two such pairs, and an asymmetric model one. A subclass implements `pair`.

    Attributes:
        summed: Whether the loss is the sum over the pairs, or else their mean.
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
        """Return the loss of one view's queries with another view's keys, and values to log.

        Args:
            q: Queries, not normalized.
            k: Keys, not normalized.
            negatives: The queue's unit vectors, or None.
        """
        raise NotImplementedError


class PrototypeHead(PairwiseHead):
    """Base class of cross entropies between predicted and assigned prototypes, averaged over the view pairs.

    A subclass first converts queries to log-probabilities and keys to assignments.
    """

    page_metrics = ('key_entropy',)
    summed = False

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        loss = -(k * q).sum(dim=1).mean()
        return {'loss': loss, 'key_entropy': torch.special.entr(k).sum(dim=1).mean()}


def prototype_weight(prototypes: nn.Linear, frozen: int) -> Tensor:
    """Return the prototypes. While frozen, their gradient is 0 and not None, because DDP waits for a gradient."""
    weight = prototypes.weight
    return weight.detach() + 0 * weight if frozen else weight
