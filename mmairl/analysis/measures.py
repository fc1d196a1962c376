"""Measures of a network that need no label, by which people choose before there are any; docs/measures.md has their regret.

All but the training loss are of the backbone's features, since these are what is kept; papers that take the embeddings of a
projector get other numbers. Each is in float64. Spectra and LiDAR come of sums over batches, so that any number of images will
do; what compares images with one another is of `KEPT` at most.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from mmengine import Config
from torch import Tensor, nn

from mmairl.analysis.geometry import CHANGES, alignment, invariance, uniformity
from mmairl.analysis.subjects import Images
from mmairl.engine.curves import read_scalars
from mmairl.errors import UserError
from mmairl.evaluation.neighbors import vote
from mmairl.models.siamese import pooled
from mmairl.models.spectrum import effective
from mmairl.randomness import same_randomness

IMAGES = 25_600  # of spectra, as RankMe's authors take
KEPT, VIEWED, CHANGED = 2000, 1000, 512  # images of the other measures, of those on views, of those on changes
VIEWS = 10  # of each image
NEIGHBOURS, CLUSTERS = 20, 100
BLOCK = 1024
REVISION = 3  # raise it with a change that changes a measure
EQUAL = 'equal numbers'  # it grows with them, so that networks are compared on as many


@dataclass(frozen=True)
class Measure:
    """A measure is better the nearer it is to its `best`; from so many `images` on it changes by less than 5 % with more."""

    name: str
    best: float
    images: str
    across: bool = True  # methods too, not only settings of one

    def goodness(self, value: float) -> float:
        """Return what is higher for the better network; a value that is no number is the worst."""
        if math.isnan(value):
            return -math.inf
        if math.isinf(self.best):
            return value if self.best > 0 else -value
        return -abs(value - self.best)


MEASURES = {
    measure.name: measure
    for measure in (
        Measure('RankMe', math.inf, '2000'),
        Measure('LiDAR', math.inf, EQUAL),
        Measure('alpha-ReQ', 1.0, '1000'),
        Measure('cluster learnability', math.inf, '2000'),
        Measure('intrinsic dimension', math.inf, EQUAL),
        Measure('CLID', math.inf, EQUAL),
        Measure('Epps-Pulley', 0.0, '1000'),
        Measure('uniformity', -math.inf, '500'),
        Measure('alignment', 0.0, '1000'),
        Measure('k-NN on clusters', math.inf, EQUAL),
        *(Measure(f'invariance to {name}', math.inf, '500') for name in CHANGES),
        Measure('training loss', -math.inf, 'none', across=False),
    )
}


class Scatter:
    """Second moments of rows that come in batches."""

    def __init__(self) -> None:
        self.count, self.sum, self.products = 0, 0.0, 0.0

    def update(self, rows: Tensor) -> None:
        rows = rows.double()
        self.count += len(rows)
        self.sum, self.products = self.sum + rows.sum(dim=0), self.products + rows.T @ rows

    def rankme(self) -> float:
        """RankMe of all rows (Garrido et al. 2023)."""
        return effective(torch.linalg.eigvalsh(self.products).clamp_min(0).sqrt())

    def eigenvalues(self) -> Tensor:
        """Return those of the covariance, descending."""
        mean = self.sum / self.count
        return torch.linalg.eigvalsh(self.products / self.count - mean.outer(mean)).clamp_min(0).flip(0)


def decay(eigenvalues: Tensor, first: int = 5, last: int = 100) -> float:
    """alpha-ReQ (Agrawal et al. 2022): the alpha of eigenvalue ~ rank^-alpha, by least squares over these ranks in logarithms.

    Infinite where fewer than five of them are above rounding.
    """
    tail = eigenvalues[: int((eigenvalues > 1e-10 * eigenvalues[0]).sum())][first - 1 : last]
    if len(tail) < 5:
        return math.inf
    x = torch.arange(first, first + len(tail), dtype=torch.float64).log()
    return -(((x - x.mean()) * tail.log()).sum() / (x - x.mean()).square().sum()).item()


class Lidar:
    """LiDAR (Thilak et al. 2023): the effective rank of Fisher's discriminants, with an image's views for a class."""

    def __init__(self) -> None:
        self.views, self.sums, self.products = 0, 0.0, 0.0

    def update(self, rows: Tensor) -> None:
        """Add one more view of every image, in the same order."""
        rows = rows.double()
        self.views, self.sums, self.products = self.views + 1, self.sums + rows, self.products + rows.T @ rows

    def value(self, delta: float = 1e-4) -> float:
        means = self.sums / self.views
        within = self.products / (self.views * len(means)) - means.T @ means / len(means)
        centred = means - means.mean(dim=0)
        root = torch.linalg.cholesky(within + delta * torch.eye(len(within), dtype=torch.float64))
        half = torch.linalg.solve_triangular(root, centred.T, upper=False)
        return effective(torch.linalg.eigvalsh(half @ half.T).clamp_min(0))


def clusters(x: Tensor, seed: int = 0) -> Tensor:
    """Pseudo-labels by k-means."""
    from sklearn.cluster import KMeans  # takes a second

    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of a collapsed network there are fewer clusters than asked for
        count = max(2, min(CLUSTERS, len(x) // 20))
        return torch.from_numpy(KMeans(count, n_init=1, random_state=seed).fit_predict(x.numpy())).long()


def learnability(x: Tensor, labels: Tensor) -> float:
    """Percent of the images, each in turn, whose nearest neighbour among those before it has its label (Lu et al. 2022).

    NaN where all have one label, as after a collapse: there is nothing to be told apart.
    """
    x, right = x.double(), 0 if labels.unique().numel() > 1 else math.nan
    for start in range(0, len(x), BLOCK):
        apart = torch.cdist(x[start : start + BLOCK], x)
        later = torch.arange(len(x)) >= torch.arange(start, start + len(apart))[:, None]
        nearest = apart.masked_fill(later, math.inf).argmin(dim=1)
        right += int((labels[nearest] == labels[start : start + BLOCK])[int(start == 0) :].sum())
    return 100 * right / (len(x) - 1)


def two_nn(x: Tensor, discarded: float = 0.1) -> float:
    """The intrinsic dimension by the ratio of the distances to the second and the first neighbour (Facco et al. 2017).

    -log(1 - F) over the logarithm of the ratio is a line through 0 whose slope it is; the largest ratios are left out. Copies
    of an image have no ratio; 0 where all are copies.
    """
    x = x.double()
    near = torch.cat(
        [torch.cdist(x[at : at + BLOCK], x).topk(3, largest=False).values for at in range(0, len(x), BLOCK)]
    )
    near = near[near[:, 1] > 1e-6 * x.norm(dim=1).mean()]  # of copies, rounding is left
    if len(near) < 10:
        return 0.0
    ratio = (near[:, 2] / near[:, 1]).log().sort().values[: round(len(near) * (1 - discarded))]
    share = torch.arange(1, len(ratio) + 1, dtype=torch.float64) / len(near)
    return (-(ratio * (1 - share).log()).sum() / ratio.square().sum().clamp_min(1e-300)).item()


def epps_pulley(x: Tensor, slices: int = 256, seed: int = 0) -> float:
    """The squared distance of characteristic functions from N(0, 1)'s, weighted by N(0, 1), over random directions.

    Features are centred and scaled as a whole, so that it wants equal variances as well as normal ones.
    """
    x = x.double() - x.double().mean(dim=0)
    x = x / x.square().mean().sqrt().clamp_min(1e-300)
    directions = torch.randn(x.shape[1], slices, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z, points = x @ F.normalize(directions, dim=0), torch.linspace(0, 6, 49, dtype=torch.float64)
    normal = (-points.square() / 2).exp()
    cos, sin = (torch.stack([wave(z * t).mean(dim=0) for t in points]) for wave in (torch.cos, torch.sin))
    distance = (cos - normal[:, None]).square() + sin.square()
    return (2 * torch.trapezoid(distance.mean(dim=1) * normal, points) / math.sqrt(2 * math.pi)).item()


def knn_on_clusters(x: Tensor, view: Tensor, labels: Tensor) -> float:
    """Percent of the views whose neighbours, among the other images, vote for their own image's label; NaN of one label."""
    if labels.unique().numel() < 2:
        return math.nan
    alike = (F.normalize(view.double()) @ F.normalize(x.double()).T).fill_diagonal_(-2)
    near = alike.topk(min(NEIGHBOURS, len(x) - 1), dim=1)
    voted = vote(near.values, labels[near.indices], int(labels.max()) + 1).argmax(dim=1)
    return 100 * (voted == labels).double().mean().item()


