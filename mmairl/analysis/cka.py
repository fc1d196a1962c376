"""Linear CKA (Kornblith et al. 2019), the similarity of the features of two stages or two networks.

CKA is computed from HSIC, a measure of the dependence between two sets of features. The usual estimate of HSIC is biased:
even for independent features, it is far above 0 if they have more dimensions than the batch has images. `MinibatchCKA` uses
the unbiased estimate, averaged over batches (Nguyen et al. 2021). `full_cka` uses the biased estimate on all images at once,
as papers report it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import pooled, stages

# The unbiased estimate divides by n (n - 3), so a batch must have at least this number of images.
SMALLEST = 4


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
    pairs = (n - 1) * (n - 2)
    unbiased = trace + sums / pairs - 2 / (n - 2) * shared
    return unbiased / (n * (n - 3))


class MinibatchCKA:
    """CKA between two lists of feature sets, `a` and `b`, accumulated over batches.

    A feature set is the output of one stage, with the shape (images, ...). CKA is computed between each
    set of `a` and each set of `b`.
    """

    def __init__(self) -> None:
        self.cross: Tensor | float = 0.0
        self.own_a: Tensor | float = 0.0
        self.own_b: Tensor | float = 0.0

    def update(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
        """Add a batch, which must have the same images in the same order in all feature sets.

        Batches of fewer than four images are ignored.
        """
        if len(a[0]) < SMALLEST:
            return
        grams_a = _gram_matrices(a)
        grams_b = grams_a if b is a else _gram_matrices(b)
        self.cross += unbiased_hsic(grams_a[:, None], grams_b[None])
        self.own_a += unbiased_hsic(grams_a, grams_a)
        self.own_b += unbiased_hsic(grams_b, grams_b)

    def value(self) -> Tensor:
        """Return a matrix of CKA values, with a row for each feature set of `a` and a column for each feature set of `b`.

        CKA is 1 for features that are equal up to rotation and scale. It is NaN for features that do not vary.
        """
        if not isinstance(self.cross, Tensor):
            raise UserError(
                f'CKA: every batch is too small, because the unbiased estimate requires {SMALLEST} images per batch; raise '
                '--batch-size, or use more images',
                code='small-batch',
            )
        product = self.own_a[:, None] * self.own_b[None]
        norm = product.clamp_min(0).sqrt()
        cka = self.cross / norm
        return torch.where(product > 0, cka, torch.nan).cpu()


def _gram_matrices(features: Sequence[Tensor]) -> Tensor:
    """Return the inner products of all pairs of images, for each feature set, computed in float32 and returned in float64.

    The features are centered first. This does not change HSIC but preserves more digits.
    """
    grams = []
    for x in features:
        x = _centered(x.flatten(1).float())
        grams.append((x @ x.T).double())
    return torch.stack(grams)


def _centered(x: Tensor) -> Tensor:
    return x - x.mean(dim=0)


def _stage_features(
    networks: Sequence[nn.Module], batches: Iterable[Tensor]
) -> Iterator[list[dict[str, Tensor]]]:
    """Yield, for each batch, a dictionary of features for each network.

    The keys are the names of the network's stages, and 'pooled' for its pooled features.
    """
    by_network: list[dict[str, Tensor]] = [{} for _ in networks]
    with ExitStack() as hooks:
        for network, features in zip(networks, by_network):
            parts = stages(network)
            if not parts:
                raise UserError(
                    f"CKA: the network has no known stages ('{type(network).__name__}'); compare ResNets or ViTs",
                    code='no-stages',
                )
            for name, modules in parts.items():
                hooks.enter_context(_stored_output(modules[-1], features, name))
        for images in batches:
            for network, features in zip(networks, by_network):
                features['pooled'] = pooled(network(images))
            yield by_network


def _stored_output(
    module: nn.Module, features: dict[str, Tensor], name: str
) -> torch.utils.hooks.RemovableHandle:
    """Store the module's output in `features` at each forward pass until the returned handle is removed."""
    return module.register_forward_hook(
        lambda module, inputs, output: features.update({name: output})
    )


@torch.inference_mode()
def stage_cka(
    a: nn.Module,
    b: nn.Module,
    batches: Iterable[Tensor],
) -> tuple[Tensor, list[str], list[str]]:
    """Return the CKA of each stage of `a` with each stage of `b` on the same images, and the names of both networks' stages."""
    similarity = MinibatchCKA()
    for from_a, from_b in _stage_features([a, b], batches):
        similarity.update(list(from_a.values()), list(from_b.values()))
    return similarity.value(), list(from_a), list(from_b)


@torch.inference_mode()
def network_cka(
    networks: Sequence[nn.Module],
    batches: Iterable[Tensor],
    stage: str = 'pooled',
) -> Tensor:
    """Return the CKA of all pairs of networks at one stage. The networks may be the checkpoints of a run, for example."""
    similarity = MinibatchCKA()
    for by_network in _stage_features(networks, batches):
        for features in by_network:
            if stage not in features:
                raise UserError(
                    f"--stage: unknown stage '{stage}'; expected one of {', '.join(features)}",
                    code='unknown-stage',
                )
        selected = [features[stage] for features in by_network]
        similarity.update(selected, selected)
    return similarity.value()
