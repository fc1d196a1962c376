"""Base classes of heads."""

from contextlib import AbstractContextManager, nullcontext
from itertools import product

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from torch import Tensor, nn

# Maps the index of a view to its embeddings, one row per image of this process.
ByView = dict[int, Tensor]


def widened(x: Tensor) -> Tensor:
    """Convert `x` to float32, unless its type is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit(embeddings: Tensor) -> Tensor:
    """Normalize the rows to length 1, in float32 or wider."""
    return F.normalize(widened(embeddings), dim=1)


def full_precision(x: Tensor) -> AbstractContextManager:
    """Return a context without autocast, for computations in which half precision is too coarse."""
    kind = x.device.type
    available = torch.amp.is_autocast_available(kind)  # not on meta tensors
    return torch.autocast(kind, enabled=False) if available else nullcontext()


class Head(nn.Module):
    """Base class of heads, which compute a loss from the embeddings of an image's views.

    A subclass implements `forward(q, k, negatives)`. `q` maps the index of each query's view to the queries, and `k` maps the
    index of each key's view to the keys. Queries and keys have one row per image of this process and are not normalized.
    `negatives` are the unit vectors in the queue, or None if there is no queue. `forward` returns a dictionary: its `loss` is
    minimized, and its other values are logged.

    Attributes:
        queue_role: How this loss uses the keys in the queue: as `'negatives'`, or as the `'support'` from which positives
            are chosen (NNCLR). Checks of negatives apply only to `'negatives'`.
        page_metrics: Names of the logged values that the health page of a run shows.
    """

    queue_role = 'negatives'
    page_metrics: tuple[str, ...] = ()


class PairwiseHead(Head):
    """Base class of heads that compare one view's queries with another view's keys.

    The loss is the sum, or the mean, over all pairs of a query view and a different key view. With two views, there are two
    pairs if the model is symmetric, and otherwise one. A subclass implements `pair`.

    Attributes:
        summed: True if the loss is the sum over the pairs, False if it is the mean.
    """

    summed = True

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        pairs = []
        for query, key in product(q, k):
            if query != key:
                pairs.append(self.pair(q[query], k[key], negatives))
        results = {}
        for name in pairs[0]:
            values = torch.stack([pair[name] for pair in pairs])
            results[name] = values.mean()
            if name == 'loss' and self.summed:
                results[name] = values.sum()
        return results

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        """Return a dictionary with the `loss` of one pair of views, and with values to log.

        Args:
            q: Queries of one view, not normalized.
            k: Keys of the other view, not normalized.
            negatives: The unit vectors in the queue, or None if there is no queue.
        """
        raise NotImplementedError


class PrototypeHead(PairwiseHead):
    """Base class of heads in which queries predict how keys are assigned to prototypes (DINO, SwAV).

    The loss is the cross entropy between the assignments and the predictions, averaged over the pairs of views. The `forward`
    of a subclass converts keys to assignments and queries to log-probabilities, and then calls `forward` of this class.
    """

    page_metrics = ('key_entropy',)
    summed = False

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        loss = -(k * q).sum(dim=1).mean()
        entropy = torch.special.entr(k).sum(dim=1)
        return {'loss': loss, 'key_entropy': entropy.mean()}


def prototype_weight(prototypes: nn.Linear, frozen: int) -> Tensor:
    """Return the prototypes, as the rows of a matrix.

    While they are frozen, their gradient is 0 instead of None, because DDP waits for the gradient of every parameter.
    """
    weight = prototypes.weight
    return weight.detach() + 0 * weight if frozen else weight


@torch.no_grad()
def sinkhorn(scores: Tensor, temperature: float, iterations: int) -> Tensor:
    """Return assignments of samples to prototypes that the Sinkhorn algorithm balances over the samples of all processes.

    Each iteration scales the columns and then the rows of ``exp(scores / temperature)``, so that the samples are distributed
    more equally over the prototypes. It needs one collective operation. With 0 iterations, an assignment is
    ``softmax(scores / temperature)``, and all samples may be assigned to one prototype.

    Args:
        scores: Products of this process's samples with the prototypes, one row per sample.
        temperature: Softmax temperature. Larger values give smoother assignments.
        iterations: Number of iterations.
    """
    codes = (scores / temperature).exp()
    for _ in range(iterations):
        totals = codes.sum(dim=0)
        all_reduce(totals)
        codes = codes / totals
        codes = codes / codes.sum(dim=1, keepdim=True)
    return codes / codes.sum(dim=1, keepdim=True)
