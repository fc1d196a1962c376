"""Test images that a training image is nearly the same as, by their looks and by the features that are there."""

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

CHANCE = 1e-4  # of images drawn one by one
SAME, NEIGHBOURS = 1e-6, 10  # rounding of a cosine in float32, and how many tell how dense it is around an image
SHOWN, SIDE = 12, 96  # pairs on a page, and their pixels


def too_near(distances: Tensor) -> Tensor:
    """Mark test images by their distances (N, k), ascending, to the nearest of training, as only CHANCE of images would have.

    Around an image the number of others within r grows as r^d, however dense they are there. So the d-th power of r of the
    nearest, over that of the k-th, has a known distribution, close to an exponential one; the median and the upper quartile
    tell d, as long as less than half of the images are duplicates. Of more than k copies of one image none is marked.
    """
    logs = distances.double().clamp_min(SAME).log()
    nearness = logs[:, 0] - logs[:, -1]
    median, upper = nearness.quantile(nearness.new_tensor([0.5, 0.75]))
    rare = nearness < median + (upper - median) / log(2) * log(CHANCE / log(2))
    return rare | (distances[:, 0] <= SAME)


def near_duplicates(
    sets: tuple[Dataset, Dataset], features: tuple[Features, Features], device: str, workers: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a mask of test rows with a near duplicate in training, and counts with pairs to look at.

    Images whose labels differ from their look-alike's are label conflicts. They are counted and shown, and not in the mask.
    """
    (train, test), (bank, query) = sets, features
    bank_rows, rows = (np.delete(np.arange(len(dataset)), list(own.unreadable)) for dataset, own in zip(sets, features))
    centre = bank.x.mean(0)  # else a network that finds all alike has hardly any angles
    similarity, position = nearest(query.x - centre, bank.x - centre, NEIGHBOURS, device)
    close = too_near(1 - similarity).nonzero().flatten()
    by_features = dict(zip(rows[close].tolist(), bank_rows[position[close, 0]].tolist()))
    by_look = look_alikes(train, test, workers)
    of_row, alike = dict(zip(rows.tolist(), similarity[:, 0].tolist())), by_features | by_look
    by_similarity = dict(sorted(alike.items(), key=lambda pair: of_row.get(pair[0], 1.0)))
    duplicates, conflicts = split_conflicts(by_similarity, train.labels, test.labels)
    found = dict(
        images=len(alike),
        by_look=len(by_look),
        by_features=len(by_features),
        pairs=pictures(train, test, duplicates.items()),
        conflicts=len(conflicts),
        conflict_pairs=pictures(train, test, conflicts.items()),
    )
    return np.isin(rows, list(duplicates)), found


def pictures(train: Dataset, test: Dataset, twins: Iterable[tuple[int, int]]) -> list[list[tuple[str, str]]]:
    """Return the first test images and their twins, a picture and a name each, as a page shows pairs."""
    return [[_shown(test, here), _shown(train, there)] for here, there in islice(twins, SHOWN)]


def _shown(dataset: Dataset, index: int) -> tuple[str, str]:
    """A small PNG in base64, and the image's name."""
    image = to_unit(dataset.raw(index))
    small = F.interpolate(
        (image[:3] if len(image) >= 3 else image[:1])[None], (SIDE, SIDE), mode='bilinear', antialias=True
    )
    pixels = (255 * small[0].clamp(0, 1)).byte().permute(1, 2, 0).numpy()[:, :, ::-1]
    return base64.b64encode(cv2.imencode('.png', pixels)[1]).decode(), printable(dataset.name(index))
