"""Clear errors if data workers run out of shared memory, die or hang."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from mmengine.utils import apply_to
from torch.utils.data import DataLoader

from mmairl.errors import UserError, chain


def safe(loader: DataLoader) -> DataLoader:
    """Change a loader so that it raises an error where torch would wait forever. Return it."""
    if loader.num_workers:
        # Each queued tensor requires a file handle, and without handles, batches would be lost.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        loader.collate_fn = partial(shared_batch, loader.collate_fn)
    return loader


def shared_batch(collate: Callable[[list], Any], items: list) -> Any:
    """Collate a batch and move it to shared memory in the main thread of the worker.

    torch would move the batch in another thread. If /dev/shm is full, that thread prints an error and drops the batch, and
    the run waits forever for the batch.
    """
    try:
        return apply_to(collate(items), torch.is_tensor, torch.Tensor.share_memory_)
    except RuntimeError as error:
        # torch's collate function allocates shared memory as well. Errors with other causes are raised unchanged.
        if not any(words in str(error) for words in ('shared memory', 'No space left', '/torch_')):
            raise
        raise UserError(
            f'/dev/shm: a batch does not fit into shared memory ({error}); enlarge /dev/shm (docker run --shm-size=16g), or '
            'lower num_workers, and resume the run',
            code='shared-memory-full',
        ) from error


def delivered(loader: DataLoader) -> Iterator[Any]:
    """Yield the batches of the loader. Raise a UserError if its workers cannot start, die or hang."""
    try:
        yield from loader
    except (RuntimeError, OSError, EOFError) as error:
        if not loader.num_workers or str(error).startswith('Caught '):
            raise
        raise workers_failed(error) from error


@contextmanager
def explained_deaths() -> Iterator[None]:
    """Turn torch's error about the death of a data worker into a UserError.

    torch raises this error in a signal handler. It can therefore occur anywhere in the main process, usually within a
    training step.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith('DataLoader worker (pid'):
            raise
        raise workers_failed(error) from error


def workers_failed(error: Exception) -> UserError:
    messages = [f'{type(link).__name__}: {link}' for link in chain(error) if str(link)]
    cause = '; '.join(messages) or type(error).__name__
    return UserError(
        f'the data workers failed ({cause}); lower num_workers, or set it to 0 to see the original error, and '
        'resume the run',
        code='data-workers-failed',
    )
