"""Measurement of the mean and standard deviation of each channel of a data set."""

from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from rich.progress import track
from torch.utils.data import DataLoader

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage, to_unit


class Statistics(NamedTuple):
    """The mean and standard deviation of each channel, and the numbers of images.

    Integer images are scaled to [0, 1] before the measurement.
    """

    mean: list[float]
    std: list[float]
    images: int
    unreadable: int


def moments(index: int, dataset: ViewDataset) -> np.ndarray | None:
    """Return the number of pixels, the sum of values and the sum of squares per channel.

    Return None if the image is unreadable. The result is an array, because a tensor from a data
    worker keeps a file open.
    """
    with suppress(UnreadableImage):
        values = to_unit(dataset.raw(index)).double().flatten(1)
        sums = [torch.ones_like(values).sum(1), values.sum(1), values.square().sum(1)]
        return torch.stack(sums).numpy()
    return None


def channel_statistics(
    dataset: ViewDataset, workers: int = 0, most: int | None = None
) -> Statistics:
    """Measure the mean and standard deviation of each channel over all pixels.

    If `most` is set, at most this many evenly spaced images are read.

    >>> channel_statistics(UnlabelledFolder('cells/train', channels=2)).mean  # doctest: +SKIP
    [0.0213, 0.1871]
    """
    count = min(len(dataset), most or len(dataset))
    indices = np.linspace(0, len(dataset) - 1, count).astype(int).tolist()
    # Without batches, a data worker calls the collate function with one index at a time.
    measure = partial(moments, dataset=dataset)
    loader = DataLoader(indices, batch_size=None, num_workers=workers, collate_fn=measure)
    measured = [found for found in track(loader, 'measuring', count) if found is not None]
    pixels, sums, squares = np.sum(measured, 0)
    mean = sums / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    return Statistics(mean.tolist(), std.tolist(), len(measured), count - len(measured))
