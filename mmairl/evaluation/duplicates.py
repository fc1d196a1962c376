"""Find test images that are near duplicates of training images, by comparing their pixels and their features."""

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

CHANCE = 1e-4  # accepted fraction of test images that are marked as duplicates by chance
# Images at this cosine distance or less count as duplicates, because float32 rounds cosines by about this much.
SAME = 1e-6
NEIGHBORS = 10  # number of training images from which the density around a test image is estimated
SHOWN = 12  # number of pairs shown on a page
SIDE = 96  # side of each picture in pixels


def too_near(distances: Tensor) -> Tensor:
    """Return which test images are closer to a training image than is likely by chance.

    The number of training images within distance r of a test image grows as r^d, where d is the dimension of the data. For
    each test image, the distance of the nearest training image is divided by the distance of the k-th nearest training
    image. If images are independent, the d-th power of this ratio is almost exponentially distributed, no matter how dense
    the images are. The dimension d is estimated from the median and the upper quartile of the ratio. The estimate is valid
    only if less than half of the test images are duplicates. If a test image has k or more near copies in the training set,
    its ratio is not small, so it is found only if a copy is exact.

    Args:
        distances: Distances from each of N test images to its k nearest training images in ascending order, (N, k).
    """
    logs = distances.double().clamp_min(SAME).log()
    nearness = logs[:, 0] - logs[:, -1]
    median = nearness.quantile(0.5)
    upper = nearness.quantile(0.75)
    per_dimension = (upper - median) / log(2)  # an estimate of 1 / d
    rare = nearness < median + per_dimension * log(CHANCE / log(2))
    return rare | (distances[:, 0] <= SAME)


def near_duplicates(
    sets: tuple[Dataset, Dataset], features: tuple[Features, Features], device: str, workers: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a mask of the test images that have a near duplicate in the training set, and counts with example pairs.

    The mask has one entry per row of the test features. A pair with two different labels is a label conflict. It is counted
    and shown as an example, but the mask is False for its test image.
    """
    train, test = sets
    bank, query = features
    bank_rows = _rows(train, bank)
    rows = _rows(test, query)
    # The features are centered because otherwise all angles between features of a collapsed network would be tiny.
    center = bank.x.mean(0)
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
    """Return, for each row of features, the index of its image in the data set."""
    every = np.arange(len(dataset))
    return np.delete(every, list(features.unreadable))


def pictures(
    train: Dataset, test: Dataset, twins: Iterable[tuple[int, int]]
) -> list[list[tuple[str, str]]]:
    """Return up to SHOWN pairs of a test image and its duplicate in the training set.

    Each image is returned as a picture and a name.
    """
    pairs = []
    for here, there in islice(twins, SHOWN):
        pairs.append([_shown(test, here), _shown(train, there)])
    return pairs


def _shown(dataset: Dataset, index: int) -> tuple[str, str]:
    """Return an image as a small PNG in base64, and its name."""
    image = to_unit(dataset.raw(index))
    shown = image[:3] if len(image) >= 3 else image[:1]
    [small] = F.interpolate(shown[None], (SIDE, SIDE), mode='bilinear', antialias=True)
    pixels = 255 * small.clamp(0, 1).permute(1, 2, 0)
    pixels = pixels.byte()
    # OpenCV expects the channels in the order blue, green, red.
    reverse = pixels.numpy()[:, :, ::-1]
    _, png = cv2.imencode('.png', reverse)
    picture = base64.b64encode(png).decode()
    return picture, printable(dataset.name(index))
