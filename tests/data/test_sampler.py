"""The order of images depends only on seed, epoch and position, for any number of processes and any start."""

import pytest

from mmairl.data import sampler as module
from mmairl.data.sampler import ResumableSampler, TrainingImages


@pytest.mark.parametrize(('count', 'seed', 'epoch'), [(1, 0, 0), (37, 3, 2), (40_000, 5, 0)])
def test_epoch_is_a_permutation_from_any_start(count, seed, epoch):
    sampler = ResumableSampler(range(count), seed=seed)
    sampler.set_epoch(epoch)
    order = list(sampler)
    assert sorted(order) == list(range(count))
    assert order == sampler.order().tolist()
    sampler.set_epoch(epoch, count // 2)
    assert list(sampler) == order[count // 2 :]


def test_neighboring_seeds_share_no_order():
    orders = set()
    for seed in range(3):
        sampler = ResumableSampler(range(40), seed=seed)
        for epoch in range(30):
            sampler.set_epoch(epoch)
            orders.add(tuple(sampler))
    assert len(orders) == 90


def test_processes_share_the_batches_and_seeds(monkeypatch):
    data = TrainingImages(range(7))
    plan = list(ResumableSampler(data, seed=1))
    assert len({seed for _, seed in plan}) == 7
    for processes in (2, 3):
        parts = []
        for rank in range(processes):
            monkeypatch.setattr(module, 'get_dist_info', lambda pair=(rank, processes): pair)
            sampler = ResumableSampler(data, seed=1)
            sampler.set_epoch(0, processes)
            parts.append(list(sampler))
            assert len(sampler) == len(parts[-1]) + 1
        joined = [pair for step in zip(*parts) for pair in step]
        assert joined[: 7 - processes] == plan[processes:]
        # The images that fill the last batch have seeds of their own.
        indices, seeds = zip(*joined)
        assert (
            indices[7 - processes :]
            == tuple(index for index, _ in plan)[: len(joined) - 7 + processes]
        )
        assert len(set(seeds)) == len(seeds)
