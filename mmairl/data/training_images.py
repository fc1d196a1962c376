"""Training images: their order, which can be resumed anywhere, the seed of each one, and what replaces an unreadable one."""

import math
import random
import time
from collections.abc import Iterator, Sequence, Sized
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info, get_world_size, sync_random_seed
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from mmairl.data.decode import Reason, UnreadableImage
from mmairl.data.preprocess import inner_most
from mmairl.data.sampler import Order, by_shards, mixed, permutation, seed_of, shards_of_epoch, weighted
from mmairl.errors import UserError, printable
from mmairl.randomness import same_randomness
from mmairl.registry import DATA_SAMPLERS

ALWAYS_ALLOWED = 10  # unreadable images
WORKERS = 1024  # that are counted apart
BLOCK = 2**14  # images whose places are drawn at once: 3 ms


class TrainingImages(Dataset):
    """A data set for training. An index may come with a seed, as (index, seed), from ResumableSampler.

    A worker's generators advance with every image that it happens to get, and cannot be resumed. With a seed for each
    image, 0 and 8 workers, one process and two, an interrupted and an uninterrupted run all see the same views.

    An unreadable image is replaced by the next readable one. `reasons` has a byte for each image, 0 or its Reason, in
    memory that is shared with data workers, whichever of them met it; `allowed` is how many there may be. `tally` has a row for
    each worker: unreadable images (a hundred million marks are not counted at each), images in all, and the seconds for them.
    """

    def __init__(self, dataset: Dataset, workers: bool = True) -> None:
        self.dataset = dataset
        self.reasons = torch.zeros(len(dataset), dtype=torch.uint8)
        self.tally = torch.zeros(WORKERS, 3, dtype=torch.float64)
        if workers:
            self.reasons.share_memory_()
            self.tally.share_memory_()
        self.allowed = unreadable_allowed(len(dataset), getattr(inner_most(dataset), 'max_unreadable', 0))

    def __deepcopy__(self, memo: dict) -> 'TrainingImages':
        """Itself: mmengine copies a config, with the data set in it, before it starts the workers."""
        return self

    def __getitems__(self, items: Sequence[int | tuple[int, int]]) -> list[Any]:
        """A batch, as a loader asks for it. With seeds, the generators of the process stay as they were.

        Without seeds they must advance, or they would draw the same views for every batch.
        """
        pairs = [item if isinstance(item, tuple) else (item, None) for item in items]
        began = time.perf_counter()
        with same_randomness() if any(seed is not None for _, seed in pairs) else nullcontext():
            made = [self.item(index, seed) for index, seed in pairs]
        self.own_tally[1:] += torch.tensor([len(made), time.perf_counter() - began])
        return made

    def __getitem__(self, item: int | tuple[int, int]) -> Any:
        return self.__getitems__([item])[0]

    @property
    def own_tally(self) -> Tensor:
        worker = get_worker_info()
        return self.tally[worker.id % WORKERS if worker else 0]

    @property
    def rate(self) -> float:
        """Images a second that all workers together can make."""
        _, images, seconds = self.tally[self.tally[:, 2] > 0].T
        return (images / seconds).sum().item()

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
                self.own_tally[0] += 1
                if self.tally[:, 0].sum() > self.allowed:  # two workers may have met the same one
                    self.refuse_too_many(self.met())
        raise AssertionError('the limit is below the number of images, so one of them was readable')

    def met(self) -> Tensor:
        """Index and reason of each unreadable image that this process has met: rows of two numbers."""
        if not self.tally[:, 0].any():
            return torch.zeros(0, 2, dtype=torch.int64)
        unreadable = self.reasons.nonzero()
        return torch.cat([unreadable, self.reasons[unreadable].long()], 1)

    def refuse_too_many(self, met: Tensor) -> None:
        """Stop when more images are unreadable than the data set allows."""
        if len(met) > self.allowed:
            first = ', '.join(self.listed(met[:3]))
            raise UserError(
                f'{len(met)} of the {len(self)} training images cannot be read, more than the {self.allowed} that are '
                f'allowed, first {first}; mend or remove them, or raise max_unreadable of the data set'
            )

    def listed(self, met: Tensor) -> list[str]:
        """The unreadable images by name, with the reason."""
        names = getattr(self.dataset, 'name', 'image {}'.format)
        return [f'{printable(names(index))} ({Reason(reason).phrase})' for index, reason in met.tolist()]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """All else that the data set has, such as labels and classes."""
        if name == 'dataset':  # not there yet while being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


