"""Linear CKA (Kornblith et al. 2019), the similarity of the features of two stages or two networks.

CKA is computed from HSIC, a measure of the dependence between two sets of features. The usual
estimate of HSIC is biased: even for independent features, it is far above 0 if they have more
dimensions than the batch has images. Here, the unbiased estimate is averaged over batches (Nguyen et
al. 2021).
"""

from collections.abc import Iterable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import pooled, stages

SMALLEST = 4  # the unbiased estimate divides by n (n - 3)


def unbiased_hsic(first: Tensor, second: Tensor) -> Tensor:
    """Return the unbiased estimate of HSIC from Gram matrices (..., n, n).

    It ignores the diagonals of the matrices. Its expected value is 0 for independent features.
    """
    n = first.shape[-1]
    others = 1 - torch.eye(n).to(first)
    first = first * others
    second = second * others
    first_rows = first.sum(-1)
    second_rows = second.sum(-1)
    trace = (first * second).sum((-2, -1))
    sums = first_rows.sum(-1) * second_rows.sum(-1)
    shared = (first_rows * second_rows).sum(-1)
    unbiased = trace + sums / ((n - 1) * (n - 2)) - 2 / (n - 2) * shared
    return unbiased / (n * (n - 3))


def cka(batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the CKA of each feature set in `a` with each one in `b`, over batches of (a, b).

    `a` and `b` are stacks of Gram matrices (sets, n, n) of the same images. CKA is 1 for features
    that are equal up to rotation and scale, and NaN for features that do not vary. Batches of fewer
    than four images are ignored.
    """
    parts = [
        (unbiased_hsic(a[:, None], b[None]), unbiased_hsic(a, a), unbiased_hsic(b, b))
        for a, b in batches
        if a.shape[-1] >= SMALLEST
    ]
    if not parts:
        raise UserError(
            f'CKA: every batch has fewer than {SMALLEST} images; use more images',
            code='small-batch',
        )
    cross, own_a, own_b = map(sum, zip(*parts))
    product = (own_a[:, None] * own_b[None]).clamp_min(0)
    return torch.where(product > 0, cross / product.sqrt(), torch.nan).cpu()


def gram_matrices(network: nn.Module, images: Tensor) -> Tensor:
    """Return the inner products of all pairs of images for each stage and the pooled features.

    Features are centered, which does not change HSIC but preserves more digits.
    """
    outputs: list[Tensor] = []
    with ExitStack() as hooks:
        for modules in stages(network).values():
            last = modules[-1]
            keep = last.register_forward_hook(lambda module, inputs, output: outputs.append(output))
            hooks.enter_context(keep)
        outputs.append(pooled(network(images)))
    grams = []
    for x in outputs:
        x = x.flatten(1).float()
        x = x - x.mean(dim=0)
        grams.append((x @ x.T).double())
    return torch.stack(grams)


@torch.inference_mode()
def stage_cka(
    a: nn.Module, b: nn.Module, batches: Iterable[Tensor]
) -> tuple[Tensor, list[str], list[str]]:
    """Return the CKA of each stage of `a` with each stage of `b`, and the names of both stages."""
    grams = ((gram_matrices(a, images), gram_matrices(b, images)) for images in batches)
    return cka(grams), [*stages(a), 'pooled'], [*stages(b), 'pooled']
