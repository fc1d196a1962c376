"""An epoch's order: today's permutation for what fits, and a keyed one beyond, which is a permutation and uniform."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from mmairl.data.order import SMALL, by_shards, keyed, permutation, seed_of
from mmairl.data.training import ResumableSampler


@pytest.mark.parametrize('by_sum', [False, True], ids=['new runs', 'runs begun before'])
def test_up_to_a_limit_it_is_torchs_permutation_so_that_checkpoints_resume(by_sum):
    for count, seed, epoch in [(1, 0, 0), (37, 3, 2), (70_000, 5, 0)]:
        sampler = ResumableSampler(range(count), seed=seed)
        sampler.by_sum = by_sum
        sampler.set_epoch(epoch)
        own = seed + epoch if by_sum else seed_of(seed, epoch)
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(own)).tolist()
        assert list(sampler) == drawn
        sampler.set_epoch(epoch, count // 2)
        assert list(sampler) == drawn[count // 2 :]
    assert permutation(SMALL + 1, 3)(np.arange(9)).tolist() == keyed(np.arange(9), SMALL + 1, 3).tolist()


@pytest.mark.parametrize(('order', 'window'), [('images', 16), ('shards', 3)])
def test_runs_of_neighbouring_seeds_share_no_order(order, window):
    data = type('Shards', (), dict(shard_bounds=[np.arange(0, 41, 10)], __len__=lambda _: 40))()
    orders = set()
    for seed in range(3):
        sampler = ResumableSampler(data, seed=seed, order=order, window=window)
        for epoch in range(30):
            sampler.set_epoch(epoch)
            orders.add(tuple(sampler))
    assert len(orders) == 90


@pytest.mark.parametrize('count', [1, 2, 3, 5, 64, 1000, 65_537, 300_001])
def test_the_keyed_one_takes_every_image_once_whatever_the_places_are_asked_in(count):
    places = np.random.default_rng(count).permutation(count)
    images = np.concatenate([keyed(block, count, seed=count) for block in np.array_split(places, 3)])
    assert np.array_equal(np.sort(images), np.arange(count))
    assert np.array_equal(images[np.argsort(places)], keyed(np.arange(count), count, seed=count))


def test_over_seeds_every_order_of_few_images_is_as_frequent():
    found = [tuple(keyed(np.arange(4), 4, seed).tolist()) for seed in range(2400)]
    counts = [found.count(order) for order in itertools.permutations(range(4))]
    assert sum(counts) == 2400 and stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize('count', [SMALL + 1, 10**8, 2**32 + 15])
def test_of_many_images_no_place_says_anything_about_its_image(count):
    """By ranks, by the remainders of both, by neighbours, and by another seed."""
    first = np.arange(100_000)
    images = keyed(first, count, seed=1)
    assert len(np.unique(images)) == len(first) and images.min() >= 0 and images.max() < count
    spread = np.arange(0, count, count // 100_000)[:100_000]  # places over the whole epoch
    far, other = keyed(spread, count, seed=1), keyed(spread, count, seed=2)
    chances = [stats.kstest(found / count, 'uniform').pvalue for found in (images, far, other)]
    pairs = [(spread, far), (first, images), (images[:-1], images[1:]), (far, other)]
    chances += [stats.spearmanr(*pair).pvalue for pair in pairs]
    for size in (2, 7, 16):
        for one, two in pairs:
            table = np.zeros((size, size))
            np.add.at(table, (one % size, two % size), 1)
            if (table.sum(1) > 0).all():  # places that are apart by a multiple of `size` have one remainder
                chances.append(stats.chi2_contingency(table).pvalue)
        steps = np.bincount(np.diff(images) % count * size // count, minlength=size)
        chances.append(stats.chisquare(steps).pvalue)
    assert min(chances) > 0.05 / len(chances) / 3


def test_by_shards_every_image_comes_once_and_few_shards_are_open_at_a_time():
    sizes = np.random.default_rng(0).integers(1, 90, 23)
    bounds = np.cumsum([0, *sizes])
    order = by_shards(bounds[:-1], np.diff(bounds), seed=3, window=4)
    places = np.random.default_rng(1).permutation(bounds[-1])
    images = np.empty(bounds[-1], int)
    images[places] = np.concatenate([order(block) for block in np.array_split(places, 7)])
    assert np.array_equal(np.sort(images), np.arange(bounds[-1]))
    shards, seen, open_together = np.searchsorted(bounds, images, 'right') - 1, set(), []
    while len(shards):  # from one set of shards to the next
        count = next(n for n in range(1, len(shards) + 1) if not set(shards[:n]) & set(shards[n:]))
        open_together.append(len(set(shards[:count])))
        assert not seen & set(shards[:count])
        seen, shards = seen | set(shards[:count]), shards[count:]
    assert sum(open_together) == 23 and max(open_together) <= 4 and len(open_together) >= 6
    assert not np.array_equal(images, by_shards(bounds[:-1], np.diff(bounds), seed=4, window=4)(np.arange(bounds[-1])))


def test_by_shards_the_images_of_open_shards_are_mixed_as_by_a_full_shuffle():
    """Of neighbours, 1 / window come from one shard; the pairs of shards within a window are independent."""
    bounds = np.arange(0, 64_001, 1000)
    shards = by_shards(bounds[:-1], np.diff(bounds), seed=1, window=16)(np.arange(64_000)) // 1000
    same = (shards[1:] == shards[:-1]).mean()
    assert abs(same - 1 / 16) < 4 * math.sqrt(1 / 16 / 64_000)
    for window in shards.reshape(4, -1):
        table = np.zeros((64, 64))
        np.add.at(table, (window[1:], window[:-1]), 1)
        table = table[table.sum(1) > 0][:, table.sum(0) > 0]
        assert table.shape == (16, 16) and stats.chi2_contingency(table).pvalue > 0.001
