"""The order of an epoch's images, from the place in the epoch to the image, without a list of all of them."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

Order = Callable[[np.ndarray], np.ndarray]  # the images at given places of an epoch
SMALL = 2**24  # images whose permutation is torch's, of 128 MB
ROUNDS = 8
SPREAD = np.uint64(0x9E3779B97F4A7C15)


def permutation(count: int, seed: int) -> Order:
    """One of `count` images drawn by a seed: torch's for up to 2^24, a keyed one beyond.

    >>> permutation(5, seed=0)(np.arange(5))
    array([4, 0, 1, 3, 2])
    """
    if count > SMALL:
        return partial(keyed, count=count, seed=seed)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy().take


def seed_of(seed: int, epoch: int) -> int:
    """The seed of an epoch's order: a hash, so that runs of different seeds share no epoch's order."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


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


def by_shards(firsts: np.ndarray, sizes: np.ndarray, seed: int, window: int) -> Order:
    """Shards in a drawn order, `window` of them open at a time, and the images of these in a drawn order among each other.

    Far storage is then read a few shards at a time. Two neighbours come from one shard with probability 1 / window, where
    shards are equally large.
    """
    shards = permutation(len(firsts), seed)(np.arange(len(firsts)))
    firsts, ends = firsts[shards], np.cumsum(sizes[shards])  # in the images, and in the places of the epoch
    edges = np.unique([0, *ends[window - 1 :: window], ends[-1]])  # of shards that are open together

    def order(places: np.ndarray) -> np.ndarray:
        images, windows = np.empty(len(places), np.int64), np.searchsorted(edges, places, 'right') - 1
        for number in np.unique(windows):
            here, (start, end) = windows == number, edges[number : number + 2]
            within = start + keyed(places[here] - start, int(end - start), [seed, int(number)])
            shard = np.searchsorted(ends, within, 'right')
            images[here] = firsts[shard] + within - np.where(shard, ends[shard - 1], 0)
        return images

    return order


def weighted(bounds: np.ndarray, counts: np.ndarray, seed: int, epoch: int, drawn: Order) -> Order:
    """An epoch of several sets with `counts` images of each, in the order `drawn`.

    Each set is an endless row of passes through all its images, each pass in a drawn order of its own, and an epoch takes the
    next of them. So the images of a set come equally often in the end, whatever its weight.
    """
    ends = np.cumsum(counts)

    def order(places: np.ndarray) -> np.ndarray:
        at, images = drawn(places), np.empty(len(places), np.int64)
        sets = np.searchsorted(ends, at, 'right')
        taken = at - (ends - counts)[sets] + epoch * counts[sets]
        passes, within = np.divmod(taken, np.diff(bounds)[sets])
        for number, turn in np.unique([sets, passes], axis=1).T.tolist():
            here, (first, end) = (sets == number) & (passes == turn), bounds[number : number + 2].tolist()
            images[here] = first + keyed(within[here], end - first, [seed, number, turn])
        return images

    return order


def shards_of_epoch(
    sets: list[np.ndarray], counts: np.ndarray | None, seed: int, epoch: int
) -> tuple[np.ndarray, np.ndarray]:
    """First images and sizes of the shards that an epoch goes through: all, or of each set those with its next `counts`."""
    firsts, sizes, before = [], [], 0
    for number, bounds in enumerate(sets):
        shards = bounds[:-1], np.diff(bounds)
        if counts is not None:
            shards = next_shards(bounds, int(counts[number]), [seed, number], epoch)
        firsts.append(before + shards[0])
        sizes.append(shards[1])
        before += bounds[-1]
    return np.concatenate(firsts), np.concatenate(sizes)


def next_shards(bounds: np.ndarray, count: int, seed: list[int], epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """As `weighted` takes images: each pass has the shards in a drawn order, and the first and the last one may be a part."""
    size, start = int(bounds[-1]), epoch * count
    passes, all_shards = range(start // size, -(-(start + count) // size)), np.arange(len(bounds) - 1)
    shards = np.concatenate([keyed(all_shards, len(all_shards), [*seed, turn]) for turn in passes])
    ends = passes[0] * size + np.cumsum(np.diff(bounds)[shards])
    begins = ends - np.diff(bounds)[shards]
    low, high = np.maximum(begins, start), np.minimum(ends, start + count)
    return (bounds[shards] + low - begins)[low < high], (high - low)[low < high]
