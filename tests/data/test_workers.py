"""Data workers that die or hang, for real, and the sentence that comes of it."""

import os
import resource
import signal
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from harness.errors import raises_code
from torch.utils.data import DataLoader, Dataset, default_collate

from mmairl.data.workers import delivered, require_handles, safe, shared_batch
from mmairl.errors import UserError


class Failing(Dataset):
    """The second image does something to its worker, once the first one has come."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.well = act, torch.multiprocessing.Event()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 1:
            self.well.wait()
            self.act()
        return index


@pytest.mark.parametrize('act, said', [
    (lambda: os.kill(os.getpid(), signal.SIGKILL), r'is killed by signal: Killed\. \); lower num_workers, or set it to 0'),
    (lambda: os._exit(1), r'exited unexpectedly'),
    (lambda: time.sleep(4), r'timed out after 2 seconds\); lower num_workers'),
])  # fmt: skip
def test_what_becomes_of_a_worker_is_told(act, said):
    data = Failing(act)
    with pytest.raises(UserError, match=said):
        for _ in delivered(DataLoader(data, num_workers=1, timeout=2)):
            data.well.set()


@pytest.mark.parametrize('workers', [0, 1])
def test_an_error_in_a_data_set_is_not_one_of_the_workers(workers):
    data = Failing(lambda: [].remove(1))
    data.well.set()
    with pytest.raises(ValueError, match=r'list.remove\(x\)') as caught:
        list(delivered(DataLoader(data, num_workers=workers)))
    assert not isinstance(caught.value, UserError)


def test_a_batch_that_shared_memory_cannot_take_is_an_error_and_no_endless_wait(monkeypatch):
    full = RuntimeError('unable to write to file </torch_12_34_5>: No space left on device (28)')
    monkeypatch.setattr(torch.Tensor, 'share_memory_', Mock(side_effect=full))
    loader = safe(DataLoader(range(4), num_workers=1, collate_fn=torch.tensor))
    with pytest.raises(UserError, match='--shm-size'):
        next(delivered(loader))
    assert next(iter(safe(DataLoader(range(4), collate_fn=torch.tensor)))).tolist() == [0]


def test_collate_without_shared_memory_raises():
    """torch's collate function allocates shared memory before it returns."""

    def collate(items: list) -> torch.Tensor:
        raise RuntimeError('unable to allocate shared memory(shm) for file </torch_1>: Success (0)')

    with raises_code('shared-memory-full'):
        shared_batch(collate, [1])
    with pytest.raises(RuntimeError, match='equal size'):
        shared_batch(default_collate, [torch.zeros(1), torch.zeros(2)])


def test_too_few_file_handles_are_refused_before_workers_wait_for_ever(monkeypatch):
    limits, set_to = [(100, 4096), (100, 100), (10**6, 10**6)], []
    monkeypatch.setattr(resource, 'getrlimit', lambda _: limits.pop(0))
    monkeypatch.setattr(resource, 'setrlimit', lambda _, pair: set_to.append(pair))
    require_handles(8)
    assert set_to == [(320, 4096)]
    with pytest.raises(UserError, match='the limit of open files is 100 and 8 data workers need 320; raise it'):
        require_handles(8)
    require_handles(8)
    assert set_to == [(320, 4096)]
