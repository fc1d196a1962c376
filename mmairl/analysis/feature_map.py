"""A map of images by their features: t-SNE, nearest neighbors, near-duplicates, outliers and groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from mmairl.checkpoints.read import Backbone
from mmairl.errors import Diverged, UserError
from mmairl.evaluation.embed import write_patches
from mmairl.evaluation.features import Extraction
from mmairl.models.backbones import pooled

PIXELS = 16  # the side of the small images whose pixels are features
SAME = 1e-6  # smaller cosine distances are rounding errors of float32
BLOCK = 256  # rows that are compared with all others at once
NEAREST_CELLS = 8  # neighbors of a cell
CENTRAL = 8  # images that represent a group
GROUP_COUNTS = (4, 8, 12, 16, 24)
SILHOUETTE_IMAGES = 2000
COMPONENTS = 30


def principal_components(x: Tensor, seed: int) -> np.ndarray:
    """Return the first 30 principal components of unit features, (N, 30)."""
    count = min(COMPONENTS, *x.shape)
    unit = F.normalize(x).numpy()
    return PCA(count, random_state=seed).fit_transform(unit)


def tsne(x: Tensor, seed: int = 0) -> np.ndarray:
    """Return t-SNE of unit features, (N, 2). It uses their principal components, which saves time and changes little."""
    components = principal_components(x, seed)
    perplexity = min(30, (len(components) - 1) / 3)
    embedding = TSNE(
        perplexity=perplexity,
        init='pca',
        random_state=seed,
        max_iter=500,
        n_jobs=-1,
    )
    return embedding.fit_transform(components)


@torch.no_grad()
def extract_map_features(
    networks: Sequence[nn.Module],
    dataset: Dataset,
    extraction: Extraction,
    on_images: Callable[[Tensor], None],
) -> tuple[list[Tensor], Tensor]:
    """Return pixels and the features of each network for the readable images, and which images are readable.

    `on_images` is called with each batch of readable images, normalized.
    """
    for network in networks:
        network.to(extraction.device, memory_format=torch.channels_last).eval()
    rows: list[list[Tensor]] = []
    readable: list[Tensor] = []
    for images, _, fine in extraction.images(dataset, 'map'):
        readable.append(fine)
        if fine.any():
            images = images[fine.to(images.device)]
            pixels = F.adaptive_avg_pool2d(images, PIXELS).flatten(1)
            parts = [pixels, *(pooled(network(images)) for network in networks)]
            rows.append([part.float().cpu() for part in parts])
            on_images(images)
    features = [torch.cat(column) for column in zip(*rows)]
    return features, torch.cat(readable)


def differ(x: Tensor) -> bool:
    """Return whether the direction of any row differs from that of the first. All rows of zeros have the same direction."""
    first = F.normalize(x[:1])
    for block in x.split(BLOCK):
        squared = (F.normalize(block) - first).square()
        if squared.sum(dim=1).max() > 2 * SAME:
            return True
    return False


def require_differences(pixels: Tensor, trained: Tensor, images: int, checkpoint: str) -> None:
    """Raise unless a map can be drawn: at least three readable images, finite features, and features that differ."""
    if len(trained) < 3:
        raise UserError(
            f"map: requires at least three readable images ('{len(trained)}' of {images}); add images",
            code='too-few-images',
        )
    if not trained.isfinite().all():
        raise Diverged(
            f'{checkpoint}: the features are NaN or infinite, because the pre-training diverged; use an earlier checkpoint',
            code='not-finite',
        )
    if differ(trained):
        return
    if (pixels == pixels[:1]).all():
        raise UserError(
            f'map: all {len(trained)} images are the same; use images that differ',
            code='same-images',
        )
    raise UserError(
        f'{checkpoint}: all {len(trained)} images have the same features, because the network has collapsed; use another '
        'checkpoint, and see `mmairl report health` on its run',
        code='collapsed-features',
    )


def nearest_cells(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the nearest cells in other images.

    Args:
        x: Features of cells, (images, cells, C). Whole images have one cell.
        k: The number of neighbors, each in another image.

    Returns:
        Cosine distances and positions ``image * cells + cell``, both (images * cells, k).
    """
    images, cells, _ = x.shape
    bank = F.normalize(x.flatten(0, 1))
    image_of_row = torch.arange(images).repeat_interleave(cells)
    parts = []
    for block, own in zip(bank.split(BLOCK), image_of_row.split(BLOCK)):
        similarities = block @ bank.T
        best, cell = similarities.view(-1, images, cells).max(2)
        best.scatter_(1, own[:, None], -torch.inf)
        similarity, image = best.topk(k)
        distance = (1 - similarity).clamp_min(0)
        position = image * cells + cell.gather(1, image)
        parts.append((distance, position))
    distances, positions = zip(*parts)
    return torch.cat(distances), torch.cat(positions)


