"""A wrapper of training sets. It makes the views of each image reproducible and replaces unreadable images."""

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

ALWAYS_ALLOWED = (
    10  # unless max_unreadable is 0, a data set of any size may have this many unreadable images
)
WORKERS = 1024  # rows of the tally, one per data worker; if there are more workers than rows, some workers share a row


class TrainingImages(Dataset):
    """Wraps a data set for training, so that views are reproducible and unreadable images are replaced.

    An item is requested by an index or by a pair (index, seed). ResumableSampler yields pairs. The seed alone determines the
    views of the image. The number of workers, the number of processes and interruptions have no effect. Without a seed, the
    views depend on the random state of a data worker. This state depends on the images that the worker has read, and a
    resumed run cannot restore it. If an image is unreadable, the next readable image takes its place.

    Args:
        dataset: The data set.
        workers: Whether data workers load the images. If so, `reasons` and `tally` are in shared memory.

    Attributes:
        reasons: One byte per image: the code of the Reason why the image is unreadable, or 0 if no fault is known.
        allowed: How many images may be unreadable.
        tally: One row per data worker, with three numbers: how many unreadable images the worker met, how many images it
            loaded, and how many seconds it spent on loading. The first column is summed after each unreadable image to find
            out whether too many are unreadable. A sum over `reasons` would be too slow.
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
        """Return the object itself. mmengine copies configs that contain a data set, and `tally` must stay shared."""
        return self

    def __getitems__(self, items: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return a list of samples. If the items have seeds, restore the random generators of the process afterwards.

        Without seeds, restoring the generators would give every batch the same views, so they are not restored.
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
        """The number of images per second that all data workers together can load."""
        _, images, seconds = self.tally[self.tally[:, 2] > 0].T
        return (images / seconds).sum().item()

    def sample(self, index: int, seed: int | None) -> Any:
        """Return the image at this index or, if that image is unreadable, the next readable image."""
        for step in range(len(self)):
            current = (index + step) % len(self)
            if self.reasons[current]:
                continue
            if seed is not None:
                # torch.manual_seed is not used, because it would also queue a call on the GPU for every image.
                torch.default_generator.manual_seed(seed)
                np.random.seed(seed)
                random.seed(seed)
            try:
                return self.dataset[current]
            except UnreadableImage as fault:
                self.reasons[current] = fault.reason
                self.worker_tally[0] += 1
                # The sum is only an upper bound, because two workers may have met the same image. The next line checks the
                # exact number.
                if self.tally[:, 0].sum() > self.allowed:
                    self.refuse_too_many(self.met())
        raise AssertionError('unreachable: allowed is less than the number of images')

    def met(self) -> Tensor:
        """Return the unreadable images that this process and its data workers have met.

        Each row contains the index of an image and the code of the Reason why it is unreadable.
        """
        if not self.tally[:, 0].any():
            return torch.zeros(0, 2, dtype=torch.int64)
        unreadable = self.reasons.nonzero()
        return torch.cat([unreadable, self.reasons[unreadable].long()], 1)

    def refuse_too_many(self, met: Tensor) -> None:
        """Raise if `met` lists more unreadable images than the data set allows."""
        if len(met) > self.allowed:
            first = ', '.join(self.names_with_reasons(met[:3]))
            raise UserError(
                f'{len(met)} of the {len(self)} training images cannot be read, more than the {self.allowed} that are '
                f'allowed (the first: {first}); fix or remove them, or raise max_unreadable of the data set',
                code='too-many-unreadable',
            )

    def names_with_reasons(self, met: Tensor) -> list[str]:
        """Return the name of each unreadable image that `met` lists, followed by the reason why it is unreadable."""
        names = getattr(self.dataset, 'name', 'image {}'.format)
        return [
            f'{printable(names(index))} ({Reason(reason).phrase})' for index, reason in met.tolist()
        ]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped data set, such as its labels or classes."""
        # During unpickling, `dataset` is not set yet, and looking it up below would call this method without end.
        if name == 'dataset':
            raise AttributeError(name)
        return getattr(self.dataset, name)


def require_a_batch(loader: DataLoader) -> None:
    """Raise if an epoch has no batch. mmengine's schedules would fail with an unclear assertion in this case."""
    if len(loader) == 0:
        raise UserError(
            f'the training set has {len(loader.dataset)} images, fewer than one batch of {loader.batch_size} on each of '
            f'{get_world_size()} processes; lower total_batch_size',
            code='no-batch',
        )


def unreadable_allowed(count: int, fraction: float) -> int:
    """Return how many of `count` images may be unreadable.

    If the fraction is 0, no image may be unreadable. Otherwise, the result is `fraction` of the images, but at least
    ALWAYS_ALLOWED. In both cases, the result is less than `count`.
    """
    allowed = max(ALWAYS_ALLOWED, int(fraction * count)) if fraction else 0
    return min(allowed, count - 1)
