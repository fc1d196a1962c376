"""Measures of a network that need no labels: RankMe, LiDAR, alpha-ReQ, uniformity, alignment and invariance.

All but the training loss describe the backbone's features, because these are what is kept after pre-training; papers that
measure the embeddings of a projector report other numbers. Everything is computed in float64. Spectra and LiDAR are computed
from sums over batches, so that they take any number of images; measures that compare images use at most `KEPT`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from mmengine import Config
from torch import Tensor, nn

from mmairl.analysis.geometry import CHANGES, alignment, invariance, uniformity
from mmairl.analysis.subjects import Images
from mmairl.engine.curves import read_scalars
from mmairl.errors import UserError
from mmairl.models.backbones import pooled
from mmairl.models.spectrum import effective
from mmairl.randomness import same_randomness

IMAGES = 25_600  # for spectra, as the authors of RankMe use
KEPT = 2000  # images for measures that compare images
VIEWED = 1000  # images for measures on augmented views
CHANGED = 512  # images for invariances
VIEWS = 10  # of each image
SAME_COUNT = 'equal numbers'  # the measure grows with the images: compare networks on equally many


@dataclass(frozen=True)
class Measure:
    """A measure that needs no labels.

    Args:
        name: Its name in tables.
        best: The value of an ideal network; networks are better the closer they come.
        images: From this many images on, more images change it by less than 5 %.
        across: Whether networks of different methods can be compared.
    """

    name: str
    best: float
    images: str
    across: bool = True

    def goodness(self, value: float) -> float:
        """Return a number that is higher for better networks, and -inf for NaN."""
        if math.isnan(value):
            return -math.inf
        if math.isinf(self.best):
            return value if self.best > 0 else -value
        return -abs(value - self.best)


_ALL = (
    Measure('RankMe', math.inf, '2000'),
    Measure('LiDAR', math.inf, SAME_COUNT),
    Measure('alpha-ReQ', 1.0, '1000'),
    Measure('uniformity', -math.inf, '500'),
    Measure('alignment', 0.0, '1000'),
    *(Measure(f'invariance to {name}', math.inf, '500') for name in CHANGES),
    Measure('training loss', -math.inf, 'none', across=False),
)
MEASURES = {measure.name: measure for measure in _ALL}


class Moments:
    """First and second moments of rows that arrive in batches."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Tensor | float = 0.0
        self.products: Tensor | float = 0.0

    def update(self, rows: Tensor) -> None:
        rows = rows.double()
        self.count += len(rows)
        self.sum = self.sum + rows.sum(dim=0)
        self.products = self.products + rows.T @ rows

    def rankme(self) -> float:
        """Return RankMe of all rows (Garrido et al. 2023)."""
        return effective(torch.linalg.eigvalsh(self.products).clamp_min(0).sqrt())

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of the covariance, descending."""
        center = self.sum / self.count
        covariance = self.products / self.count - center.outer(center)
        return torch.linalg.eigvalsh(covariance).clamp_min(0).flip(0)


def alpha_req(eigenvalues: Tensor, first: int = 5, last: int = 100) -> float:
    """Return alpha-ReQ: the alpha of ``eigenvalue ~ rank^-alpha`` (Agrawal et al. 2022).

    It is fitted by least squares in logarithms over the ranks `first` to `last`, and infinite if fewer than five of
    these eigenvalues are above rounding.
    """
    above_rounding = int((eigenvalues > 1e-10 * eigenvalues[0]).sum())
    tail = eigenvalues[:above_rounding][first - 1 : last]
    if len(tail) < 5:
        return math.inf
    x = torch.arange(first, first + len(tail), dtype=torch.float64).log()
    x = x - x.mean()
    slope = (x * tail.log()).sum() / x.square().sum()
    return -slope.item()


class Lidar:
    """LiDAR: the effective rank of Fisher's discriminants, with the views of an image as a class (Thilak et al. 2023)."""

    def __init__(self) -> None:
        self.views = 0
        self.sums: Tensor | float = 0.0
        self.products: Tensor | float = 0.0

    def update(self, rows: Tensor) -> None:
        """Add one more view of every image, in the same order."""
        rows = rows.double()
        self.views += 1
        self.sums = self.sums + rows
        self.products = self.products + rows.T @ rows

    def value(self, delta: float = 1e-4) -> float:
        means = self.sums / self.views
        images = len(means)
        within = self.products / (self.views * images) - means.T @ means / images
        centered = means - means.mean(dim=0)
        root = torch.linalg.cholesky(within + delta * torch.eye(len(within), dtype=torch.float64))
        whitened = torch.linalg.solve_triangular(root, centered.T, upper=False)
        return effective(torch.linalg.eigvalsh(whitened @ whitened.T).clamp_min(0))


