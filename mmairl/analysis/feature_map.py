"""A map of images: the t-SNE positions of their features, outliers and groups."""

from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.knn import nearest

COMPONENTS = 30
SAME = 1e-6  # standard deviations below this limit are rounding errors of float32
GROUP_COUNTS = (4, 8, 12, 16, 24)
SILHOUETTE_IMAGES = 2000


class FeatureMap(NamedTuple):
    """The analysis of the features of N images. Images are given by their indices.

    Args:
        places: (N, 2) The positions of the images on the map, from 0 to 1.
        outliers: All images, in descending order of the distance to their nearest neighbor.
        groups: Groups of similar images, the largest first. In each group, the images nearest to its center are first.
    """

    places: np.ndarray
    outliers: list[int]
    groups: list[list[int]]


def map_features(x: Tensor, seed: int = 0) -> FeatureMap:
    """Analyze the features (N, D) of images.

    Raises:
        UserError: If there are fewer than three images, or all features are equal or not finite.
    """
    if len(x) < 3:
        raise UserError(
            f"map: at least three readable images are required ('{len(x)}'); add images",
            code='too-few-images',
        )
    if not x.isfinite().all() or F.normalize(x).std(dim=0).max() < SAME:
        raise UserError(
            'map: the features are not finite, or the same for all images, because the training diverged or collapsed; use '
            'another checkpoint',
            code='collapsed-features',
        )
    unit = F.normalize(x).numpy()
    components = PCA(min(COMPONENTS, *x.shape), random_state=seed).fit_transform(unit)
    places = tsne(components, seed)
    places = (places - places.min(axis=0)) / np.ptp(places, axis=0)
    # The nearest image of all is the image itself.
    similarity, _ = nearest(x, x, 2)
    outliers = similarity[:, 1].argsort().tolist()
    return FeatureMap(places, outliers, find_groups(components, seed))


def tsne(components: np.ndarray, seed: int) -> np.ndarray:
    """Return the positions (N, 2) of images on a t-SNE map.

    The principal components save time and change the result little.
    """
    perplexity = min(30, (len(components) - 1) / 3)
    embedding = TSNE(perplexity=perplexity, init='pca', random_state=seed, max_iter=500, n_jobs=-1)
    return embedding.fit_transform(components)


def find_groups(components: np.ndarray, seed: int) -> list[list[int]]:
    """Group images by k-means of the principal components of their features.

    The number of groups is the one with the best silhouette score. Returns an empty list if there are too few images.
    """
    fits = [
        KMeans(count, n_init=4, random_state=seed).fit(components)
        for count in GROUP_COUNTS
        if 4 * count <= len(components)
    ]
    if not fits:
        return []
    best = max(
        fits,
        key=lambda fit: silhouette_score(
            components, fit.labels_, sample_size=SILHOUETTE_IMAGES, random_state=seed
        ),
    )
    distances = best.transform(components).min(axis=1)
    order = distances.argsort(kind='stable')
    labels = best.labels_[order]
    groups = [order[labels == group].tolist() for group in range(best.n_clusters)]
    return sorted(groups, key=len, reverse=True)
