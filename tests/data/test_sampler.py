"""The order of images in an epoch: torch's permutation, the keyed permutation for large data sets, and the order by
shards.
"""

import numpy as np
import pytest
import torch

from mmairl.data.sampler import TORCH_COUNT, ResumableSampler, keyed_permutation, permutation, seed_of, shard_order


@pytest.mark.parametrize('by_sum', [False, True], ids=['new runs', 'old runs'])
def test_order_is_torchs_permutation_from_any_start(by_sum):
    for count, seed, epoch in [(1, 0, 0), (37, 3, 2), (70_000, 5, 0)]:
        sampler = ResumableSampler(range(count), seed=seed)
        sampler.by_sum = by_sum
        sampler.set_epoch(epoch)
        generator_seed = seed + epoch if by_sum else seed_of(seed, epoch)
        torch_order = torch.randperm(count, generator=torch.Generator().manual_seed(generator_seed)).tolist()
        assert list(sampler) == torch_order
        sampler.set_epoch(epoch, count // 2)
        assert list(sampler) == torch_order[count // 2 :]
    keyed = keyed_permutation(np.arange(9), TORCH_COUNT + 1, 3)
    assert np.array_equal(permutation(TORCH_COUNT + 1, 3)(np.arange(9)), keyed)


@pytest.mark.parametrize(('order', 'window'), [('images', 16), ('shards', 3)])
def test_neighboring_seeds_share_no_order(order, window):
    data = type('Shards', (), dict(shard_bounds=[np.arange(0, 41, 10)], __len__=lambda _: 40))()
    orders = set()
    for seed in range(3):
        sampler = ResumableSampler(data, seed=seed, order=order, window=window)
        for epoch in range(30):
            sampler.set_epoch(epoch)
            orders.add(tuple(sampler))
    assert len(orders) == 90


@pytest.mark.parametrize('count', [1, 2, 3, 5, 64, 1000, 65_537, 300_001])
def test_keyed_permutation_has_each_image_once(count):
    places = np.random.default_rng(count).permutation(count)
    images = np.concatenate([keyed_permutation(block, count, seed=count) for block in np.array_split(places, 3)])
    assert np.array_equal(np.sort(images), np.arange(count))
    assert np.array_equal(images[np.argsort(places)], keyed_permutation(np.arange(count), count, seed=count))


# For each number of images, these are the images at five positions of the permutation with seed 1.
PINNED = {
    10: [8, 4, 5, 6, 3],
    TORCH_COUNT + 1: [8187687, 2758547, 14545268, 8896267, 12350348],
    10**8: [57199702, 30341647, 74984148, 69604860, 66091024],
    2**32 + 15: [3468458329, 3454143186, 2869471304, 3537428405, 2717105097],
}


@pytest.mark.parametrize('count', PINNED)
def test_keyed_permutation_is_pinned(count):
    """These permutations passed statistical tests of uniformity.

    If the permutations changed, existing runs could not be resumed exactly.
    """
    assert keyed_permutation(np.arange(0, count, count // 5)[:5], count, seed=1).tolist() == PINNED[count]


def test_shard_order_has_each_image_once_in_windows():
    sizes = np.random.default_rng(0).integers(1, 90, 23)
    bounds = np.cumsum([0, *sizes])
    order = shard_order(bounds[:-1], np.diff(bounds), seed=3, window=4)
    places = np.random.default_rng(1).permutation(bounds[-1])
    images = np.empty(bounds[-1], int)
    images[places] = np.concatenate([order(block) for block in np.array_split(places, 7)])
    assert np.array_equal(np.sort(images), np.arange(bounds[-1]))
    shards, seen, open_together = np.searchsorted(bounds, images, 'right') - 1, set(), []
    # Split the sequence wherever no shard from before the split occurs after it.
    while len(shards):
        count = next(n for n in range(1, len(shards) + 1) if not set(shards[:n]) & set(shards[n:]))
        open_together.append(len(set(shards[:count])))
        assert not seen & set(shards[:count])
        seen, shards = seen | set(shards[:count]), shards[count:]
    assert sum(open_together) == 23 and max(open_together) <= 4 and len(open_together) >= 6
    other = shard_order(bounds[:-1], np.diff(bounds), seed=4, window=4)
    assert not np.array_equal(images, other(np.arange(bounds[-1])))
    bounds = np.arange(0, 64_001, 1000)
    order = shard_order(bounds[:-1], np.diff(bounds), seed=1, window=16)
    assert order(np.arange(6)).tolist() == [63799, 30909, 27510, 10945, 31141, 33986]
