"""The order of the images in an epoch. It does not depend on the number of processes, and a run can resume at any image."""

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

# An order maps positions in an epoch to indices of images.
Order = Callable[[np.ndarray], np.ndarray]
BLOCK = 2**14  # the order is computed for this many images at once, which takes milliseconds
TORCH_COUNT = 2**24  # torch permutes at most this many images, which takes 128 MB of memory
ROUNDS = 8  # number of rounds of the Feistel network in keyed_permutation
SPREAD = np.uint64(0x9E3779B97F4A7C15)


@DATA_SAMPLERS.register_module()
class ResumableSampler(Sampler):
    """Permutes the images of a data set in each epoch, and distributes them to the processes in turn.

    The order of an epoch depends only on the seed and on the number of the epoch, and a resumed epoch can start at any
    image. For a fixed total batch size, the n-th batch contains the same images for any number of processes. If the data set
    is wrapped in TrainingImages, the sampler also passes a seed for the views of each image. This seed depends on the
    position in the epoch and not on the data worker. If the data set is a Mixture with weights, the weights determine how
    many images of each set an epoch has.

    mmengine's DefaultSampler uses `seed + epoch` as the seed of a permutation, so two runs with neighboring seeds have most
    orders in common. This sampler hashes the two numbers instead. The attribute `by_sum` selects mmengine's rule, so that
    runs that were started with that rule can be resumed.

    Args:
        dataset: The data set.
        shuffle: Whether to permute the images.
        seed: The seed from which the orders of all epochs are derived. Default: a random seed that all processes share.
        order: 'images' permutes all images. 'shards' permutes the shards, and then the images within groups of `window`
            shards, so that only a few shards are read at a time. For Parquet files, row groups are permuted instead of
            shards. Set 'shards' for remote storage and Parquet files.
        window: How many shards (or row groups) are read at a time if `order` is 'shards'.

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
                f"ResumableSampler.order: not supported for {type(dataset).__name__} ('{order}'); set order='images', "
                "or order='shards' if the data set is Shards or a Mixture of Shards",
                code='bad-order',
            )
        self.counts = getattr(dataset, 'per_epoch', None) if shuffle else None
        self.seed = sync_random_seed() if seed is None else seed
        self.epoch = 0
        self.start = 0
        self.by_sum = False

    @property
    def images(self) -> int:
        """Number of images in an epoch: the size of the data set, or the number that the weights of a Mixture yield."""
        return len(self.dataset) if self.counts is None else int(self.counts.sum())

    @property
    def total(self) -> int:
        """Number of images that all processes together see in an epoch.

        A few images may be repeated, so that each process has the same number of images.
        """
        return math.ceil(self.images / self.world_size) * self.world_size

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Set the epoch, and the number of its images that all processes together have already seen."""
        self.epoch = epoch
        self.start = start

    def order(self) -> Order:
        """Return the order of the current epoch, as a function from positions to indices of images."""
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
        """Return a 32-bit seed for the views at each position.

        It is a hash of (seed, epoch, position), so that images at neighboring positions do not have similar views.
        """
        run = (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xD1B54A32D192ED03) % 2**64
        bits = positions.astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7) + np.uint64(run)
        return mix_bits(bits) % np.uint64(2**32)

    def __len__(self) -> int:
        """Return the number of images of this process in a full epoch. mmengine computes schedules from it."""
        return len(range(self.rank, self.total, self.world_size))


def mix_bits(bits: np.ndarray) -> np.ndarray:
    """Hash 64-bit integers by the last step of the random generator splitmix64."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)


def seed_of(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's order. It is a hash, so that runs with different seeds have no order in common."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


def permutation(count: int, seed: int) -> Order:
    """Return a random order of `count` images, as a function from positions to indices.

    Up to 2^24 images are permuted by torch. More images are permuted by `keyed_permutation`, which takes no memory.

    >>> permutation(5, seed=0)(np.arange(5))
    array([4, 0, 1, 3, 2])
    """
    if count > TORCH_COUNT:
        return partial(keyed_permutation, count=count, seed=seed)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy().take


def keyed_permutation(positions: np.ndarray, count: int, seed: int | list[int]) -> np.ndarray:
    """Return the images at these positions of a random permutation, without computing the images at other positions.

    The permutation is a Feistel network on the rows and columns of a table with at least `count` cells (Black and Rogaway
    2002). The rounds alternately shift the row by a hash of the column and the column by a hash of the row. A result of
    `count` or more is not the index of an image, so it passes through the network again until it is below `count`.
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
    """Return an order that permutes the shards, then the images within each group of `window` consecutive shards.

    With this order, only `window` shards are read at a time.
    """
    shards = permutation(len(firsts), seed)(np.arange(len(firsts)))
    firsts = firsts[shards]
    ends = np.cumsum(sizes[shards])  # the positions in the epoch at which the shards end
    # These are the positions at which the groups start and end.
    edges = np.unique([0, *ends[window - 1 :: window], ends[-1]])

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
    """Return an order of a Mixture with `counts` images of each set, shuffled by `order_of_epoch`.

    The images of a set come from an endless sequence of permutations of the set. Each epoch continues this sequence where
    the last epoch stopped. In the long run, all images of a set are therefore seen equally often, for any weight.
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
    """Return the shards of an epoch: the index of the first image and the number of images of each shard.

    If `counts` is None, an epoch has all shards. Otherwise, it has the shards that contain the next `counts` images of each
    set.
    """
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
    """Return the shards that contain the next `count` images of a set, in the form that `shards_of_epoch` returns.

    The shards come from an endless sequence of permutations of the set's shards. Each epoch continues this sequence where
    the last epoch stopped, so it may use only a part of its first shard and of its last shard.
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
