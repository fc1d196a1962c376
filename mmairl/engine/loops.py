"""Training loops that begin where a checkpoint ends, inside an epoch too, without reading what has been seen."""

import logging
from collections.abc import Iterator
from itertools import chain, islice, repeat

from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, FlexibleRunner, IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader, Sampler

from mmairl.data.sampler import ResumableSampler
from mmairl.errors import UserError


class EpochLoop(EpochBasedTrainLoop):
    """mmengine's loop over epochs, of which the first may be one that was left in the middle."""

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        done = self._iter - self._epoch * len(self.dataloader)
        for place, batch in enumerate(batches(self.dataloader, self._epoch, done), done):
            self.run_iter(place, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


class IterLoop(IterBasedTrainLoop):
    """mmengine's loop over iterations, which would read every image again that a resumed run has seen."""

    def __init__(self, runner: Runner | FlexibleRunner, dataloader: DataLoader, *args, **kwargs) -> None:
        # mmengine begins to read here, at the start of the first epoch: a loader without workers or the run's sampler takes
        # that, since samplers that are one stream, as mmengine's InfiniteSampler, end when a reader of them is dropped
        idle = DataLoader(dataloader.dataset, generator=dataloader.generator)
        super().__init__(runner, idle, *args, **kwargs)
        self.dataloader = dataloader

    def run(self) -> nn.Module:
        # mmengine's loop passes over as many batches as the run has taken; here these cost nothing
        seen = repeat(None, self._iter)
        self.dataloader_iterator = chain(seen, endless(self.dataloader, self._iter))
        return super().run()


def batches(dataloader: DataLoader, epoch: int, done: int) -> Iterator[dict]:
    """An epoch's batches after the first `done`, which are skipped as indices: none of their images is read.

    Other samplers than ours begin at an epoch's start only; then what was seen is read again and dropped, as in mmengine.
    """
    sampler = sampler_of(dataloader)
    if isinstance(sampler, ResumableSampler):
        sampler.set_epoch(epoch, done * images_per_step(dataloader))
        return iter(dataloader)
    if hasattr(sampler, 'set_epoch'):
        sampler.set_epoch(epoch)
    if done:
        said = f'{type(sampler).__name__} cannot begin inside an epoch: {done} batches are read again to get there'
        print_log(said, logger='current', level=logging.WARNING)
    return islice(dataloader, done, None)


def endless(dataloader: DataLoader, iteration: int) -> Iterator[dict]:
    """The batches from this iteration on, epoch after epoch."""
    epoch, done = divmod(iteration, len(dataloader))
    while True:
        empty = not done
        for batch in batches(dataloader, epoch, done):
            empty = False
            yield batch
        if empty:  # and would be for ever
            raise UserError(
                f'{type(sampler_of(dataloader)).__name__} gives no batch in epoch {epoch + 1}, so that training cannot go on; '
                "set train_dataloader.sampler=dict(type='ResumableSampler', shuffle=True)"
            )
        epoch, done = epoch + 1, 0


def sampler_of(dataloader: DataLoader) -> Sampler:
    """The sampler of images, behind the one of batches where there is one."""
    return getattr(dataloader.batch_sampler, 'sampler', dataloader.sampler)


def images_per_step(dataloader: DataLoader) -> int:
    """How many images one iteration of all processes takes from the data set."""
    return (dataloader.batch_size or dataloader.batch_sampler.batch_size) * get_world_size()
