"""Linear CKA (Kornblith et al. 2019): which stages of networks have the same features (Fig. 3b).

The usual estimate of HSIC is biased: of independent features it is far above 0 as soon as they are wider than the batch is
long. `MinibatchCKA` averages the unbiased estimate over batches (Nguyen et al. 2021), for features of any width;
`full_cka` is the biased one of all images at once, which papers report.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import pooled, stages

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
        """Add a batch: the same images in the same order in each set; a batch of fewer than four is left out."""
        if len(a[0]) < SMALLEST:
            return
        grams_a = _gram_matrices(a)
        grams_b = grams_a if b is a else _gram_matrices(b)
        self.cross = self.cross + unbiased_hsic(grams_a[:, None], grams_b[None])
        for side, grams in enumerate((grams_a, grams_b)):
            self.own[side] = self.own[side] + unbiased_hsic(grams, grams)

    def value(self) -> Tensor:
        """(sets of a, sets of b), 1 for features equal but for rotation and scale, NaN for features that do not vary."""
        if not isinstance(self.cross, Tensor):
            raise UserError(f'CKA wants batches of {SMALLEST} images or more and saw none; raise the batch size')
        product = self.own[0][:, None] * self.own[1][None]
        return torch.where(product > 0, self.cross / product.clamp_min(0).sqrt(), torch.nan).cpu()


def _gram_matrices(features: Sequence[Tensor]) -> Tensor:
    """(sets, n, n) inner products in float64, of features centred over the batch, which changes no HSIC and saves digits."""
    flat = [x.flatten(1).float() for x in features]
    return torch.stack([(x @ x.T).double() for x in (x - x.mean(dim=0) for x in flat)])


def _features(networks: Sequence[nn.Module], batches: Iterable[Tensor]) -> Iterator[list[dict[str, Tensor]]]:
    """For each batch, the features of each network's stages and, as 'pooled', its own."""
    with ExitStack() as stack:
        watched: list[dict[str, Tensor]] = [{} for _ in networks]
        for network, features in zip(networks, watched):
            last = {name: modules[-1] for name, modules in stages(network).items()}
            if not last:
                raise UserError(f'{type(network).__name__} has no stages that CKA knows; compare ResNets or ViTs')
            for name, module in last.items():
                hook = module.register_forward_hook(
                    lambda *called, kept=features, name=name: kept.update({name: called[-1]})
                )
                stack.callback(hook.remove)
        for images in batches:
            for network, features in zip(networks, watched):
                features['pooled'] = pooled(network(images))
            yield watched


@torch.inference_mode()
def stage_cka(a: nn.Module, b: nn.Module, batches: Iterable[Tensor]) -> tuple[Tensor, list[str], list[str]]:
    """CKA of each stage of `a` with each of `b` on the same images, and the stages' names."""
    similarity = MinibatchCKA()
    for from_a, from_b in _features([a, b], batches):
        similarity.update(list(from_a.values()), list(from_b.values()))
    return similarity.value(), list(from_a), list(from_b)


@torch.inference_mode()
def network_cka(networks: Sequence[nn.Module], batches: Iterable[Tensor], stage: str = 'pooled') -> Tensor:
    """CKA of one stage between every two networks, such as the epochs of a run."""
    similarity = MinibatchCKA()
    for by_network in _features(networks, batches):
        for stages_of in by_network:
            if stage not in stages_of:
                raise UserError(f"a network has no stage '{stage}'; its stages are {', '.join(stages_of)}")
        features = [stages_of[stage] for stages_of in by_network]
        similarity.update(features, features)
    return similarity.value()


@torch.inference_mode()
def full_cka(a: nn.Module, b: nn.Module, batches: Iterable[Tensor]) -> float:
    """CKA of the pooled features over all images at once, biased, as Kornblith et al. report it."""
    pairs = [(pooled(a(images)).double().cpu(), pooled(b(images)).double().cpu()) for images in batches]
    x, y = (torch.cat(side) for side in zip(*pairs))
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    return ((x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()
