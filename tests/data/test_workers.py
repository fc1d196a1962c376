"""Data workers that die, hang, or run out of shared memory. The error states the cause."""

import os
import resource
import signal
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from harness.errors import raises_code
from torch.utils.data import DataLoader, Dataset, default_collate

from mmairl.data.workers import delivered, safe
from mmairl.errors import UserError


class Failing(Dataset):
    """A data set of two images. Reading the second image calls `act` in the worker, once the first image has arrived."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.has_first = torch.multiprocessing.Event()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 1:
            self.has_first.wait()
            self.act()
        return index


def test_dead_worker_is_an_error():
    data = Failing(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with raises_code('data-workers-failed', 'killed by signal: Killed'):
        for _ in delivered(DataLoader(data, num_workers=1)):
            data.has_first.set()


@pytest.mark.parametrize('workers', [0, 1])
def test_error_of_a_data_set_passes_unchanged(workers):
    data = Failing(lambda: [].remove(1))
    data.has_first.set()
    with pytest.raises(ValueError, match=r'list.remove\(x\)') as raised:
        list(delivered(DataLoader(data, num_workers=workers)))
    assert not isinstance(raised.value, UserError)


FULL = RuntimeError('unable to write to file </torch_12_34_5>: No space left on device (28)')


@pytest.mark.parametrize(
    ('owner', 'name'), [(torch.Tensor, 'share_memory_'), (torch.UntypedStorage, '_new_shared')]
)
def test_full_shared_memory_is_an_error(owner, name, monkeypatch):
    """In a worker, torch's collate function allocates shared memory itself."""
    images = [torch.zeros(3, 4, 4)] * 4
    monkeypatch.setattr(owner, name, Mock(side_effect=FULL))
    loader = safe(DataLoader(images, num_workers=1, collate_fn=default_collate))
    with pytest.raises(UserError, match='shared memory.*--shm-size'):
        next(delivered(loader))
    assert len(next(iter(safe(DataLoader(images))))) == 1


def test_all_file_handles_are_allowed(monkeypatch):
    limits = []
    monkeypatch.setattr(resource, 'getrlimit', lambda _: (100, 4096))
    monkeypatch.setattr(resource, 'setrlimit', lambda _, pair: limits.append(pair))
    safe(DataLoader([0], num_workers=1))
    assert limits == [(4096, 4096)]
