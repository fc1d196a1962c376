"""Training images: each draws its views from a seed of its own, and one that cannot be read is replaced and remembered."""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_world_size
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mmairl.data.images import Reason, UnreadableImage
from mmairl.errors import UserError, printable
from mmairl.randomness import same_randomness

ALWAYS_ALLOWED = 10  # unreadable images


class TrainingImages(Dataset):
    """A data set for training. An index may come with a seed, as (index, seed), from ResumableSampler.

    A worker's generators advance with every image that it happens to get, and cannot be resumed. With a seed for each
    image, 0 and 8 workers, one process and two, an interrupted and an uninterrupted run all see the same views.

    An unreadable image is replaced by the next readable one. `reasons` has a byte for each image, 0 or its Reason, in
    memory that is shared with the data workers, whichever of them met it; `allowed` is how many there may be.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = inner_most = dataset
        while hasattr(inner_most, 'dataset'):  # below those that pick or relabel its images
            inner_most = inner_most.dataset
        self.reasons = torch.zeros(len(dataset), dtype=torch.uint8).share_memory_()
        self.allowed = unreadable_allowed(len(dataset), getattr(inner_most, 'max_unreadable', 0))

    def __deepcopy__(self, memo: dict) -> 'TrainingImages':
        """Itself: mmengine copies a config, with the data set in it, before it starts the workers."""
        return self

    def __getitems__(self, items: Sequence[int | tuple[int, int]]) -> list[Any]:
        """A batch, as a loader asks for it. With seeds, the generators of the process stay as they were.

        Without seeds they must advance, or they would draw the same views for every batch.
        """
        pairs = [item if isinstance(item, tuple) else (item, None) for item in items]
        with same_randomness() if any(seed is not None for _, seed in pairs) else nullcontext():
            return [self.item(index, seed) for index, seed in pairs]

    def __getitem__(self, item: int | tuple[int, int]) -> Any:
        return self.__getitems__([item])[0]

    def item(self, index: int, seed: int | None) -> Any:
        """The image at this index, or the next readable one."""
        for step in range(len(self)):
            at = (index + step) % len(self)
            if self.reasons[at]:
                continue
            if seed is not None:
                # torch.manual_seed would also queue a call for a GPU that a worker never starts, at every image
                torch.default_generator.manual_seed(seed)
                np.random.seed(seed)
                random.seed(seed)
            try:
                return self.dataset[at]
            except UnreadableImage as fault:
                self.reasons[at] = fault.reason
                self.refuse_too_many(self.reasons)
        raise AssertionError('the limit is below the number of images, so one of them was readable')

    def refuse_too_many(self, reasons: Tensor) -> None:
        """Stop when more images are unreadable than the data set allows."""
        count = int(reasons.count_nonzero())
        if count > self.allowed:
            first = ', '.join(self.listed(reasons)[:3])
            raise UserError(
                f'{count} of the {len(self)} training images cannot be read, more than the {self.allowed} that are allowed, '
                f'first {first}; mend or remove them, or raise max_unreadable of the data set'
            )

    def listed(self, reasons: Tensor) -> list[str]:
        """The unreadable images by name, with the reason."""
        names = getattr(self.dataset, 'name', 'image {}'.format)
        met = reasons.nonzero().squeeze(1).tolist()
        return [f'{printable(names(index))} ({Reason(int(reasons[index])).phrase})' for index in met]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the data set has, such as labels and classes."""
        if name == 'dataset':  # not there yet while being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


def require_a_batch(loader: DataLoader) -> None:
    """An epoch without a batch ends in an assertion of mmengine's schedules."""
    if len(loader) == 0:
        raise UserError(
            f'the training set holds {len(loader.dataset)} images, fewer than one batch of {loader.batch_size} on each of '
            f'{get_world_size()} processes; lower total_batch_size'
        )


def unreadable_allowed(count: int, fraction: float) -> int:
    """How many of `count` images may be unreadable: ten at least, unless the fraction is 0, but never all."""
    return min(max(ALWAYS_ALLOWED, int(fraction * count)) if fraction else 0, count - 1)
