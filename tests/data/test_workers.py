"""Data workers that die or hang, for real, and the sentence that comes of it."""

import errno
import subprocess
import sys

import pytest
from torch.utils.data import DataLoader

from mmairl.data.workers import EXPLANATIONS, explain_worker_failure
from mmairl.errors import UserError

SCRIPT = """
import os, signal, sys, time
from torch.utils.data import DataLoader, Dataset
from mmairl.data.workers import explain_worker_failure

class Failing(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            while not os.path.exists(sys.argv[3]):
                time.sleep(0.01)
            exec(sys.argv[1])
        return index

if __name__ == '__main__':
    try:
        for batch in DataLoader(Failing(), batch_size=2, num_workers=2, timeout=float(sys.argv[2])):
            if batch.tolist() == [2, 3]:
                open(sys.argv[3], 'w').close()  # both workers are known to be well before one fails
    except Exception as error:
        print(type(error).__name__, '|', explain_worker_failure(error))
"""


def fate(tmp_path, act: str, timeout: float = 60) -> str:
    """What is said of a worker that does this at one of its images."""
    (tmp_path / 'run.py').write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / 'run.py'), act, str(timeout), str(tmp_path / 'well')]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    kind, _, sentence = done.stdout.strip().partition(' | ')
    assert kind == 'RuntimeError' and '\n' not in sentence and sentence.endswith('.')
    return sentence


def test_a_worker_that_the_kernel_killed_points_at_memory(tmp_path):
    said = fate(tmp_path, 'os.kill(os.getpid(), signal.SIGKILL)')
    assert said.startswith('A data worker was killed, most likely because the machine ran out of memory; lower')
    assert 'num_workers' in said and '--resume' in said


def test_a_worker_that_hangs_points_at_the_file_system(tmp_path):
    said = fate(tmp_path, 'time.sleep(10**6)', timeout=3)
    assert said.startswith('No data worker delivered a batch within 3.0 s, so the file system')
    assert 'train_dataloader.timeout' in said and '--resume' in said


def test_a_bus_error_points_at_shared_memory(tmp_path):
    assert '/dev/shm' in fate(tmp_path, 'os.kill(os.getpid(), signal.SIGBUS)')


def test_a_crash_is_named(tmp_path):
    assert 'A data worker crashed (Segmentation fault)' in fate(tmp_path, 'os.kill(os.getpid(), signal.SIGSEGV)')


def test_a_worker_that_leaves_is_explained(tmp_path):
    assert fate(tmp_path, 'os._exit(1)').startswith('A data worker ended without a word')


FULL = 'unable to write to file </torch_12_34_5>: No space left on device (28)'


@pytest.mark.parametrize('error, part', [
    (RuntimeError(FULL), 'Shared memory (/dev/shm) is full'),
    (RuntimeError(f'Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback ...\nRuntimeError: {FULL}'),
     'Shared memory (/dev/shm) is full'),
    (RuntimeError('DataLoader worker (pid 7) is killed by signal: Terminated. '), 'terminated from outside'),
    (RuntimeError('DataLoader worker (pid(s) 7, 8) exited unexpectedly'), 'ended without a word'),
    (RuntimeError('Pin memory thread exited unexpectedly'), 'ended without a word'),
    (RuntimeError('Too many open files. Communication with the workers is no longer possible.'), 'ulimit -n'),
    (RuntimeError('received 0 items of ancdata'), 'ulimit -n'),
    (OSError(errno.EMFILE, 'Too many open files'), 'ulimit -n'),
    (OSError(errno.ENOMEM, 'Cannot allocate memory'), 'not enough memory to start'),
])  # fmt: skip
def test_what_torch_says_becomes_what_to_do(error, part):
    assert part in str(explain_worker_failure(error))


def test_the_signal_explains_what_a_later_error_only_reports():
    try:
        try:
            raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Killed. ')
        except RuntimeError as signal:
            raise RuntimeError('DataLoader worker (pid(s) 7) exited unexpectedly') from signal
    except RuntimeError as error:
        assert 'ran out of memory' in str(explain_worker_failure(error))


@pytest.mark.parametrize('kind', [ConnectionResetError, EOFError, FileNotFoundError])
def test_a_worker_that_dies_while_its_batch_is_taken_over_is_explained(monkeypatch, kind):
    batches = iter(DataLoader(range(4), num_workers=1))

    def hang_up(**_: object) -> None:
        raise kind

    monkeypatch.setattr(batches._data_queue, 'get', hang_up)
    with pytest.raises(kind) as caught:
        next(batches)
    assert 'ended without a word' in str(explain_worker_failure(caught.value))
    assert explain_worker_failure(kind()) is None, 'it says nothing of data workers when it comes from elsewhere'


@pytest.mark.parametrize('error', [
    RuntimeError('CUDA error: an illegal memory access was encountered'),
    RuntimeError('Caught ZeroDivisionError in DataLoader worker process 0.'),
    OSError(errno.ENOSPC, 'No space left on device', 'work_dirs/run/epoch_1.pth'),
    ValueError('DataLoader timed out after 3 seconds'),
    KeyboardInterrupt(),
    UserError('The file system under data does not answer (EMFILE: Too many open files)'),
])  # fmt: skip
def test_other_errors_are_left_alone(error):
    assert explain_worker_failure(error) is None


def test_a_chain_of_errors_that_bites_its_tail_ends():
    one, other = RuntimeError('one'), RuntimeError('other')
    one.__cause__, other.__cause__ = other, one
    assert explain_worker_failure(one) is None


def test_every_explanation_is_one_sentence():
    for sentence in EXPLANATIONS.values():
        assert sentence.count('. ') == 0 and sentence.endswith('.') and '--resume' in sentence
