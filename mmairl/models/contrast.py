"""InfoNCE without its logits: the negatives pass by in chunks, and only a few numbers a query are kept.

Of the logits x_n = q.n / t the loss wants log sum_n e^(x_n), and its gradient the mean negative under their softmax,
d/dq = (1/t) sum_n p_n n. Both follow from a running maximum m: whenever it rises, the sums so far shrink by e^(m_old - m).
One pass over the negatives therefore gives loss and gradient, where the logits as a whole would be written and read
several times, at batch x queue numbers (64 MiB for 256 x 65 536) each time.
"""

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

# Logits alive at a time. 8 MiB of float32 stay in the last-level cache between their passes, on a CPU as on a GPU,
# and leave a GPU few launches: 8 chunks for 256 queries against 65 536 keys.
CHUNK = 2**21


def info_nce(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """-log e^(q.k/t) / (e^(q.k/t) + sum_n e^(q.n/t)) of each query, and whether its positive is nearer than every negative.

    The negatives get no gradient: they are keys of earlier steps. Everything runs in float32 or better but for the
    products with the negatives, which autocast may narrow.

    Example:
        >>> q, k, queue = (torch.nn.functional.normalize(torch.randn(n, 16), dim=1) for n in (8, 8, 100))
        >>> loss, nearer = info_nce(q, k, queue, temperature=0.2)
    """
    scaled = q.to(torch.promote_types(q.dtype, torch.float32)) / temperature
    positive = (scaled * k).sum(dim=1)
    negative, nearest = _LogSumExp.apply(scaled, negatives.detach())
    return torch.logaddexp(positive, negative) - positive, positive.detach() > nearest


class _LogSumExp(Function):
    """log sum_n e^(q.n) and max_n q.n of each query; -inf and -inf where there are no negatives."""

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
