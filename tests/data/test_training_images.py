"""Training images: views do not depend on the process that creates them, and unreadable images are replaced and reported."""

import copy
import random
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.sampler import ResumableSampler
from mmairl.data.training_images import TrainingImages
from mmairl.errors import UserError


class Draws(Dataset):
    """A data set whose items are a random number from each of the three generators: torch's, NumPy's and Python's."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()], dtype=torch.float64)


def drawn(workers: int, **options) -> torch.Tensor:
    """Return the three random numbers of each image in each batch, as a tensor of shape (4, 4, 3)."""
    return torch.stack(list(DataLoader(TrainingImages(Draws()), batch_size=4, num_workers=workers, **options)))


def seed_worker(worker: int) -> None:
    """Seed the three generators in a data worker as mmengine does."""
    np.random.seed(worker)
    random.seed(worker)
    torch.manual_seed(worker)


@pytest.mark.parametrize('workers', [0, 2])
def test_plain_sampler_draws_different_views(workers):
    draws = drawn(workers, worker_init_fn=seed_worker)
    for numbers in draws.unbind(-1):
        assert len(numbers.unique()) == 16, (
            'images in the same position of different batches have the same random numbers'
        )


def test_seeded_views_do_not_depend_on_the_process():
    sampler = ResumableSampler(TrainingImages(Draws()), seed=5)
    order = list(sampler)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    batches = [TrainingImages(Draws()).__getitems__(order[i : i + 4]) for i in range(0, 16, 4)]
    one = torch.stack([torch.stack(batch) for batch in batches])
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(drawn(2, sampler=sampler), one) and len(one.unique()) == one.numel()
    assert sorted(ResumableSampler(range(16), seed=5)) == list(range(16)), 'the indices of another data set have seeds'


def test_seed_of_an_image_is_pinned():
    """Seeds must equal splitmix64, computed in Python integers. Other seeds would change the views of a resumed run."""
    sampler = ResumableSampler(TrainingImages(Draws()), seed=2**31 + 7)
    sampler.set_epoch(199)
    for place in (0, 1, 12345, 2**33, 10**9):
        bits = (sampler.seed * 0x9E3779B97F4A7C15 + 199 * 0xD1B54A32D192ED03 + place * 0x8CB92BA72F3D8DD7) % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        assert sampler.seeds_of(np.array([place])).tolist() == [(bits ^ bits >> 31) % 2**32]


def folder(root: Path, broken: list[int], count: int = 30) -> Path:
    root.mkdir(exist_ok=True)
    for i in range(count):
        Image.new('RGB', (8, 8), (i, 0, 0)).save(root / f'{i:02}.png')
    for i in broken:
        (root / f'{i:02}.png').write_bytes(b'')
    return root


@pytest.mark.parametrize('workers', [0, 2])
def test_unreadable_image_is_replaced_and_reported(tmp_path, workers):
    data = TrainingImages(UnlabelledFolder(folder(tmp_path, [4, 5, 29])))
    # mmengine copies the data set, so the test copies it, too.
    loader = DataLoader(copy.deepcopy(data), batch_size=10, num_workers=workers)
    batches = list(loader)
    reds = torch.cat([batch['inputs'][0][:, 0, 4, 4] for batch in batches]).tolist()
    indices = torch.cat([batch['data_samples']['index'] for batch in batches]).tolist()
    assert reds == indices == [{4: 6, 5: 6, 29: 0}.get(i, i) for i in range(30)]
    assert data.names_with_reasons(data.met()) == [f'{tmp_path}/{name}.png (is empty)' for name in ('04', '05', '29')]


def test_too_many_unreadable_images_raise(tmp_path):
    data = TrainingImages(UnlabelledFolder(folder(tmp_path, list(range(0, 24, 2)))))
    with pytest.raises(UserError, match='11 of the 30 training images cannot be read, more than the 10 that'):
        list(DataLoader(data, batch_size=1))
    data = TrainingImages(UnlabelledFolder(tmp_path))
    data.met = Mock(side_effect=AssertionError('the reasons of all images were searched'))
    assert int(data[0]['inputs'][0][0, 0, 0]) == 1 and data.reasons.count_nonzero() == 1
    limits = {0.01: 10, 0.5: 15, 0: 0, 1: 29}
    assert limits == {part: TrainingImages(UnlabelledFolder(tmp_path, max_unreadable=part)).allowed for part in limits}
