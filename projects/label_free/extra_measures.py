"""Label-free measures that the package does not have: CLID, intrinsic dimension, Epps-Pulley, k-NN on clusters."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from mmengine import Config
from torch import Tensor, nn

from mmairl.analysis import measures
from mmairl.analysis.measures import (
    IMAGES,
    KEPT,
    SAME_COUNT,
    Measure,
    Sample,
    measures_of,
    sample_features,
)
from mmairl.evaluation.knn import vote

NEIGHBORS = 20
CLUSTERS = 100
BLOCK = 1024
REVISION = 3  # increase this number when the definition of a measure changes
EXTRA = (
    Measure('cluster learnability', math.inf, '2000'),
    Measure('intrinsic dimension', math.inf, SAME_COUNT),
    Measure('CLID', math.inf, SAME_COUNT),
    Measure('Epps-Pulley', 0.0, '1000'),
    Measure('k-NN on clusters', math.inf, SAME_COUNT),
)
MEASURES = measures.MEASURES | {measure.name: measure for measure in EXTRA}
ONE_METHOD = {'training loss'}  # measures that can only compare networks of the same method
# For each head and additional loss term, the measures that its loss improves directly.
REWARDED: dict[str, tuple[str, ...]] = {
    'BarlowTwinsHead': ('alignment', 'RankMe'),
    'BatchContrastiveHead': ('alignment', 'uniformity'),
    'BrownianTerm': ('uniformity',),
    'CentroidHead': ('alignment',),
    'ContrastiveHead': ('alignment', 'uniformity'),
    'DINOHead': ('alignment', 'k-NN on clusters'),
    'InfoNCEHead': ('alignment', 'uniformity'),
    'LeJEPAHead': ('alignment', 'Epps-Pulley', 'RankMe'),
    'OptimalLinearHead': ('alignment',),
    'RegressionHead': ('alignment',),
    'SingularValueTerm': ('RankMe',),
    'SwAVHead': ('alignment', 'k-NN on clusters'),
    'UniformityTerm': ('uniformity',),
    'VICRegHead': ('alignment', 'RankMe'),
}


def goodness(measure: str, value: float) -> float:
    """Convert the value of a measure so that higher is better. NaN becomes -inf."""
    best = MEASURES[measure].best if measure in MEASURES else math.inf
    if math.isnan(value):
        return -math.inf
    if math.isinf(best):
        return value if best > 0 else -value
    return -abs(value - best)


def clusters(x: Tensor, seed: int = 0) -> Tensor:
    """Return the k-means cluster of each image. Measures use the clusters as pseudo-labels."""
    from sklearn.cluster import KMeans  # the import takes a second

    count = max(2, min(CLUSTERS, len(x) // 20))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # a collapsed network has fewer clusters than requested
        labels = KMeans(count, n_init=1, random_state=seed).fit_predict(x.numpy())
    return torch.from_numpy(labels).long()


def learnability(x: Tensor, labels: Tensor) -> float:
    """Return the percentage of images whose nearest neighbor among all earlier images has the same label (Lu et al. 2022).

    Return NaN if there is only one label, as after a collapse.
    """
    if labels.unique().numel() < 2:
        return math.nan
    x = x.double()
    right = 0
    for start in range(0, len(x), BLOCK):
        distances = torch.cdist(x[start : start + BLOCK], x)
        indices = torch.arange(start, start + len(distances))
        later = torch.arange(len(x)) >= indices[:, None]
        nearest = distances.masked_fill(later, math.inf).argmin(dim=1)
        matches = labels[nearest] == labels[indices]
        right += int(matches[indices > 0].sum())  # the first image has no earlier image
    return 100 * right / (len(x) - 1)


def two_nn(x: Tensor, discarded: float = 0.1) -> float:
    """Return the intrinsic dimension, estimated from the two nearest neighbors of each image (Facco et al. 2017).

    Let ``r`` be the ratio of the distances to the second and the first neighbor, and ``F`` its distribution function.
    Plotted over ``log(r)``, the values of ``-log(1 - F(r))`` form a line through the origin whose slope is the dimension.
    The largest ratios are discarded. Images that have a copy are left out. The result is 0 if fewer than ten images remain.
    """
    x = x.double()
    blocks = [torch.cdist(block, x).topk(3, largest=False).values for block in x.split(BLOCK)]
    near = torch.cat(blocks)
    rounding = 1e-6 * x.norm(dim=1).mean()
    near = near[near[:, 1] > rounding]
    if len(near) < 10:
        return 0.0
    used_count = round(len(near) * (1 - discarded))
    log_ratio = (near[:, 2] / near[:, 1]).log().sort().values[:used_count]
    share = torch.arange(1, used_count + 1, dtype=torch.float64) / len(near)
    slope = -(log_ratio * (1 - share).log()).sum() / log_ratio.square().sum().clamp_min(1e-300)
    return slope.item()


def epps_pulley(x: Tensor, slices: int = 256, seed: int = 0) -> float:
    """Return the Epps-Pulley distance of the features from a normal distribution, averaged over random directions.

    The distance is the squared difference between the characteristic functions of the features and of N(0, 1), weighted by
    N(0, 1). All dimensions of the centered features are scaled by the same number, so unequal variances increase the
    distance.
    """
    x = x.double() - x.double().mean(dim=0)
    x = x / x.square().mean().sqrt().clamp_min(1e-300)
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(x.shape[1], slices, generator=generator, dtype=torch.float64)
    z = x @ F.normalize(directions, dim=0)
    points = torch.linspace(0, 6, 49, dtype=torch.float64)
    normal = (-points.square() / 2).exp()
    cos = torch.stack([torch.cos(z * t).mean(dim=0) for t in points])
    sin = torch.stack([torch.sin(z * t).mean(dim=0) for t in points])
    distance = (cos - normal[:, None]).square() + sin.square()
    integral = torch.trapezoid(distance.mean(dim=1) * normal, points)
    return (2 * integral / math.sqrt(2 * math.pi)).item()


def knn_on_clusters(x: Tensor, view: Tensor, labels: Tensor) -> float:
    """Return the percentage of views to which k-NN on the other images assigns the label of the view's own image.

    Return NaN if there is only one label.
    """
    if labels.unique().numel() < 2:
        return math.nan
    similarity = F.normalize(view.double()) @ F.normalize(x.double()).T
    similarity.fill_diagonal_(-2)
    near = similarity.topk(min(NEIGHBORS, len(x) - 1), dim=1)
    votes = vote(near.values, labels[near.indices], int(labels.max()) + 1)
    return 100 * (votes.argmax(dim=1) == labels).double().mean().item()


def extra_measures_of(sample: Sample) -> dict[str, float]:
    """Return the measures that this module adds, except CLID."""
    features = sample.features[:KEPT]
    view, other_view = sample.views[-2:]
    return {
        'cluster learnability': learnability(features, clusters(features)),
        'intrinsic dimension': two_nn(features),
        'Epps-Pulley': epps_pulley(features),
        'k-NN on clusters': knn_on_clusters(view, other_view, clusters(view)),
    }


def all_measures(
    network: nn.Module, cfg: Config, loss: float = math.nan, count: int = IMAGES, **loading: Any
) -> dict[str, float]:
    """Return all measures of a network except CLID: those of the package and those of this module.

    The arguments are those of `mmairl.analysis.measures.measure_network`.
    """
    sample = sample_features(network, cfg, count, **loading)
    if sample is None:
        return dict.fromkeys(MEASURES, math.nan)
    return {**measures_of(sample), **extra_measures_of(sample), 'training loss': loss}


def with_clid(networks: Mapping[Any, Mapping[str, float]]) -> dict[Any, dict[str, float]]:
    """Add CLID (Lu et al. 2022), whose value for a network depends on the other networks.

    CLID is the sum of cluster learnability and intrinsic dimension, each standardized over the networks. If a network lacks
    one of these values, its CLID is NaN, and the missing value does not affect the other networks.
    """
    clid = torch.zeros(len(networks), dtype=torch.float64)
    for name in ('cluster learnability', 'intrinsic dimension'):
        values = [numbers.get(name, math.nan) for numbers in networks.values()]
        column = torch.tensor(values, dtype=torch.float64)
        centered = column - column.nanmean()
        clid += centered / centered.square().nanmean().sqrt().clamp_min(1e-9)
    return {
        name: {**numbers, 'CLID': value}
        for (name, numbers), value in zip(networks.items(), clid.tolist())
    }