@dataclass(frozen=True)
class ImageCells:
    """The nearest cells of some images.

    Args:
        images: Positions of these images.
        rows: The rows of cells in an image.
        columns: The columns of cells in an image.
        distance: Cosine distances to the nearest cells, ascending.
        position: The nearest cells, as in `nearest_cells`.
    """

    images: list[int]
    rows: int
    columns: int
    distance: Tensor
    position: Tensor


def find_nearest_cells(
    count: int,
    readable: Sequence[int],
    cfg: Config,
    weights: Backbone,
    dataset: Dataset,
    extraction: Extraction,
) -> ImageCells:
    """Return the nearest cells of `count` images, evenly spaced among the readable ones."""
    last = len(readable) - 1
    places = np.linspace(0, last, min(count, len(readable)))
    chosen = np.unique(places.round().astype(int)).tolist()
    subset = Subset(dataset, [readable[place] for place in chosen])
    with TemporaryDirectory() as folder:
        file = Path(folder) / 'cells.npy'
        x, coordinates, _ = write_patches(file, cfg, weights, subset, extraction)
        count = min(NEAREST_CELLS, len(chosen) - 1)
        near = nearest_cells(torch.tensor(x), count)
    tops, lefts = coordinates.T
    rows = len(np.unique(tops))
    columns = len(np.unique(lefts))
    return ImageCells(chosen, rows, columns, *near)


def distance_limits(distances: Tensor) -> tuple[float, float]:
    """Return Tukey's fences of the logarithms: distances below the first or above the second are exceptional."""
    logs = distances[distances > SAME].double().log()
    if len(logs) < 4:
        return SAME, float('inf')
    low, high = np.quantile(logs, [0.25, 0.75])
    reach = 1.5 * (high - low)
    shortest = max(SAME, np.exp(low - reach))
    return shortest, np.exp(high + reach)


@dataclass(frozen=True)
class Outstanding:
    """Near-duplicates and outliers.

    Args:
        near: The distance up to which images are near-duplicates.
        far: The distance to the nearest image from which an image is an outlier.
        duplicates: Groups of near-duplicates, largest first, each with the largest distance to a nearest neighbor.
        outliers: Images and the distances to their nearest neighbors, farthest first.
    """

    near: float
    far: float
    duplicates: list[tuple[list[int], float]]
    outliers: list[tuple[int, float]]


def find_outstanding(x: Tensor, distance: Tensor) -> Outstanding:
    """Find near-duplicates and outliers from features and the `distance` of each image to its nearest neighbor."""
    near, far = distance_limits(distance)
    close = (distance <= near + SAME).nonzero().flatten()  # all images that have a duplicate
    duplicates = []
    for rows in linked_groups(x[close], near):
        members = close[rows]
        farthest = float(distance[members].max())
        duplicates.append((members.tolist(), farthest))
    values, images = distance.sort(descending=True, stable=True)
    is_far = values > far
    outliers = list(zip(images[is_far].tolist(), values.tolist()))
    return Outstanding(near, far, duplicates, outliers)


def linked_groups(x: Tensor, limit: float) -> list[np.ndarray]:
    """Return groups of rows that are connected by steps of cosine distance up to `limit`, the largest first."""
    unit = F.normalize(x)
    group = np.arange(len(x))
    for start in range(0, len(x), BLOCK):
        distance = 1 - unit[start : start + BLOCK] @ unit[start:].T
        near = (distance <= limit).nonzero().T.numpy()
        pairs = group[near + start]
        is_near = np.ones(pairs.shape[1], bool)
        steps = coo_array((is_near, pairs), shape=(len(x), len(x)))
        _, group_of_group = connected_components(steps, directed=False)
        group = group_of_group[group]
    several = np.flatnonzero(np.bincount(group) > 1)
    groups = [np.flatnonzero(group == number) for number in several]
    return sorted(groups, key=len, reverse=True)


@dataclass(frozen=True)
class Group:
    """A group of images: its members, and those nearest to its center."""

    members: np.ndarray
    central: list[int]


def find_clusters(x: Tensor, seed: int) -> list[Group]:
    """Return groups by k-means of the principal components, largest first. The number of groups has the best silhouette."""
    components = principal_components(x, seed)
    counts = [count for count in GROUP_COUNTS if 4 * count <= len(components)]
    if not counts:
        return []
    sample = dict(sample_size=min(SILHOUETTE_IMAGES, len(components)), random_state=seed)
    fits = []
    for count in counts:
        means = KMeans(count, n_init=4, random_state=seed)
        fits.append(means.fit(components))
    best = max(fits, key=lambda fit: silhouette_score(components, fit.labels_, **sample))
    groups = []
    for number, center in enumerate(best.cluster_centers_):
        members = np.flatnonzero(best.labels_ == number)
        distance = np.square(components[members] - center).sum(axis=1)
        order = np.argsort(distance, kind='stable')
        central = members[order[:CENTRAL]].tolist()
        groups.append(Group(members, central))
    return sorted(groups, key=lambda group: -len(group.members))
