"""Measures of a network that need no labels: RankMe, LiDAR, alpha-ReQ, uniformity, alignment, invariance and training loss.

All measures except the training loss are computed from the features of the backbone, which is the part that users keep after
pre-training. Papers that compute them from the embeddings of a projector report different numbers. All computations are in
float64. RankMe and alpha-ReQ use all images of a sample; the other measures use fewer images, as the constants below state.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from mmengine import Config
from scipy import stats
from torch import Tensor, nn

from mmairl.analysis.geometry import CHANGES, alignment, invariance, uniformity
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.load import load_checkpoint
from mmairl.engine.curves import read_scalars
from mmairl.errors import UserError
from mmairl.models.backbones import pooled
from mmairl.models.spectrum import effective, rankme, singular_values
from mmairl.randomness import same_randomness

# RankMe and alpha-ReQ use this number of images by default, as in the RankMe paper.
IMAGES = 25_600
# Uniformity compares all pairs of this number of images.
KEPT = 2000
# LiDAR and alignment use augmented views of this number of images.
VIEWED = 1000
# Invariance is measured on this number of images.
CHANGED = 512
# LiDAR uses this number of augmented views of each image.
VIEWS = 10
# If a measure grows with the number of images, networks must be compared on equal numbers of images.
SAME_COUNT = 'equal numbers'


@dataclass(frozen=True)
class Measure:
    """A measure that needs no labels.

    Args:
        name: The name of the measure in tables.
        best: The ideal value. The closer the value of a network is to the ideal value, the better the network is.
        images: How many images the measure requires, as text. If it is a number, using more images than this number
            changes the value by less than 5 %.
    """

    name: str
    best: float
    images: str


_ALL = (
    Measure('RankMe', math.inf, '2000'),
    Measure('LiDAR', math.inf, SAME_COUNT),
    Measure('alpha-ReQ', 1.0, '1000'),
    Measure('uniformity', -math.inf, '500'),
    Measure('alignment', 0.0, '1000'),
    *(Measure(f'invariance to {name}', math.inf, '500') for name in CHANGES),
    Measure('training loss', -math.inf, 'none'),
)
MEASURES = {measure.name: measure for measure in _ALL}


def alpha_req(eigenvalues: Tensor, first: int = 5, last: int = 100) -> float:
    """Return alpha-ReQ, which is the alpha of ``eigenvalue ~ rank^-alpha`` (Agrawal et al. 2022).

    It is fitted by least squares to the logarithms of the eigenvalues from rank `first` to rank `last`. It is infinite if
    fewer than five of these eigenvalues are larger than rounding errors.
    """
    above_rounding = int((eigenvalues > 1e-10 * eigenvalues[0]).sum())
    tail = eigenvalues[:above_rounding][first - 1 : last]
    if len(tail) < 5:
        return math.inf
    ranks = np.arange(first, first + len(tail))
    fit = stats.linregress(np.log(ranks), tail.log())
    return -float(fit.slope)


def lidar(views: Tensor, delta: float = 1e-4) -> float:
    """Return LiDAR (Thilak et al. 2023) of the features (views, images, C) of augmented views.

    LiDAR is the effective rank of a linear discriminant analysis in which the views of each image form a class.
    """
    means = views.double().mean(dim=0)
    deviations = (views - means).flatten(0, 1)
    within = deviations.T @ deviations / len(deviations)
    within.diagonal().add_(delta)
    root = torch.linalg.cholesky(within)
    centered = means - means.mean(dim=0)
    whitened = torch.linalg.solve_triangular(root, centered.T, upper=False)
    discriminants = torch.linalg.eigvalsh(whitened @ whitened.T)
    return effective(discriminants.clamp_min(0))


@dataclass(frozen=True)
class Sample:
    """The features from which the measures of a network are computed.

    Args:
        features: Features of all images.
        views: (views, images, C) Features of augmented views of the first images, up to `VIEWED` images.
        kept: For each change of `CHANGES` that applies to the images, the mean similarity between images and their changed
            copies (`invariance`), over two strengths.
    """

    features: Tensor
    views: Tensor
    kept: Mapping[str, float]


@torch.inference_mode()
def sample_features(
    network: nn.Module, cfg: Config, count: int = IMAGES, **loading: Any
) -> Sample | None:
    """Return the features of a network on training images and on augmented views of them.

    Returns None if any feature is NaN or infinite.

    Args:
        network: The backbone.
        cfg: The config of the pre-training, which defines the images and views. Labels are not used.
        count: The number of images.
        loading: Further arguments of `Images`: batch size, workers, device.
    """
    images = Images(cfg, count, part='train', **loading)
    embed = partial(images.embed, network)
    rows = [embed(batch).cpu() for batch in images.raw()]
    features = torch.cat(rows)
    if not features.isfinite().all():
        return None
    few = Images(cfg, min(count, VIEWED), part='train', **loading)
    views = []
    with same_randomness():
        torch.manual_seed(0)
        for _ in range(VIEWS // 2):
            views += embed_views(network, few)
    changed = invariance(embed, few.first(CHANGED), strengths=(0.5, 1.0))
    kept = {}
    for name, values in changed.items():
        kept[name] = mean(values)
    return Sample(features, torch.stack(views), kept)


def embed_views(network: nn.Module, images: Images) -> tuple[Tensor, Tensor]:
    """Return the features of two augmented views of each image."""
    firsts = []
    seconds = []
    for first, second in images.views():
        firsts.append(pooled(network(first)).float().cpu())
        seconds.append(pooled(network(second)).float().cpu())
    return torch.cat(firsts), torch.cat(seconds)


def measures_of(sample: Sample) -> dict[str, float]:
    """Return the value of each measure of `MEASURES` that applies to the images, except the training loss."""
    return {
        'RankMe': rankme(sample.features),
        'LiDAR': lidar(sample.views),
        'alpha-ReQ': alpha_req(singular_values(sample.features, centred=True).square()),
        'uniformity': uniformity(sample.features[:KEPT]),
        'alignment': alignment(*sample.views[-2:]),
        **{f'invariance to {name}': value for name, value in sample.kept.items()},
    }


def measure_network(
    network: nn.Module,
    cfg: Config,
    loss: float = math.nan,
    count: int = IMAGES,
    **loading: Any,
) -> dict[str, float]:
    """Return the value of each measure of a network. All values are NaN if any feature is NaN or infinite.

    Args:
        network: The backbone.
        cfg: The config of the pre-training.
        loss: The training loss.
        count: The number of images.
        loading: Further arguments of `Images`: batch size, workers, device.
    """
    sample = sample_features(network, cfg, count, **loading)
    if sample is None:
        return dict.fromkeys(MEASURES, math.nan)
    return {**measures_of(sample), 'training loss': loss}


def checkpoint_loss(checkpoint: Path) -> float:
    """Return the training loss shortly before a checkpoint was written, from the log of its run; NaN without a log."""
    steps = math.inf
    if checkpoint.is_file():
        meta = load_checkpoint(checkpoint).get('meta')
        if isinstance(meta, dict):
            steps = meta.get('iter', steps)
    return training_loss(checkpoint.parent, steps)


def training_loss(work_dir: Path, until: float = math.inf) -> float:
    """Return the mean loss over the last tenth of a run's steps up to the step `until`; NaN if the run has no log."""
    try:
        steps, values = read_scalars(work_dir).get('loss', ((), ()))
    except UserError:
        return math.nan
    end = min(until, max(steps, default=0))
    last = []
    for step, value in zip(steps, values):
        if 0.9 * end < step <= end:
            last.append(value)
    return mean(last) if last else math.nan
