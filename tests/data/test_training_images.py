"""Training images: views depend only on the seed, and unreadable images are replaced, counted and limited."""

import copy
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.sampler import ResumableSampler, TrainingImages


class Draws(Dataset):
    """Items are a random number from each of the three generators: torch's, NumPy's and Python's."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(
            [torch.rand(()).item(), np.random.rand(), random.random()], dtype=torch.float64
        )


def drawn(workers: int, **options) -> torch.Tensor:
    """Return the three random numbers of each image in each batch, as a tensor of shape (4, 4, 3)."""
    return torch.stack(
        list(DataLoader(TrainingImages(Draws()), batch_size=4, num_workers=workers, **options))
    )


def test_seeded_views_do_not_depend_on_the_process():
    sampler = ResumableSampler(TrainingImages(Draws()), seed=5)
    order = list(sampler)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    batches = [TrainingImages(Draws()).__getitems__(order[i : i + 4]) for i in range(0, 16, 4)]
    one = torch.stack([torch.stack(batch) for batch in batches])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(drawn(2, sampler=sampler), one)
    assert len(one.unique()) == one.numel()
    assert torch.equal(torch.stack(TrainingImages(Draws()).__getitems__(order[8:12])), one[2]), (
        'after a resume'
    )


def test_seeds_do_not_depend_on_the_size_of_the_epoch():
    few = ResumableSampler(TrainingImages(range(10)), seed=2**31 + 7)
    many = ResumableSampler(TrainingImages(range(1000)), seed=2**31 + 7)
    assert np.array_equal(few.seeds(), many.seeds()[:10])
    assert len(set(many.seeds().tolist())) == 1000
    few.set_epoch(1)
    assert not set(few.seeds().tolist()) & set(many.seeds().tolist())


def folder(root: Path, broken: list[int]) -> Path:
    for i in range(30):
        Image.new('RGB', (8, 8), (i, 0, 0)).save(root / f'{i:02}.png')
    for i in broken:
        (root / f'{i:02}.png').write_bytes(b'')
    return root


@pytest.mark.parametrize('workers', [0, 2])
def test_unreadable_image_is_replaced_and_reported(tmp_path, workers):
    data = TrainingImages(UnlabelledFolder(folder(tmp_path, [4, 5, 29])))
    # mmengine copies the data set, so the test copies it, too.
    batches = list(DataLoader(copy.deepcopy(data), batch_size=10, num_workers=workers))
    reds = torch.cat([batch['inputs'][0][:, 0, 4, 4] for batch in batches]).tolist()
    assert reds == [{4: 6, 5: 6, 29: 0}.get(i, i) for i in range(30)]
    assert data.met().tolist() == [4, 5, 29]
    assert data.names_with_reasons(data.met())[2] == f'{tmp_path}/29.png (is empty)'


def test_too_many_unreadable_images_raise(tmp_path):
    root = folder(tmp_path, list(range(0, 24, 2)))
    with raises_code('too-many-unreadable'):
        list(DataLoader(TrainingImages(UnlabelledFolder(root)), batch_size=1))
    for fraction, allowed in {0.01: 10, 0.5: 15, 0: 0, 1: 29}.items():
        data = TrainingImages(UnlabelledFolder(root, max_unreadable=fraction))
        assert data.allowed == allowed


@pytest.mark.parametrize(
    'wrap', [lambda image: image, lambda image: (image, 3), lambda image: dict(inputs=[image])]
)
def test_pillow_images_have_a_clear_error(wrap):
    data = TrainingImages([wrap(Image.new('RGB', (8, 8)))])
    with raises_code('pillow-images'):
        data[0]
