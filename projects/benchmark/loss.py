"""Compare the contrastive loss, forward and backward, with a version that builds all logits in one matrix."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.models.heads.info_nce import CHUNK, info_nce
from projects.benchmark.timing import Case

NOTE = (
    'Limit: the products of the loss and of its gradient, 4 x batch x queue x width FLOPs. MoCo and mmpretrain concatenate '
    'the logits of positives and negatives and pass the copy to a cross entropy, so at the peak the logits are in memory three '
    'times.'
)


def concatenated(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Compute the loss as in MoCo's release, with the cross entropy in float32."""
    logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ negatives.T], dim=1) / temperature
    return F.cross_entropy(logits.float(), torch.zeros(len(q), dtype=torch.long, device=q.device))


def chunked(q: Tensor, k: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    return info_nce(q, k, negatives, temperature)[0].mean()


def loss(device: str, quick: bool) -> Iterator[Case]:
    """Compare InfoNCE with and without a matrix of all logits, for MoCo's queue length and for a shorter queue."""
    sizes = (
        [(8, 100, 16)]
        if quick
        else [(256, 65_536, 256), (256, 65_536, 128), (256, 4096, 128), (32, 65_536, 128)]
    )
    for batch, queue, width in sizes:
        generator = torch.Generator().manual_seed(0)
        draws = [torch.randn(rows, width, generator=generator) for rows in (batch, batch, queue)]
        q, k, negatives = (F.normalize(draw, dim=1).to(device) for draw in draws)
        ours, theirs = (_step(form, q, k, negatives) for form in (chunked, concatenated))
        yield Case(
            f'InfoNCE with its gradient, {batch} queries against {queue} x {width}',
            'concatenate + cross entropy',
            ours,
            theirs,
            partial(torch.testing.assert_close, atol=1e-6, rtol=1e-5),
            batch,
            memory=True,
            aim='memory <= 0.4 of theirs' if batch * queue > CHUNK else '',
            flops=4 * batch * queue * width,
            moved=negatives.nbytes,
            note=NOTE,
        )


def _step(
    form: Callable[..., Tensor], q: Tensor, k: Tensor, negatives: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    def step() -> tuple[Tensor, Tensor]:
        queries = q.clone().requires_grad_()
        value = form(queries, k, negatives, 0.2)
        value.backward()
        return value.detach(), queries.grad

    return step