@torch.inference_mode()
def measures(
    network: nn.Module, cfg: Config, loss: float = math.nan, count: int = IMAGES, **how: object
) -> dict[str, float]:
    """Return every measure of a network but CLID, of training images whose labels are not looked at.

    `how` is what `Images` takes: batch size, workers, device.
    """
    images, few = (Images(cfg, number, part='train', **how) for number in (count, min(count, VIEWED)))
    embed, scatter, lidar, x = partial(images.embed, network), Scatter(), Lidar(), torch.empty(0)
    for batch in images.raw():
        rows = embed(batch).cpu()
        scatter.update(rows)
        x = torch.cat([x, rows])[:KEPT] if len(x) < KEPT else x
    if not x.isfinite().all():
        return dict.fromkeys(MEASURES, math.nan)
    with same_randomness():
        torch.manual_seed(0)
        for _ in range(VIEWS // 2):
            pairs = [[pooled(network(view)).float().cpu() for view in views] for views in few.views()]
            first, second = map(torch.cat, zip(*pairs))
            lidar.update(first)
            lidar.update(second)
    changed = invariance(embed, torch.cat(list(few.raw()))[:CHANGED], (0.5, 1.0))
    kept = {f'invariance to {name}': mean(left) for name, left in changed.items()}
    return {**of_features(x, scatter, lidar, first, second), **kept, 'training loss': loss}


def of_features(x: Tensor, scatter: Scatter, lidar: Lidar, first: Tensor, second: Tensor) -> dict[str, float]:
    """Return the measures of features as they are: of images, what they and their views add up to, and two views of some."""
    return {
        'RankMe': scatter.rankme(),
        'LiDAR': lidar.value(),
        'alpha-ReQ': decay(scatter.eigenvalues()),
        'cluster learnability': learnability(x, clusters(x)),
        'intrinsic dimension': two_nn(x),
        'Epps-Pulley': epps_pulley(x),
        'uniformity': uniformity(x),
        'alignment': alignment(first, second),
        'k-NN on clusters': knn_on_clusters(first, second, clusters(first)),
    }


def training_loss(work_dir: Path, until: float = math.inf) -> float:
    """Return the mean loss over the last tenth of the steps of a run, up to a step of it; NaN where there is no log."""
    try:
        steps, values = read_scalars(work_dir).get('loss', ((), ()))
    except UserError:
        return math.nan
    end = min(until, max(steps, default=0))
    return mean([value for step, value in zip(steps, values) if 0.9 * end < step <= end] or [math.nan])


def with_clid(networks: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Add CLID (Lu et al. 2022), which networks have only beside one another."""
    parts = []
    for name in ('cluster learnability', 'intrinsic dimension'):
        values = torch.tensor([numbers.get(name, math.nan) for numbers in networks.values()], dtype=torch.float64)
        apart = values - values.nanmean()  # one that diverged has none, and takes it from no other
        parts.append(apart / apart.square().nanmean().sqrt().clamp_min(1e-9))
    return {name: {**numbers, 'CLID': clid} for (name, numbers), clid in zip(networks.items(), sum(parts).tolist())}
