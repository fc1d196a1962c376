"""Measurement of the mean and standard deviation of each channel of a data set."""

from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
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


def moments(index: int, dataset: ViewDataset) -> tuple[int, list[float], list[float]] | None:
    """Return the number of pixels of an image, and the sums of values and squares per channel.

    Return None if the image is unreadable. The results are plain numbers, because a tensor from a
    data worker keeps a file open.
    """
    with suppress(UnreadableImage):
        values = to_unit(dataset.raw(index)).double().flatten(1)
        return values.shape[1], values.sum(1).tolist(), values.square().sum(1).tolist()
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
    pixels, sums, squares = (np.sum(column, 0) for column in zip(*measured))
    mean = sums / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    return Statistics(mean.tolist(), std.tolist(), len(measured), count - len(measured))
