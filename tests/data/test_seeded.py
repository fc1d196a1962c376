"""Randomness of each image: its own where its index brings a seed, and the process's where a plain sampler brings none."""

import random

import numpy as np
import pytest
import torch
from mmairl.data.training import TrainingImages
from torch.utils.data import DataLoader, Dataset

from mmairl.data.sampler import ResumableSampler


class Draws(Dataset):
    """What a view would draw, from each of the three generators."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()], dtype=torch.float64)


def drawn(workers: int, **options) -> torch.Tensor:
    """Batches, images and the three numbers; the shape is (4, 4, 3)."""
    return torch.stack(list(DataLoader(TrainingImages(Draws()), batch_size=4, num_workers=workers, **options)))


def seed_worker(worker: int) -> None:
    """As mmengine's: each worker's generators start from its own seed."""
    np.random.seed(worker)
    random.seed(worker)
    torch.manual_seed(worker)


@pytest.mark.parametrize('workers', [0, 2])
def test_a_plain_samplers_batches_draw_different_views(workers):
    found = drawn(workers, worker_init_fn=seed_worker)
    for numbers in found.unbind(-1):
        assert len(numbers.unique()) == 16, 'the j-th image of each batch was drawn alike'


@pytest.mark.parametrize('workers', [0, 2])
def test_seeded_images_draw_the_same_in_every_process_and_leave_its_generators_alone(workers):
    sampler = ResumableSampler(range(16), seed=5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    one = torch.stack([torch.stack(TrainingImages(Draws()).__getitems__(list(sampler)[i : i + 4])) for i in range(0, 16, 4)])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(drawn(workers, sampler=sampler), one) and len(one.unique()) == one.numel()
