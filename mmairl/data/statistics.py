"""Mean and deviation of each channel over the images of a data set: what `data_preprocessor.mean` and `std` are set to."""

from functools import partial
from typing import NamedTuple

import torch
from rich.progress import track
from torch.utils.data import DataLoader

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage, to_unit
from mmairl.errors import UserError


class Statistics(NamedTuple):
    """Mean and deviation of values in [0, 1] (floats as they are), with the numbers of images read and unreadable."""

    mean: list[float]
    std: list[float]
    images: int
    unreadable: int


def moments(dataset: ViewDataset, index: int) -> tuple[int, list[float], list[float]] | None:
    """The pixels of an image, and of each channel the mean and the variance; None where it cannot be read.

    They are plain numbers, for a tensor that comes from a worker keeps a file open.
    """
    try:
        values = to_unit(dataset.raw(index)).double().flatten(1)
    except UnreadableImage:
        return None
    return values.shape[1], values.mean(1).tolist(), values.var(1, correction=0).tolist()


def statistics(dataset: ViewDataset, workers: int = 0, most: int | None = None) -> Statistics:
    """Over every pixel of all images that can be read, or of `most` of them, evenly chosen.

    >>> statistics(UnlabelledFolder('cells/train', channels=2)).mean  # doctest: +SKIP
    [0.0213, 0.1871]
    """
    count = min(len(dataset), most or len(dataset))
    chosen = torch.linspace(0, len(dataset) - 1, count, dtype=torch.float64).long().tolist()
    # A worker gets the index of an image and collates it to the image's moments.
    loader = DataLoader(chosen, batch_size=None, num_workers=workers, collate_fn=partial(moments, dataset))
    measured = [image for image in track(loader, 'measuring', count) if image is not None]
    if not measured:
        raise UserError(f'none of the {count} images can be read, first {dataset.name(0)}; mend or remove them')
    pixels, means, variances = (torch.tensor(column, dtype=torch.float64) for column in zip(*measured))
    share = pixels[:, None] / pixels.sum()
    mean = (share * means).sum(0)
    variance = (share * (variances + (means - mean).square())).sum(0)
    return Statistics(mean.tolist(), variance.sqrt().tolist(), len(measured), count - len(measured))
