"""Data workers that die or hang, for real, and the sentence that comes of it."""

import errno
import os
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing import synchronize

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mmairl.data.workers import explain_worker_failure, require_handles, safe
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


def broken() -> None:
    raise RuntimeError('unable to allocate shared memory(shm) for file </torch_1>')


@pytest.mark.parametrize('act, said', [
    (lambda: os.kill(os.getpid(), signal.SIGKILL), 'was killed, most likely because the machine ran out of memory; lower'),
    (lambda: os.kill(os.getpid(), signal.SIGBUS), 'ran out of shared memory (/dev/shm); make it larger'),
    (broken, 'ran out of shared memory'),
    (lambda: os.kill(os.getpid(), signal.SIGSEGV), 'crashed (Segmentation fault), most likely in the library'),
    (lambda: os._exit(1), 'ended without a message'),
    (lambda: time.sleep(4), 'no data worker delivered a batch within 2 s, so the file system'),
])  # fmt: skip
def test_what_becomes_of_a_worker_is_told(act, said):
    data = Failing(act)
    with pytest.raises(RuntimeError) as caught:
        for _ in DataLoader(data, num_workers=1, timeout=2):
            data.well.set()
    sentence = str(explain_worker_failure(caught.value))
    assert said in sentence and '--resume' in sentence


FULL = 'unable to write to file </torch_12_34_5>: No space left on device (28)'
CIRCLE = RuntimeError('one')
CIRCLE.__cause__ = RuntimeError('other')
CIRCLE.__cause__.__cause__ = CIRCLE
HIDDEN = RuntimeError('DataLoader worker (pid(s) 7) exited unexpectedly')  # the signal explains it
HIDDEN.__cause__ = RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')


@pytest.mark.parametrize('error, part', [
    (RuntimeError(f'Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback ...\nRuntimeError: {FULL}'),
     'ran out of shared memory'),
    (RuntimeError('DataLoader worker (pid 7) is killed by signal: Terminated. '), 'terminated by the scheduler'),
    (RuntimeError('Pin memory thread exited unexpectedly'), 'ended without a message'),
    (RuntimeError('received 0 items of ancdata'), 'ulimit -n'),
    (OSError(errno.EMFILE, 'Too many open files'), 'ulimit -n'),
    (OSError(errno.ENOMEM, 'Cannot allocate memory'), 'not enough memory to start'),
    (HIDDEN, 'ran out of memory'),
    # other errors are left alone
    (RuntimeError('Caught ZeroDivisionError in DataLoader worker process 0.'), 'None'),
    (OSError(errno.ENOSPC, 'No space left on device', 'work_dirs/run/epoch_1.pth'), 'None'),
    (ValueError('DataLoader timed out after 3 seconds'), 'None'),
    (UserError('The file system under data does not answer (EMFILE: Too many open files)'), 'None'),
    (ConnectionResetError(), 'None'),
    (CIRCLE, 'None'),
])  # fmt: skip
def test_what_torch_says_becomes_what_to_do(error, part):
    assert part in str(explain_worker_failure(error))


def test_a_worker_that_dies_while_its_batch_is_received_is_explained(monkeypatch):
    batches = iter(DataLoader(range(4), num_workers=1))

    def hang_up(**_: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(batches._data_queue, 'get', hang_up)
    with pytest.raises(ConnectionResetError) as caught:
        next(batches)
    batches._shutdown_workers()  # which the garbage collector takes long for
    assert 'ended without a message' in str(explain_worker_failure(caught.value))


def test_a_batch_that_shared_memory_cannot_take_is_an_error_and_no_endless_wait(monkeypatch):
    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(FULL)

    monkeypatch.setattr(torch.Tensor, 'share_memory_', refuse)
    loader = safe(DataLoader(range(4), num_workers=1, collate_fn=torch.tensor))
    batches = iter(loader)
    with pytest.raises(RuntimeError) as caught:
        next(batches)
    batches._shutdown_workers()
    assert 'ran out of shared memory' in str(explain_worker_failure(caught.value))
    assert next(iter(safe(DataLoader(range(4), collate_fn=torch.tensor)))).tolist() == [0]


def test_locks_that_shared_memory_has_no_room_for_are_explained(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(synchronize._multiprocessing, 'SemLock', refuse)
    with pytest.raises(OSError) as caught:
        iter(DataLoader(range(4), num_workers=1))
    assert 'ran out of shared memory' in str(explain_worker_failure(caught.value))


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
