"""Measurement of the mean and standard deviation of each channel of a data set, for `data_preprocessor.mean` and `std`."""

from functools import partial
from typing import NamedTuple

import torch
from rich.progress import track
from torch.utils.data import DataLoader

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage, to_unit
from mmairl.errors import UserError


class Statistics(NamedTuple):
    """The mean and standard deviation of each channel, and the numbers of readable and unreadable images.

    Integer images are scaled to [0, 1] before the measurement.
    """

    mean: list[float]
    std: list[float]
    images: int
    unreadable: int


def moments(dataset: ViewDataset, index: int) -> tuple[int, list[float], list[float]] | None:
    """Return the number of pixels of an image, and the mean and variance of each channel.

    Return None if the image is unreadable. The results are plain numbers, because a tensor from a data worker keeps a file
    open.
    """
    try:
        values = to_unit(dataset.raw(index)).double().flatten(1)
    except UnreadableImage:
        return None
    return values.shape[1], values.mean(1).tolist(), values.var(1, correction=0).tolist()


def channel_statistics(
    dataset: ViewDataset, workers: int = 0, most: int | None = None
) -> Statistics:
    """Measure the mean and standard deviation of each channel over all pixels of the readable images.

    If `most` is set, at most this many evenly spaced images are read.

    >>> channel_statistics(UnlabelledFolder('cells/train', channels=2)).mean  # doctest: +SKIP
    [0.0213, 0.1871]
    """
    count = min(len(dataset), most or len(dataset))
    indices = torch.linspace(0, len(dataset) - 1, count, dtype=torch.float64).long().tolist()
    # Without batches, a data worker calls the collate function, here `moments`, with one index at a time.
    loader = DataLoader(
        indices, batch_size=None, num_workers=workers, collate_fn=partial(moments, dataset)
    )
    images = pixels = 0
    mean = squares = torch.zeros((), dtype=torch.float64)
    for image in track(loader, 'measuring', count):
        if image is None:
            continue
        # Update mean and sum of squared deviations with all pixels of an image at once (Chan's form of Welford's method).
        size, image_mean, image_variance = image
        images += 1
        pixels += size
        change = torch.tensor(image_mean, dtype=torch.float64) - mean
        mean = mean + change * size / pixels
        squares = squares + size * torch.tensor(image_variance, dtype=torch.float64)
        squares = squares + change.square() * size * (pixels - size) / pixels
    if not images:
        raise UserError(
            f'all {count} images are unreadable (the first: {dataset.name(0)}); fix or remove them',
            code='none-readable',
        )
    return Statistics(mean.tolist(), (squares / pixels).sqrt().tolist(), images, count - images)