@DATA_SAMPLERS.register_module()
class ResumableSampler(Sampler):
    """Each epoch a permutation of the data set, dealt in turn to the processes, from the `start`-th image on.

    It follows from seed and epoch alone. mmengine's DefaultSampler draws by seed + epoch, so that neighbouring seeds share most
    orders, and cannot begin inside an epoch; `by_sum` is set when a run that was begun so is resumed. With the total batch
    unchanged, the n-th batch is the same set of images however many processes share it. TrainingImages also get the seed of
    each image's views: it depends on the image's place in the epoch, not on the worker. With order='shards' the permutation
    is one that far storage can serve, of `window` shards at a time. Of a Mixture with weights, an epoch has as many images of
    each set as these say.
    """

    def __init__(
        self, dataset: Sized, shuffle: bool = True, seed: int | None = None, order: str = 'images', window: int = 16
    ) -> None:
        self.rank, self.world_size = get_dist_info()
        self.dataset, self.shuffle, self.by, self.window = dataset, shuffle, order, window
        if order not in ('images', 'shards') or (order == 'shards' and getattr(dataset, 'shard_bounds', None) is None):
            raise UserError(
                f"ResumableSampler.order={order!r} does not fit {type(dataset).__name__}; give 'images', or 'shards' for a "
                'data set of type=Shards, or a Mixture of such'
            )
        self.counts = getattr(dataset, 'per_epoch', None) if shuffle else None
        self.seed = sync_random_seed() if seed is None else seed
        self.epoch, self.start, self.by_sum = 0, 0, False

    @property
    def images(self) -> int:
        """Images of an epoch: each one once, unless the data set has weights."""
        return len(self.dataset) if self.counts is None else int(self.counts.sum())

    @property
    def total(self) -> int:
        """Images of an epoch in all processes together: each has as many, so a few may be seen twice."""
        return math.ceil(self.images / self.world_size) * self.world_size

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Go to this epoch, of which all processes together have seen `start` images."""
        self.epoch, self.start = epoch, start

    def order(self) -> Order:
        """This epoch's order: the images at given places in it."""
        if not self.shuffle:
            return np.asarray
        own = self.seed + self.epoch if self.by_sum else seed_of(self.seed, self.epoch)
        if self.by == 'shards':
            shards = shards_of_epoch(self.dataset.shard_bounds, self.counts, self.seed, self.epoch)
            return by_shards(*shards, own, self.window)
        drawn = permutation(self.images, own)
        if self.counts is None:
            return drawn
        return weighted(self.dataset.bounds, self.counts, self.seed, self.epoch, drawn)

    def __iter__(self) -> Iterator[int | tuple[int, int]]:
        order, images, own = self.order(), self.images, range(self.start + self.rank, self.total, self.world_size)
        with_seeds = isinstance(self.dataset, TrainingImages)
        for first in range(0, len(own), BLOCK):
            places = np.array(own[first : first + BLOCK])
            indices = order(places % images).tolist()
            yield from zip(indices, self.seeds_of(places).tolist()) if with_seeds else indices

    def seeds_of(self, places: np.ndarray) -> np.ndarray:
        """32 well-mixed bits of (seed, epoch, place) for each image: neighbours must not draw alike."""
        run = (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xD1B54A32D192ED03) % 2**64
        bits = places.astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7) + np.uint64(run)
        return mixed(bits) % np.uint64(2**32)

    def __len__(self) -> int:
        """This process's images in a whole epoch, wherever it starts: what schedules are made for."""
        return len(range(self.rank, self.total, self.world_size))


def require_a_batch(loader: DataLoader) -> None:
    """An epoch without a batch ends in an assertion of mmengine's schedules."""
    if len(loader) == 0:
        raise UserError(
            f'the training set holds {len(loader.dataset)} images, fewer than one batch of {loader.batch_size} on each of '
            f'{get_world_size()} processes; lower total_batch_size'
        )


def unreadable_allowed(count: int, fraction: float) -> int:
    """The number of `count` images that may be unreadable: ten at least, unless the fraction is 0, but never all."""
    return min(max(ALWAYS_ALLOWED, int(fraction * count)) if fraction else 0, count - 1)
