"""The order of the images in an epoch: resumable at any image, and the same for any number of processes."""

import math
from collections.abc import Callable, Iterator, Sized
from functools import partial

import numpy as np
import torch
from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler

from mmairl.data.training_images import TrainingImages
from mmairl.errors import UserError
from mmairl.registry import DATA_SAMPLERS

Order = Callable[[np.ndarray], np.ndarray]  # maps positions in an epoch to images
BLOCK = 2**14  # images whose order is computed at once, which takes 3 ms
TORCH_COUNT = 2**24  # most images that torch permutes, with 128 MB of memory
ROUNDS = 8  # of the Feistel network
SPREAD = np.uint64(0x9E3779B97F4A7C15)


@DATA_SAMPLERS.register_module()
class ResumableSampler(Sampler):
    """Permutes the data set in each epoch, and deals the images to the processes in turn.

    The order depends only on seed and epoch, and an epoch can start at any image. If the total batch size is the same, the
    n-th batch contains the same images for any number of processes. TrainingImages also receive a seed for the views of
    each image, which depends on the position in the epoch and not on the worker. If the data set is a Mixture with
    weights, the weights determine how many images of each set an epoch has.

    mmengine's DefaultSampler permutes with the seed `seed + epoch`, so neighboring seeds share most orders. `by_sum`
    selects this rule, to resume runs that were started with it.

    Args:
        dataset: The data set.
        shuffle: Whether to permute.
        seed: The seed of all orders. Default: a random seed that all processes share.
        order: 'images', or 'shards' for an order that reads a few shards at a time, as remote storage requires.
        window: How many shards are read at a time.

    Raises:
        UserError: If `order` is unknown, or if it is 'shards' and the data set does not consist of shards.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int | None = None,
        order: str = 'images',
        window: int = 16,
    ) -> None:
        self.rank, self.world_size = get_dist_info()
        self.dataset = dataset
        self.shuffle = shuffle
        self.by = order
        self.window = window
        has_shards = getattr(dataset, 'shard_bounds', None) is not None
        if order not in ('images', 'shards') or (order == 'shards' and not has_shards):
            raise UserError(
                f"ResumableSampler.order: is not supported for {type(dataset).__name__} ('{order}'); set images, or shards "
                'for Shards and Mixtures of them',
                code='bad-order',
            )
        self.counts = getattr(dataset, 'per_epoch', None) if shuffle else None
        self.seed = sync_random_seed() if seed is None else seed
        self.epoch = 0
        self.start = 0
        self.by_sum = False

    @property
    def images(self) -> int:
        """Number of images in an epoch: that of the data set, unless it has weights."""
        return len(self.dataset) if self.counts is None else int(self.counts.sum())

    @property
    def total(self) -> int:
        """Number of images that all processes see in an epoch. A few may come twice, so that all have the same number."""
        return math.ceil(self.images / self.world_size) * self.world_size

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Set the epoch, and how many of its images all processes together have seen already."""
        self.epoch = epoch
        self.start = start

    def order(self) -> Order:
        """Return the order of the current epoch."""
        if not self.shuffle:
            return np.asarray
        seed = self.seed + self.epoch if self.by_sum else seed_of(self.seed, self.epoch)
        if self.by == 'shards':
            firsts, sizes = shards_of_epoch(
                self.dataset.shard_bounds, self.counts, self.seed, self.epoch
            )
            return shard_order(firsts, sizes, seed, self.window)
        order = permutation(self.images, seed)
        if self.counts is None:
            return order
        return weighted_order(self.dataset.bounds, self.counts, self.seed, self.epoch, order)

    def __iter__(self) -> Iterator[int | tuple[int, int]]:
        order = self.order()
        positions_of_rank = range(self.start + self.rank, self.total, self.world_size)
        with_seeds = isinstance(self.dataset, TrainingImages)
        for first in range(0, len(positions_of_rank), BLOCK):
            positions = np.array(positions_of_rank[first : first + BLOCK])
            indices = order(positions % self.images).tolist()
            yield from zip(indices, self.seeds_of(positions).tolist()) if with_seeds else indices

    def seeds_of(self, positions: np.ndarray) -> np.ndarray:
        """Return 32 well-mixed bits of (seed, epoch, position), so that neighbors do not draw similar views."""
        run = (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xD1B54A32D192ED03) % 2**64
        bits = positions.astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7) + np.uint64(run)
        return mix_bits(bits) % np.uint64(2**32)

    def __len__(self) -> int:
        """Return the number of images of this process in a full epoch, from which schedules are computed."""
        return len(range(self.rank, self.total, self.world_size))


def mix_bits(bits: np.ndarray) -> np.ndarray:
    """Mix 64-bit integers with the finalizer of splitmix64."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)


def seed_of(seed: int, epoch: int) -> int:
    """Return a hash of seed and epoch, so that runs with different seeds share no order."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


