"""The InfoNCE loss, computed in chunks without the full matrix of logits."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from mmairl.models.heads.base import widened

# The number of logits that are computed at a time. In float32 they take 8 MiB, so they stay in the last-level cache. 256
# queries and 65 536 keys make only 8 chunks, so the number of kernel calls is small.
CHUNK = 2**21


def info_nce(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the InfoNCE loss of each query, and whether its positive is closer than every negative.

    For a query ``q`` with positive ``k`` and negatives ``n``::

        loss = -log( exp(q·k/t) / (exp(q·k/t) + sum_n exp(q·n/t)) )

    Autocast reduces only the precision of the matrix products with the negatives. All other computations use float32 or a
    wider type. The negatives get no gradient, because they are keys of earlier steps.

    Args:
        q: Queries, as unit vectors.
        k: The positive of each query, as a unit vector.
        negatives: The negatives, as unit vectors, which all queries share. May be empty.
        temperature: Softmax temperature ``t``.

    Example:
        >>> q, k, queue = (torch.nn.functional.normalize(torch.randn(n, 16), dim=1) for n in (8, 8, 100))
        >>> loss, closer = info_nce(q, k, queue, temperature=0.2)
    """
    scaled = widened(q) / temperature
    positive = (scaled * k).sum(dim=1)
    negative, nearest = _LogSumExp.apply(scaled, negatives.detach())
    return torch.logaddexp(positive, negative) - positive, positive.detach() > nearest


class _LogSumExp(torch.autograd.Function):
    """Return log sum_n exp(q·n) and max_n q·n over the negatives n, for each query q. Without negatives, both are -inf.

    The gradient of the logarithm is the mean of the negatives, weighted by the softmax of the logits q·n. All sums are
    computed in one pass over chunks of negatives, relative to a running maximum m of the logits. When m rises, the sums so
    far are multiplied by exp(m_old - m). In contrast, the full matrix of logits (64 MiB for 256 x 65 536) would have to be
    written and read several times.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        peak = q.new_full((len(q),), float('-inf'))
        total = q.new_zeros(len(q))
        mean = torch.zeros_like(q)
        kind = q.device.type
        autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        if autocast and q.dtype == torch.float32:
            # Convert the negatives once here, because autocast would convert each chunk twice, once per product.
            negatives = negatives.to(torch.get_autocast_dtype(kind))
        else:
            negatives = negatives.to(q.dtype)
        rows = max(1, CHUNK // max(1, len(q)))
        for start in range(0, len(negatives), rows):
            chunk = negatives[start : start + rows]
            logits = (q @ chunk.T).to(q.dtype)
            higher = torch.maximum(peak, logits.amax(dim=1))
            weights = logits.sub_(higher.unsqueeze(1)).exp_()
            shrink = (peak - higher).exp()
            total = total * shrink + weights.sum(dim=1)
            mean = mean * shrink.unsqueeze(1) + (weights @ chunk).to(q.dtype)
            peak = higher
        # With negatives, the total is at least 1, because exp(0) is one of its terms. Without negatives it is 0, and
        # `clamp` avoids a division by 0.
        ctx.save_for_backward(mean / total.clamp(min=1).unsqueeze(1))
        ctx.mark_non_differentiable(peak)
        return peak + total.log(), peak

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (mean,) = ctx.saved_tensors
        return mean * grad.unsqueeze(1), None