@dataclass(frozen=True)
class Sample:
    """The features that measures are computed from.

    Args:
        features: Features of the first images, at most `KEPT`.
        moments: Moments of the features of all images.
        lidar: LiDAR's sums over the views.
        views: Features of two views of the same images, at most `VIEWED`.
        kept: The likeness to itself that an image keeps under each change of `CHANGES`.
    """

    features: Tensor
    moments: Moments
    lidar: Lidar
    views: tuple[Tensor, Tensor]
    kept: Mapping[str, float]


@torch.inference_mode()
def sample_features(
    network: nn.Module, cfg: Config, count: int = IMAGES, **loading: Any
) -> Sample | None:
    """Return the features of a network on training images and their views; None if any feature is not finite.

    Args:
        network: The backbone.
        cfg: The config of the pre-training, for its images and views. Labels are not used.
        count: The number of images.
        loading: Arguments of `Images`: batch size, workers, device.
    """
    images = Images(cfg, count, part='train', **loading)
    embed = partial(images.embed, network)
    moments = Moments()
    features = torch.empty(0)
    for batch in images.raw():
        rows = embed(batch).cpu()
        moments.update(rows)
        if len(features) < KEPT:
            features = torch.cat([features, rows])[:KEPT]
    if not features.isfinite().all():
        return None
    few = Images(cfg, min(count, VIEWED), part='train', **loading)
    lidar = Lidar()
    with same_randomness():
        torch.manual_seed(0)
        for _ in range(VIEWS // 2):
            first, second = embed_views(network, few)
            lidar.update(first)
            lidar.update(second)
    changed = invariance(embed, few.first(CHANGED), strengths=(0.5, 1.0))
    kept = {name: mean(values) for name, values in changed.items()}
    return Sample(features, moments, lidar, (first, second), kept)


def embed_views(network: nn.Module, images: Images) -> tuple[Tensor, Tensor]:
    """Return the features of two augmented views of each image."""
    firsts: list[Tensor] = []
    seconds: list[Tensor] = []
    for first, second in images.views():
        firsts.append(pooled(network(first)).float().cpu())
        seconds.append(pooled(network(second)).float().cpu())
    return torch.cat(firsts), torch.cat(seconds)


def measures_of(sample: Sample) -> dict[str, float]:
    """Return every measure of `MEASURES` but the training loss."""
    return {
        'RankMe': sample.moments.rankme(),
        'LiDAR': sample.lidar.value(),
        'alpha-ReQ': alpha_req(sample.moments.eigenvalues()),
        'uniformity': uniformity(sample.features),
        'alignment': alignment(*sample.views),
        **{f'invariance to {name}': value for name, value in sample.kept.items()},
    }


def measure_network(
    network: nn.Module, cfg: Config, loss: float = math.nan, count: int = IMAGES, **loading: Any
) -> dict[str, float]:
    """Return every measure of a network; the arguments are those of `sample_features`, and its training loss."""
    sample = sample_features(network, cfg, count, **loading)
    if sample is None:
        return dict.fromkeys(MEASURES, math.nan)
    return {**measures_of(sample), 'training loss': loss}


def training_loss(work_dir: Path, until: float = math.inf) -> float:
    """Return the mean loss over the last tenth of a run's steps, up to the step `until`; NaN if the run has no log."""
    try:
        curves = read_scalars(work_dir)
    except UserError:
        return math.nan
    steps, values = curves.get('loss', ((), ()))
    end = min(until, max(steps, default=0))
    last = [value for step, value in zip(steps, values) if 0.9 * end < step <= end]
    return mean(last) if last else math.nan
