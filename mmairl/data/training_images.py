"""The wrapper of training sets, which seeds the views of each image and replaces unreadable images."""

import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_world_size
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from mmairl.data.datasets import innermost_dataset
from mmairl.data.decode import Reason, UnreadableImage
from mmairl.errors import UserError, printable
from mmairl.randomness import same_randomness

ALWAYS_ALLOWED = 10  # unreadable images in a data set of any size
WORKERS = 1024  # rows of the tally; with more data workers, some share a row


class TrainingImages(Dataset):
    """Wraps a data set for training. ResumableSampler passes each index with a seed, as (index, seed).

    The random state of a data worker depends on the images that it happened to read and cannot be restored. With a seed
    per image, the views do not depend on the number of workers or processes, or on interruptions.

    An unreadable image is replaced by the next readable one.

    Args:
        dataset: The data set.
        workers: Whether data workers load the images. If so, `reasons` and `tally` are in shared memory.

    Attributes:
        reasons: A byte per image: 0, or the Reason why it is unreadable. Shared with data workers.
        allowed: How many images may be unreadable.
        tally: A row per worker: how many images were unreadable, how many were loaded, and the seconds spent loading. After
            each unreadable image, the total comes from here, because a sum over `reasons` would be too slow.
    """

    def __init__(self, dataset: Dataset, workers: bool = True) -> None:
        self.dataset = dataset
        self.reasons = torch.zeros(len(dataset), dtype=torch.uint8)
        self.tally = torch.zeros(WORKERS, 3, dtype=torch.float64)
        if workers:
            self.reasons.share_memory_()
            self.tally.share_memory_()
        self.allowed = unreadable_allowed(
            len(dataset), getattr(innermost_dataset(dataset), 'max_unreadable', 0)
        )

    def __deepcopy__(self, memo: dict) -> 'TrainingImages':
        """Return itself, so that the counts stay shared when mmengine copies a config with the data set in it."""
        return self

    def __getitems__(self, items: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return a batch. If the items have seeds, restore the random generators of the process afterwards.

        Without seeds, the generators must advance, or every batch would have the same views.
        """
        pairs = [item if isinstance(item, tuple) else (item, None) for item in items]
        began = time.perf_counter()
        seeded = any(seed is not None for _, seed in pairs)
        with same_randomness() if seeded else nullcontext():
            samples = [self.sample(index, seed) for index, seed in pairs]
        self.worker_tally[1:] += torch.tensor([len(samples), time.perf_counter() - began])
        return samples

    def __getitem__(self, item: int | tuple[int, int]) -> Any:
        return self.__getitems__([item])[0]

    @property
    def worker_tally(self) -> Tensor:
        worker = get_worker_info()
        return self.tally[worker.id % WORKERS if worker else 0]

    @property
    def rate(self) -> float:
        """Images per second that all workers together can deliver."""
        _, images, seconds = self.tally[self.tally[:, 2] > 0].T
        return (images / seconds).sum().item()

    def sample(self, index: int, seed: int | None) -> Any:
        """Return the image at this index, or the next readable one."""
        for step in range(len(self)):
            current = (index + step) % len(self)
            if self.reasons[current]:
                continue
            if seed is not None:
                # Not torch.manual_seed, which would also queue a GPU call for every image.
                torch.default_generator.manual_seed(seed)
                np.random.seed(seed)
                random.seed(seed)
            try:
                return self.dataset[current]
            except UnreadableImage as fault:
                self.reasons[current] = fault.reason
                self.worker_tally[0] += 1
                # The sum is an upper bound, because two workers may have met the same image.
                if self.tally[:, 0].sum() > self.allowed:
                    self.refuse_too_many(self.met())
        raise AssertionError('unreachable: allowed is less than the number of images')

    def met(self) -> Tensor:
        """Return the index and the reason of each unreadable image that this process has met, (images, 2)."""
        if not self.tally[:, 0].any():
            return torch.zeros(0, 2, dtype=torch.int64)
        unreadable = self.reasons.nonzero()
        return torch.cat([unreadable, self.reasons[unreadable].long()], 1)

    def refuse_too_many(self, met: Tensor) -> None:
        """Raise if more images are unreadable than the data set allows."""
        if len(met) > self.allowed:
            first = ', '.join(self.names_with_reasons(met[:3]))
            raise UserError(
                f'{len(met)} of the {len(self)} training images cannot be read, more than the {self.allowed} that are '
                f'allowed (the first: {first}); fix or remove them, or raise max_unreadable of the data set',
                code='too-many-unreadable',
            )

    def names_with_reasons(self, met: Tensor) -> list[str]:
        """Name each unreadable image with its reason."""
        names = getattr(self.dataset, 'name', 'image {}'.format)
        return [
            f'{printable(names(index))} ({Reason(reason).phrase})' for index, reason in met.tolist()
        ]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the data set, such as labels and classes."""
        if name == 'dataset':  # which is not set yet during unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)


def require_a_batch(loader: DataLoader) -> None:
    """Raise if an epoch has no batch, in which case mmengine's schedules would fail with an assertion."""
    if len(loader) == 0:
        raise UserError(
            f'the training set has {len(loader.dataset)} images, fewer than one batch of {loader.batch_size} on each of '
            f'{get_world_size()} processes; lower total_batch_size',
            code='no-batch',
        )


def unreadable_allowed(count: int, fraction: float) -> int:
    """Return how many of `count` images may be unreadable: at least ten unless the fraction is 0, but never all."""
    allowed = max(ALWAYS_ALLOWED, int(fraction * count)) if fraction else 0
    return min(allowed, count - 1)
