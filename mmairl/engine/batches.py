"""Batches for training, which start inside an epoch after a resume and are copied to the GPU in advance."""

import logging
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.utils import apply_to
from torch.utils.data import DataLoader, Sampler

from mmairl.data.sampler import ResumableSampler
from mmairl.data.workers import delivered
from mmairl.errors import UserError


def sampler_of(dataloader: DataLoader) -> Sampler:
    """Return the sampler of images, which may be inside a batch sampler."""
    return getattr(dataloader.batch_sampler, 'sampler', dataloader.sampler)


def images_per_step(dataloader: DataLoader) -> int:
    """Return the number of images in one iteration of all processes."""
    batch = dataloader.batch_size or dataloader.batch_sampler.batch_size
    return batch * get_world_size()


def images_in_epoch(dataloader: DataLoader) -> int | list[int]:
    """Return the number of images in an epoch. For a Mixture with weights, return the number from each data set."""
    counts = getattr(dataloader.dataset, 'per_epoch', None)
    return len(dataloader.dataset) if counts is None else counts.tolist()


def batches(dataloader: DataLoader, epoch: int, done: int) -> Iterator[dict]:
    """Return an epoch's batches after the first `done`.

    ResumableSampler skips indices without reading images. Other samplers start at the beginning of an epoch, so the first
    batches are read and dropped, as in mmengine.
    """
    sampler = sampler_of(dataloader)
    if isinstance(sampler, ResumableSampler):
        sampler.set_epoch(epoch, done * images_per_step(dataloader))
        return delivered(dataloader)
    if hasattr(sampler, 'set_epoch'):
        sampler.set_epoch(epoch)
    if done:
        message = f'{type(sampler).__name__} cannot start inside an epoch, so {done} batches are read again and dropped'
        print_log(message, logger='current', level=logging.WARNING)
    return islice(delivered(dataloader), done, None)


def endless(dataloader: DataLoader, iteration: int) -> Iterator[dict]:
    """Yield the batches from this iteration on, epoch after epoch."""
    epoch, done = divmod(iteration, len(dataloader))
    while True:
        empty = not done
        for batch in batches(dataloader, epoch, done):
            empty = False
            yield batch
        if empty:  # otherwise, this loop would never end
            raise UserError(
                f'train_dataloader.sampler: {type(sampler_of(dataloader)).__name__} has no batch in epoch {epoch + 1}; '
                "set dict(type='ResumableSampler', shuffle=True)",
                code='no-batch',
            )
        epoch += 1
        done = 0


def prefetch_to_device(batches: Iterator[dict]) -> Iterator[dict]:
    """Yield batches. On a GPU, copy the next batch on a separate stream during the current step."""
    if not torch.cuda.is_available():
        yield from batches
        return
    stream = copy_stream()
    waiting = None
    for batch in batches:
        with torch.cuda.stream(stream):
            copied = dict(batch, inputs=to_device(batch['inputs'])), stream.record_event()
        if waiting is not None:
            yield arrived(*waiting)
        waiting = copied
    if waiting is not None:
        yield arrived(*waiting)


@cache
def copy_stream() -> torch.cuda.Stream:
    """Return the stream for copies. It is shared, because the allocator keeps memory per stream."""
    return torch.cuda.Stream()


def to_device(inputs: Any) -> Any:
    """Start to copy pinned images to the GPU. The preprocessor copies others, because their copy would block the host."""

    def is_pinned(part: Any) -> bool:
        return torch.is_tensor(part) and part.is_pinned()

    return apply_to(inputs, is_pinned, lambda part: part.cuda(non_blocking=True))


def arrived(batch: dict, copied: torch.cuda.Event) -> dict:
    """Make the computing stream, but not the host, wait for the copies, and return the batch."""
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)

    def is_on_gpu(part: Any) -> bool:
        return torch.is_tensor(part) and part.is_cuda

    # Otherwise the allocator could reuse the memory before this stream has read it.
    apply_to(batch['inputs'], is_on_gpu, lambda part: part.record_stream(stream))
    return batch
