"""Data workers that lack memory or file handles, die or hang, end in a sentence."""

import errno
import re
import resource
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import synchronize
from typing import Any

import torch
from mmengine.utils import apply_to
from torch.utils.data import DataLoader, dataloader

from mmairl.errors import EXPLAINERS, UserError, chain

FEWER = '; lower train_dataloader.num_workers, then go on with --resume'
SHARED_MEMORY = (
    'the data workers ran out of shared memory (/dev/shm); make it larger (docker run --shm-size=16g, or mount -o '
    'remount,size=16G /dev/shm), or lower train_dataloader.num_workers, then go on with --resume'
)
ENDED = (
    'a data worker ended without a message, because the memory ran out or by a crash; lower '
    'train_dataloader.num_workers, or set it to 0 to see the error itself, then go on with --resume'
)
# The first that matches is told: torch's bare 'exited unexpectedly' often hides the signal that explains it.
EXPLANATIONS = {
    r'killed by signal: Killed': f'a data worker was killed, most likely because the machine ran out of memory{FEWER}',
    r'killed by signal: Bus error|torch_\d+.*No space left on device|unable to allocate shared memory': SHARED_MEMORY,
    r'killed by signal: Terminated': 'a data worker was terminated by the scheduler or by hand; go on with --resume',
    r'killed by signal: ([^.]+)\.': (
        'a data worker crashed ({0}), most likely in the library that decodes images; upgrade Pillow, or find the file '
        'with train_dataloader.num_workers=0, then go on with --resume'
    ),
    r'DataLoader timed out after ([\d.]+) seconds': (
        'no data worker delivered a batch within {0} s, so the file system below the images hangs or is too slow; '
        'check the mount or raise train_dataloader.timeout, then go on with --resume'
    ),
    r'Too many open files|received \d+ items of ancdata': (
        'the data workers ran out of file handles; raise the limit (ulimit -n 65536) or lower '
        'train_dataloader.num_workers, then go on with --resume'
    ),
    r'^\[Errno 12\] Cannot allocate memory': f'there is not enough memory to start the data workers{FEWER}',
    r'(DataLoader worker|Pin memory thread) .*exited unexpectedly': ENDED,
}


def safe(loader: DataLoader) -> DataLoader:
    """The loader, whose workers fail with an error where torch's would leave the run waiting for ever."""
    if loader.num_workers:
        require_handles(loader.num_workers)
        loader.collate_fn = partial(shared_batch, loader.collate_fn)
    return loader


def shared_batch(collate: Callable[[list], Any], items: list) -> Any:
    """Collate a batch and move it to shared memory, in the worker itself.

    torch does the latter in a thread of the worker. If /dev/shm is full, that thread only prints an error and drops the
    batch, and the run waits for it.
    """
    return apply_to(collate(items), torch.is_tensor, torch.Tensor.share_memory_)


def require_handles(workers: int) -> None:
    """Raise the soft limit of open files if the workers need it: without handles, batches are lost and the run waits."""
    needed = 64 + 32 * workers  # a worker's pipes, and one handle for each tensor that waits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if needed > hard != resource.RLIM_INFINITY:
        raise UserError(
            f'the limit of open files is {hard} and {workers} data workers need {needed}; raise it (ulimit -n 65536) or '
            'lower num_workers'
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def explain_worker_failure(error: BaseException) -> UserError | None:
    """The sentence for an error of the data workers, or None for any other error."""
    links = list(chain(error))
    messages = [str(link) for link in links if isinstance(link, (RuntimeError, OSError))]
    for pattern, sentence in EXPLANATIONS.items():
        for message in messages:
            if found := re.search(pattern, message):
                return UserError(sentence.format(*found.groups()))
    for link in links:
        # There is no public sign of where an error came from.
        codes = [frame.f_code for frame, _ in traceback.walk_tb(link.__traceback__)]
        passed = {(code.co_filename, code.co_name) for code in codes}
        # The connection to a worker broke while its batch was received, before torch noticed its death.
        broken = isinstance(link, (ConnectionError, EOFError, FileNotFoundError))
        if broken and (dataloader.__file__, '_try_get_data') in passed:
            return UserError(ENDED)
        if getattr(link, 'errno', None) == errno.ENOSPC and (synchronize.__file__, '__init__') in passed:
            return UserError(SHARED_MEMORY)  # which also holds the locks of the workers' queues
    return None


EXPLAINERS.append(explain_worker_failure)
