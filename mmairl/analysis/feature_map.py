"""The data of a map of images: t-SNE of their features, nearest neighbors, near-duplicates, outliers and groups.

A cell is a position in the backbone's last feature map. The nearest neighbors are computed for whole images and for cells.
"""

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

# Images are resized to this number of pixels per side, and these pixels serve as simple features.
PIXELS = 16
# Cosine distances below this limit are rounding errors of float32.
SAME = 1e-6
# This number of feature vectors is compared with all others at once.
BLOCK = 256
# Each cell has this number of nearest neighbors.
NEAREST_CELLS = 8
# Each group is represented by this number of images.
CENTRAL = 8
GROUP_COUNTS = (4, 8, 12, 16, 24)
SILHOUETTE_IMAGES = 2000
COMPONENTS = 30


def principal_components(x: Tensor, seed: int) -> np.ndarray:
    """Return the first principal components of features, at most 30, after scaling each feature vector to unit length."""
    count = min(COMPONENTS, *x.shape)
    unit = F.normalize(x).numpy()
    return PCA(count, random_state=seed).fit_transform(unit)


def tsne(x: Tensor, seed: int = 0) -> np.ndarray:
    """Return the positions (N, 2) of features on a t-SNE map, after scaling each feature vector to unit length.

    t-SNE uses only the principal components of the features, which saves time and changes the result little.
    """
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
    """Return the features of the readable images, and which images are readable.

    The list of features starts with the pixels of the images, followed by the features of each network. `on_images` is
    called with each batch of readable images, after normalization.
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
    """Return True if any two rows of `x` differ in direction. All rows of zeros count as one direction."""
    first = F.normalize(x[:1])
    for block in x.split(BLOCK):
        squared = (F.normalize(block) - first).square()
        if squared.sum(dim=1).max() > 2 * SAME:
            return True
    return False


def require_differences(pixels: Tensor, trained: Tensor, images: int, checkpoint: str) -> None:
    """Raise an error unless a map can be drawn.

    A map requires at least three readable images, finite features, and features that differ between images.
    """
    if len(trained) < 3:
        raise UserError(
            f"map: at least three readable images are required ('{len(trained)}' of {images} are readable); add images",
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
        'checkpoint, and check the training run with `mmairl report health`',
        code='collapsed-features',
    )


def nearest_cells(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest cells of each cell. They belong to other images, at most one cell per image.

    Args:
        x: (images, cells, C) The features of all cells. To compare whole images, give each image one cell.
        k: The number of nearest cells to find.

    Returns:
        Cosine distances and indices of cells, both (images * cells, k). A cell has the index ``image * cells + cell``.
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
    """The nearest cells of each cell in a selection of images.

    Args:
        images: Indices of the selected images among the readable images.
        rows: The number of rows of cells in an image.
        columns: The number of columns of cells in an image.
        distance: Cosine distances from each cell to its nearest cells, ascending.
        position: Indices of the nearest cells, as `nearest_cells` returns them.
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
    """Select `count` readable images at equal intervals, and return the nearest cells of each of their cells."""
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
    """Return a lower and an upper limit for distances. A distance outside these limits is exceptional.

    The limits are Tukey's fences, computed from the logarithms of the distances.
    """
    logs = distances[distances > SAME].double().log()
    if len(logs) < 4:
        return SAME, float('inf')
    low, high = np.quantile(logs, [0.25, 0.75])
    reach = 1.5 * (high - low)
    shortest = max(SAME, np.exp(low - reach))
    return shortest, np.exp(high + reach)


@dataclass(frozen=True)
class Outstanding:
    """Near-duplicates and outliers among images.

    Args:
        near: Two images are near-duplicates if their distance is at most this distance.
        far: An image is an outlier if its nearest neighbor is farther than this distance.
        duplicates: Groups of near-duplicates, largest first, each with the largest nearest-neighbor distance of its images.
        outliers: Images without a close neighbor, each with the distance to its nearest neighbor, farthest first.
    """

    near: float
    far: float
    duplicates: list[tuple[list[int], float]]
    outliers: list[tuple[int, float]]


def find_outstanding(x: Tensor, distance: Tensor) -> Outstanding:
    """Find near-duplicates and outliers.

    Args:
        x: (images, C) The features of the images.
        distance: (images,) The cosine distance of each image to its nearest neighbor.
    """
    near, far = distance_limits(distance)
    # Only images that have a near-duplicate are grouped.
    close = (distance <= near + SAME).nonzero().flatten()
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
    """Return groups of feature vectors that are linked by small cosine distances, the largest group first.

    A group is an array of indices of rows of `x`. Two rows are linked if their distance is at most `limit`. They are in the
    same group if a chain of links connects them. Rows without any link are in no group.
    """
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
    """A group of images: the indices of its members, and of the members that are nearest to its center."""

    members: np.ndarray
    central: list[int]


def find_clusters(x: Tensor, seed: int) -> list[Group]:
    """Group images by k-means of the principal components of their features. Return the groups, the largest one first.

    The number of groups is the one with the best silhouette score. Returns an empty list if there are too few images.
    """
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
