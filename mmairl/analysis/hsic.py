"""Linear CKA of two sets of features (Kornblith et al. 2019), one batch at a time.

The usual estimate of HSIC is biased: of independent features it is far above 0 as soon as they are wider than the batch is
long. `MinibatchCKA` averages the unbiased estimate over batches (Nguyen et al. 2021), for features of any width;
`FullCKA` keeps second moments and gives exactly what all features at once would give, biased or not, for narrow ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmairl.errors import UserError

SMALLEST = 4  # images: the unbiased estimate divides by n (n - 3)


def unbiased_hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741, the statisticians' letter
    """HSIC_1 of Gram matrices (..., n, n), whose diagonals are not looked at; the expectation is 0 for independent data."""
    n = k.shape[-1]
    k, l = (m - torch.diag_embed(m.diagonal(dim1=-2, dim2=-1)) for m in (k, l))  # noqa: E741
    k_rows, l_rows = k.sum(-1), l.sum(-1)
    trace = (k * l).sum((-2, -1))
    sums = k_rows.sum(-1) * l_rows.sum(-1) / ((n - 1) * (n - 2))
    return (trace + sums - 2 / (n - 2) * (k_rows * l_rows).sum(-1)) / (n * (n - 3))


class MinibatchCKA:
    """CKA between every one of `a` and every one of `b` sets of features, each (images, anything)."""

    def __init__(self) -> None:
        self.cross: Tensor | float = 0.0
        self.own: list[Tensor | float] = [0.0, 0.0]

    def update(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
        """Add a batch: the same images in the same order in each set; fewer than four tell nothing."""
        if len(a[0]) < SMALLEST:
            return
        grams_a = gram_matrices(a)
        grams_b = grams_a if b is a else gram_matrices(b)
        self.cross = self.cross + unbiased_hsic(grams_a[:, None], grams_b[None])
        for side, grams in enumerate((grams_a, grams_b)):
            self.own[side] = self.own[side] + unbiased_hsic(grams, grams)

    def value(self) -> Tensor:
        """(sets of a, sets of b), 1 for features equal but for rotation and scale."""
        if not isinstance(self.cross, Tensor):
            raise UserError(f'CKA wants batches of {SMALLEST} images or more and saw none; raise the batch size')
        return ratio(self.cross, *self.own).cpu()


def gram_matrices(features: Sequence[Tensor]) -> Tensor:
    """(sets, n, n) inner products in float64, of features centred over the batch, which changes no HSIC and saves digits."""
    flat = [x.flatten(1).float() for x in features]
    return torch.stack([(x @ x.T).double() for x in (x - x.mean(dim=0) for x in flat)])


def ratio(cross: Tensor, own_a: Tensor, own_b: Tensor) -> Tensor:
    """HSIC(a, b) / sqrt(HSIC(a, a) HSIC(b, b)); not a number where a set of features does not vary."""
    product = own_a[:, None] * own_b[None]
    return torch.where(product > 0, cross / product.clamp_min(0).sqrt(), torch.nan)


class FullCKA:
    """CKA between two sets of features (images, width) over all images, exactly, from moments kept in float64."""

    def __init__(self, unbiased: bool = True) -> None:
        self.unbiased, self.count = unbiased, 0
        self.shift: tuple[Tensor, Tensor] | None = None
        self.moments: dict[tuple[int, int], list[Tensor]] = {}

    def update(self, a: Tensor, b: Tensor) -> None:
        x = [a.flatten(1).double(), b.flatten(1).double()]
        if self.shift is None:  # any shift changes nothing but the rounding; the first batch's mean is near enough
            self.shift = tuple(of.mean(dim=0) for of in x)
        x = [of - shift for of, shift in zip(x, self.shift)]
        self.count += len(a)
        for pair in ((0, 1), (0, 0), (1, 1)):
            sums = _moments(*(x[side] for side in pair))
            before = self.moments.get(pair)
            self.moments[pair] = sums if before is None else [old + new for old, new in zip(before, sums)]

    def value(self) -> float:
        if self.count < SMALLEST:
            raise UserError(f'CKA wants {SMALLEST} images or more and saw {self.count}')
        cross, own_a, own_b = (self._hsic(self.moments[pair]) for pair in ((0, 1), (0, 0), (1, 1)))
        return ratio(cross[None, None], own_a[None], own_b[None]).item()

    def _hsic(self, moments: list[Tensor]) -> Tensor:
        """Either estimate from the moments; with K~ a Gram matrix of zero diagonal, 1'K~1 = |s|^2 - sum |x|^2, and so on."""
        n = self.count
        product, sum_a, sum_b, norms, norms_a, norms_b, weighted_a, weighted_b = moments
        if not self.unbiased:
            return (product - torch.outer(sum_a, sum_b) / n).square().sum()
        trace = product.square().sum() - norms
        total_a, total_b = sum_a.square().sum() - norms_a, sum_b.square().sum() - norms_b
        both = sum_a @ product @ sum_b - weighted_a @ sum_a - weighted_b @ sum_b + norms
        return (trace + total_a * total_b / ((n - 1) * (n - 2)) - 2 / (n - 2) * both) / (n * (n - 3))


def _moments(a: Tensor, b: Tensor) -> list[Tensor]:
    """X'Y, the sums of x and y, of |x|^2 |y|^2, of |x|^2, of |y|^2, of |y|^2 x and of |x|^2 y."""
    of_a, of_b = a.square().sum(dim=1), b.square().sum(dim=1)
    return [a.T @ b, a.sum(0), b.sum(0), of_a @ of_b, of_a.sum(), of_b.sum(), of_b @ a, of_a @ b]
