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

    def __init__(self, bounds: np.ndarray, seed: int, window: int) -> None:
        shards = Permutation(len(bounds) - 1, seed)(np.arange(len(bounds) - 1))
        self.firsts, self.seed = bounds[shards], seed
        self.ends = np.cumsum(np.diff(bounds)[shards])  # of each shard, in the places of the epoch
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
