"""Test images that nearly equal a training image, by their pixels and by their features."""

import base64
from collections.abc import Iterable
from itertools import islice
from math import log
from typing import Any

import cv2
import numpy as np
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.decode import to_unit
from mmairl.data.splits import look_alikes, split_conflicts
from mmairl.errors import printable
from mmairl.evaluation.features import Features
from mmairl.evaluation.neighbors import nearest

CHANCE = 1e-4  # fraction of independent images that are marked
SAME = 1e-6  # rounding of a cosine in float32
NEIGHBORS = 10  # that measure the density around an image
SHOWN = 12  # pairs on a page
SIDE = 96  # pixels of a picture


def too_near(distances: Tensor) -> Tensor:
    """Mark test images that are closer to a training image than CHANCE explains.

    Around an image the number of others within r grows as r^d, at any density. So the d-th power of the distance to the
    nearest, over that to the k-th, has a known distribution, close to exponential. Median and upper quartile give d, as
    long as less than half of the images are duplicates. More than k copies of one image are not marked.

    Args:
        distances: Distances to the nearest training images, (N, k), ascending.
    """
    logs = distances.double().clamp_min(SAME).log()
    nearness = logs[:, 0] - logs[:, -1]
    median = nearness.quantile(0.5)
    upper = nearness.quantile(0.75)
    mean = (upper - median) / log(2)
    rare = nearness < median + mean * log(CHANCE / log(2))
    return rare | (distances[:, 0] <= SAME)


def near_duplicates(
    sets: tuple[Dataset, Dataset], features: tuple[Features, Features], device: str, workers: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a mask of test rows with a near duplicate in training, and counts with example pairs.

    Images whose labels differ from their look-alike's are label conflicts. They are counted and shown, but not masked.
    """
    train, test = sets
    bank, query = features
    bank_rows = _rows(train, bank)
    rows = _rows(test, query)
    center = bank.x.mean(0)  # without it, features of a collapsed network have hardly any angles
    queries = query.x - center
    similarity, position = nearest(queries, bank.x - center, NEIGHBORS, device)
    close = too_near(1 - similarity).nonzero().flatten()
    twins = bank_rows[position[close, 0]]
    by_features = dict(zip(rows[close].tolist(), twins.tolist()))
    by_look = look_alikes(train, test, workers)
    alike = by_features | by_look
    highest = similarity[:, 0].tolist()
    similarity_of = dict(zip(rows.tolist(), highest))
    ascending = sorted(alike, key=lambda row: similarity_of.get(row, 1.0))
    by_similarity = {row: alike[row] for row in ascending}
    duplicates, conflicts = split_conflicts(by_similarity, train.labels, test.labels)
    counts = dict(
        images=len(alike),
        by_look=len(by_look),
        by_features=len(by_features),
        pairs=pictures(train, test, duplicates.items()),
        conflicts=len(conflicts),
        conflict_pairs=pictures(train, test, conflicts.items()),
    )
    return np.isin(rows, list(duplicates)), counts


def _rows(dataset: Dataset, features: Features) -> np.ndarray:
    """Return the position in the data set of each row of features."""
    every = np.arange(len(dataset))
    return np.delete(every, list(features.unreadable))


def pictures(
    train: Dataset, test: Dataset, twins: Iterable[tuple[int, int]]
) -> list[list[tuple[str, str]]]:
    """Return the first test images and their twins, each as a picture and a name, for a page."""
    pairs = []
    for here, there in islice(twins, SHOWN):
        pairs.append([_shown(test, here), _shown(train, there)])
    return pairs


def _shown(dataset: Dataset, index: int) -> tuple[str, str]:
    """Return a small PNG in base64, and the image's name."""
    image = to_unit(dataset.raw(index))
    shown = image[:3] if len(image) >= 3 else image[:1]
    [small] = F.interpolate(shown[None], (SIDE, SIDE), mode='bilinear', antialias=True)
    pixels = 255 * small.clamp(0, 1).permute(1, 2, 0)
    pixels = pixels.byte()
    reverse = pixels.numpy()[:, :, ::-1]  # OpenCV's order is blue, green, red
    _, png = cv2.imencode('.png', reverse)
    picture = base64.b64encode(png).decode()
    return picture, printable(dataset.name(index))
