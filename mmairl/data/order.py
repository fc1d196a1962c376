"""The order of an epoch's images, from the place in the epoch to the image, without a list of all of them."""

import math

import numpy as np
import torch

SMALL = 2**24  # images whose permutation is torch's, of 128 MB
ROUNDS = 8
SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Permutation:
    """A permutation of `count` images drawn by a seed: that of mmengine's sampler for up to 2^24, a keyed one beyond.

    >>> Permutation(5, seed=0)(np.arange(5))
    array([4, 0, 1, 3, 2])
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.table = count, seed, None
        if count <= SMALL:
            self.table = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The images at these places."""
        return keyed(places, self.count, self.seed) if self.table is None else self.table[places]


def keyed(places: np.ndarray, count: int, seed: int | list[int]) -> np.ndarray:
    """The images at these places of a permutation of `count` that follows from the seed alone, each computed by itself.

    A Feistel network on the rows and columns of a table that has just enough cells (Black and Rogaway 2002): each round
    turns the one by a hash of the other. A cell past the last image goes through again until it is one.
    """
    rows = math.isqrt(count - 1) + 1
    columns = -(-count // rows)
    keys = np.random.SeedSequence(seed).generate_state(ROUNDS, np.uint64)
    images, walking = places.astype(np.uint64), np.arange(len(places))
    while len(walking):
        row, column = np.divmod(images[walking], np.uint64(columns))
        for turn, key in enumerate(keys):
            if turn % 2:
                column = (column + mixed(row * SPREAD ^ key)) % np.uint64(columns)
            else:
                row = (row + mixed(column * SPREAD ^ key)) % np.uint64(rows)
        images[walking] = row * np.uint64(columns) + column
        walking = walking[images[walking] >= count]
    return images.astype(np.int64)


def mixed(bits: np.ndarray) -> np.ndarray:
    """64 well-mixed bits of 64: neighbours must not be alike (the finaliser of splitmix64)."""
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)


class ByShards:
    """Shards in a drawn order, `window` of them open at a time, and the images of these in a drawn order among each other.

    Far storage is then read a few shards at a time. Two neighbours come from one shard with probability 1 / window, where
    shards are equally large.
    """

    def __init__(self, firsts: np.ndarray, sizes: np.ndarray, seed: int, window: int) -> None:
        shards = Permutation(len(firsts), seed)(np.arange(len(firsts)))
        self.firsts, self.seed = firsts[shards], seed
        self.ends = np.cumsum(sizes[shards])  # of each shard, in the places of the epoch
        opened = self.ends[window - 1 :: window]
        self.edges = np.unique([0, *opened, self.ends[-1]])  # of those that are open together

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The images at these places."""
        images, windows = np.empty(len(places), np.int64), np.searchsorted(self.edges, places, 'right') - 1
        for window in np.unique(windows):
            here, (start, end) = windows == window, self.edges[window : window + 2]
            within = start + keyed(places[here] - start, int(end - start), [self.seed, int(window)])
            shard = np.searchsorted(self.ends, within, 'right')
            images[here] = self.firsts[shard] + within - np.where(shard, self.ends[shard - 1], 0)
        return images


class Mixed:
    """An epoch of several sets with `counts` images of each, in a drawn order.

    Each set is an endless row of passes through all its images, each pass in a drawn order of its own, and an epoch takes the
    next of them. So the images of a set come equally often in the end, whatever its weight.
    """

    def __init__(self, bounds: np.ndarray, counts: np.ndarray, seed: int, epoch: int) -> None:
        self.bounds, self.counts, self.seed, self.epoch = bounds, counts, seed, epoch
        self.drawn = Permutation(int(counts.sum()), seed + epoch)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The images at these places."""
        drawn, ends, images = self.drawn(places), np.cumsum(self.counts), np.empty(len(places), np.int64)
        sets = np.searchsorted(ends, drawn, 'right')
        taken = drawn - (ends - self.counts)[sets] + self.epoch * self.counts[sets]
        passes, within = np.divmod(taken, np.diff(self.bounds)[sets])
        for number, turn in np.unique([sets, passes], axis=1).T.tolist():
            here, (first, end) = (sets == number) & (passes == turn), self.bounds[number : number + 2].tolist()
            images[here] = first + keyed(within[here], end - first, [self.seed, number, turn])
        return images


def shards_of_epoch(
    sets: list[np.ndarray], counts: np.ndarray | None, seed: int, epoch: int
) -> tuple[np.ndarray, np.ndarray]:
    """First images and sizes of the shards that an epoch goes through: all, or of each set those with its next `counts`."""
    firsts, sizes, before = [], [], 0
    for number, bounds in enumerate(sets):
        found = bounds[:-1], np.diff(bounds)
        if counts is not None:
            found = next_shards(bounds, int(counts[number]), [seed, number], epoch)
        firsts.append(before + found[0])
        sizes.append(found[1])
        before += bounds[-1]
    return np.concatenate(firsts), np.concatenate(sizes)


def next_shards(bounds: np.ndarray, count: int, seed: list[int], epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """As `Mixed` takes images: each pass has the shards in a drawn order, and the first and the last one may be a part."""
    size, start = int(bounds[-1]), epoch * count
    passes, all_shards = range(start // size, -(-(start + count) // size)), np.arange(len(bounds) - 1)
    shards = np.concatenate([keyed(all_shards, len(all_shards), [*seed, turn]) for turn in passes])
    ends = passes[0] * size + np.cumsum(np.diff(bounds)[shards])
    begins = ends - np.diff(bounds)[shards]
    low, high = np.maximum(begins, start), np.minimum(ends, start + count)
    return (bounds[shards] + low - begins)[low < high], (high - low)[low < high]
