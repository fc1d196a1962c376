"""Read the batches of a run. Reading can start inside an epoch, and batches are copied to the GPU in advance."""

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
    """Return the sampler that orders the images. It may be inside a batch sampler."""
    return getattr(dataloader.batch_sampler, 'sampler', dataloader.sampler)


def images_per_step(dataloader: DataLoader) -> int:
    """Return the number of images that all processes together read in one iteration."""
    batch = dataloader.batch_size or dataloader.batch_sampler.batch_size
    return batch * get_world_size()


def images_in_epoch(dataloader: DataLoader) -> int:
    return len(dataloader.dataset)


def batches(dataloader: DataLoader, epoch: int, done: int) -> Iterator[dict]:
    """Return the batches of an epoch without its first `done` batches.

    ResumableSampler skips the images of these batches without reading them. Other samplers can only start at the beginning
    of an epoch, so the first batches are read and dropped, as in mmengine.
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
    """Yield the batches of a run, beginning at an iteration. A new epoch starts whenever one ends."""
    epoch, done = divmod(iteration, len(dataloader))
    while True:
        empty = not done
        for batch in batches(dataloader, epoch, done):
            empty = False
            yield batch
        if empty:  # Without this error, the loop would never end and never yield.
            raise UserError(
                f'train_dataloader.sampler: {type(sampler_of(dataloader)).__name__} yields no batch in epoch {epoch + 1}; '
                "set train_dataloader.sampler=dict(type='ResumableSampler', shuffle=True)",
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
    """Return the stream for copies. There is only one, because the allocator reserves memory for each stream."""
    return torch.cuda.Stream()


def to_device(inputs: Any) -> Any:
    """Start to copy images to the GPU if they are in pinned memory.

    The preprocessor copies images in other memory, because only copies from pinned memory run in the background.
    """

    def is_pinned(part: Any) -> bool:
        return torch.is_tensor(part) and part.is_pinned()

    return apply_to(inputs, is_pinned, lambda part: part.cuda(non_blocking=True))


def arrived(batch: dict, copied: torch.cuda.Event) -> dict:
    """Make the current stream wait until a batch has been copied, and return the batch. The host does not wait."""
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)

    def is_on_gpu(part: Any) -> bool:
        return torch.is_tensor(part) and part.is_cuda

    # Without this call, the allocator could reuse the memory of the images before this stream has read them.
    apply_to(batch['inputs'], is_on_gpu, lambda part: part.record_stream(stream))
    return batch