def permutation(count: int, seed: int) -> Order:
    """Return torch's permutation for up to 2^24 images, and for more a keyed permutation, which takes no memory.

    >>> permutation(5, seed=0)(np.arange(5))
    array([4, 0, 1, 3, 2])
    """
    if count > TORCH_COUNT:
        return partial(keyed_permutation, count=count, seed=seed)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy().take


def keyed_permutation(positions: np.ndarray, count: int, seed: int | list[int]) -> np.ndarray:
    """Return the images at these positions of a permutation, without computing the rest of it.

    This is a Feistel network on the rows and columns of a table with at least `count` cells (Black and Rogaway 2002). Each
    round shifts the row by a hash of the column, or the column by a hash of the row. A result beyond the last image passes
    through the network again until it is an image.
    """
    rows = math.isqrt(count - 1) + 1
    columns = -(-count // rows)
    keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)
    images = positions.astype(np.uint64)
    pending = np.arange(len(positions))
    while len(pending):
        row, column = np.divmod(images[pending], np.uint64(columns))
        for turn, key in enumerate(keys):
            if turn % 2:
                column = (column + mix_bits(row * SPREAD ^ key)) % np.uint64(columns)
            else:
                row = (row + mix_bits(column * SPREAD ^ key)) % np.uint64(rows)
        images[pending] = row * np.uint64(columns) + column
        pending = pending[images[pending] >= count]
    return images.astype(np.int64)


def shard_order(firsts: np.ndarray, sizes: np.ndarray, seed: int, window: int) -> Order:
    """Permute the shards, then the images within each window of `window` consecutive shards.

    So a few shards are read at a time. If all shards have the same size, two consecutive images come from one shard with
    probability 1 / window.
    """
    shards = permutation(len(firsts), seed)(np.arange(len(firsts)))
    firsts = firsts[shards]
    ends = np.cumsum(sizes[shards])  # of the shards, as positions in the epoch
    edges = np.unique([0, *ends[window - 1 :: window], ends[-1]])  # of the windows

    def order(positions: np.ndarray) -> np.ndarray:
        images = np.empty(len(positions), np.int64)
        windows = np.searchsorted(edges, positions, 'right') - 1
        for number in np.unique(windows).tolist():
            inside = windows == number
            start, end = edges[number : number + 2].tolist()
            shuffled = start + keyed_permutation(
                positions[inside] - start, end - start, [seed, number]
            )
            shard = np.searchsorted(ends, shuffled, 'right')
            images[inside] = firsts[shard] + shuffled - np.where(shard, ends[shard - 1], 0)
        return images

    return order


def weighted_order(
    bounds: np.ndarray, counts: np.ndarray, seed: int, epoch: int, order_of_epoch: Order
) -> Order:
    """Return an order with `counts` images of each set, mixed by `order_of_epoch`.

    The images of a set come from an endless sequence of permutations of the set, which each epoch continues. So in the
    long run all images of a set come equally often, for any weight.
    """
    ends = np.cumsum(counts)
    sizes = np.diff(bounds)

    def order(positions: np.ndarray) -> np.ndarray:
        mixed = order_of_epoch(positions)
        images = np.empty(len(positions), np.int64)
        sets = np.searchsorted(ends, mixed, 'right')
        taken = mixed - (ends - counts)[sets] + epoch * counts[sets]
        numbers, within = np.divmod(taken, sizes[sets])
        for number, turn in np.unique([sets, numbers], axis=1).T.tolist():
            inside = (sets == number) & (numbers == turn)
            shuffled = keyed_permutation(within[inside], int(sizes[number]), [seed, number, turn])
            images[inside] = bounds[number] + shuffled
        return images

    return order


def shards_of_epoch(
    sets: list[np.ndarray], counts: np.ndarray | None, seed: int, epoch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first images and the sizes of an epoch's shards: all shards, or those with the next `counts` images."""
    firsts, sizes = [], []
    offset = 0
    for number, bounds in enumerate(sets):
        starts, lengths = bounds[:-1], np.diff(bounds)
        if counts is not None:
            starts, lengths = next_shards(bounds, int(counts[number]), [seed, number], epoch)
        firsts.append(offset + starts)
        sizes.append(lengths)
        offset += bounds[-1]
    return np.concatenate(firsts), np.concatenate(sizes)


def next_shards(
    bounds: np.ndarray, count: int, seed: list[int], epoch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return first images and sizes of the shards with the next `count` images of a set.

    As in `weighted_order`, they come from an endless sequence of permutations, here of shards. Of the first and the last
    shard, the epoch may use only a part.
    """
    size = int(bounds[-1])
    start = epoch * count
    end = start + count
    turns = range(start // size, -(-end // size))
    all_shards = np.arange(len(bounds) - 1)
    shards = np.concatenate(
        [keyed_permutation(all_shards, len(all_shards), [*seed, turn]) for turn in turns]
    )
    ends = turns[0] * size + np.cumsum(np.diff(bounds)[shards])
    begins = ends - np.diff(bounds)[shards]
    low = np.maximum(begins, start)
    high = np.minimum(ends, end)
    used = low < high
    return (bounds[shards] + low - begins)[used], (high - low)[used]
