"""Heads: queries and keys of an image's views, as the network computed them, to a loss; InfoNCE does without its logits."""

from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from mmairl.errors import UserError
from mmairl.registry import MODELS


def unit(embeddings: Tensor) -> Tensor:
    """The rows scaled to length 1, in float32 or better."""
    return F.normalize(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), dim=1)


class PairwiseHead(nn.Module):
    """The loss of every (query, key) pair of two different views, summed over the pairs.

    With two views and a symmetric network that is both directions; with one query it is one direction.
    """

    rewards = ('alignment',)  # the measures without labels that its loss improves by itself

    def forward(self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None) -> dict[str, Tensor]:
        pairs = [self.pair(q[i], k[j], negatives) for i, j in product(q, k) if i != j]
        terms = {name: torch.stack([pair[name] for pair in pairs]) for name in pairs[0]}
        return {name: term.sum() if name == 'loss' else term.mean() for name, term in terms.items()}

    @staticmethod
    def hidden_factors(**_: object) -> dict[str, str]:
        """Return the factors that libraries differ in and papers seldom print, for `study.factors`."""
        return {'directions of the loss': 'summed', 'clamps in the loss': 'none'}

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        """The loss of one view's predictions and another's targets, not normalised; the negatives are unit vectors."""
        raise NotImplementedError


@MODELS.register_module()
class ContrastiveHead(PairwiseHead):
    """InfoNCE against a queue of negatives: -log e^(q.k+/t) / (e^(q.k+/t) + sum_n e^(q.n/t)), averaged over the batch.

    Also reports the instance accuracy: how often the positive is nearer than every negative.
    """

    rewards = ('alignment', 'uniformity')

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


# Logits alive at a time. 8 MiB of float32 stay in the last-level cache between their passes, on a CPU as on a GPU,
# and leave a GPU few launches: 8 chunks for 256 queries against 65 536 keys.
CHUNK = 2**21


def info_nce(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """-log e^(q.k/t) / (e^(q.k/t) + sum_n e^(q.n/t)) of each query, and whether its positive is nearer than every negative.

    The negatives get no gradient: they are keys of earlier steps. Everything runs in float32 or better but for the
    products with the negatives, which autocast may narrow.

    Examples:
        >>> q, k, queue = (torch.nn.functional.normalize(torch.randn(n, 16), dim=1) for n in (8, 8, 100))
        >>> loss, nearer = info_nce(q, k, queue, temperature=0.2)
    """
    scaled = q.to(torch.promote_types(q.dtype, torch.float32)) / temperature
    positive = (scaled * k).sum(dim=1)
    negative, nearest = _LogSumExp.apply(scaled, negatives.detach())
    return torch.logaddexp(positive, negative) - positive, positive.detach() > nearest


class _LogSumExp(torch.autograd.Function):
    """log sum_n e^(q.n) and max_n q.n of each query; -inf and -inf where there are no negatives.

    The gradient of the first is the mean negative under the softmax of the logits. Both follow from a running maximum m:
    whenever it rises, the sums so far shrink by e^(m_old - m). So the negatives pass by once, in chunks, where the logits as
    a whole would be written and read several times, at batch x queue numbers (64 MiB for 256 x 65 536) each time.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        peak, total, mean = q.new_full((len(q),), float('-inf')), q.new_zeros(len(q)), torch.zeros_like(q)
        rows = max(1, CHUNK // max(1, len(q)))
        for start in range(0, len(negatives), rows):
            chunk = negatives[start : start + rows].to(q.dtype)
            logits = (q @ chunk.T).to(q.dtype)
            higher = torch.maximum(peak, logits.amax(dim=1))
            weights, shrink = logits.sub_(higher.unsqueeze(1)).exp_(), (peak - higher).exp()
            total = total * shrink + weights.sum(dim=1)
            mean = mean * shrink.unsqueeze(1) + (weights @ chunk).to(q.dtype)
            peak = higher
        ctx.save_for_backward(mean / total.clamp(min=1).unsqueeze(1))  # e^0 is among the terms, unless there are none
        ctx.mark_non_differentiable(peak)
        return peak + total.log(), peak

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (mean,) = ctx.saved_tensors
        return mean * grad.unsqueeze(1), None
