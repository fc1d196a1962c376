"""Training loops that can start inside an epoch."""

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmairl.data.sampler import ResumableSampler
from mmairl.data.workers import delivered, explained_deaths
from mmairl.engine.resume import images_per_step, restore_randomness, sampler_of
from mmairl.errors import explained
from mmairl.models.backbones import require_features
from mmairl.models.processes import network_of
from mmairl.randomness import same_randomness


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
        print_log(f'{done} batches are read again and dropped', 'current', logging.WARNING)
    return islice(delivered(dataloader), done, None)


def endless(dataloader: DataLoader, iteration: int) -> Iterator[dict]:
    """Yield the batches of a run, beginning at an iteration. A new epoch starts whenever one ends."""
    epoch, done = divmod(iteration, len(dataloader))
    while True:
        yield from batches(dataloader, epoch, done)
        epoch, done = epoch + 1, 0


def finished(loop: EpochBasedTrainLoop | IterBasedTrainLoop, done: int, length: int) -> bool:
    """Validate if a validation is due after `done` of `length` epochs or iterations, and return whether the run ends here.

    A checkpoint is written before the validation, so a resumed run begins with the validation that is due.
    """
    loop._decide_current_val_interval()
    due = done >= max(1, loop.val_begin) and (done % loop.val_interval == 0 or done == length)
    if due and loop.runner.val_loop is not None:
        loop.runner.val_loop.run()
    return done == length or loop.stop_training


def run_step(loop: EpochBasedTrainLoop | IterBasedTrainLoop, *arguments: Any) -> None:
    """Run a step of a loop. Before the first step, check the features. An error of the first step becomes one line."""
    if loop._iter:
        loop.run_iter(*arguments)
        return
    with (
        explained(
            'training: the first step fails',
            "model(inputs, data_samples, mode='loss') must accept a list with a batch per view, or one batch with "
            'data_preprocessor.single_view=True, and return a dictionary of losses; the widths of backbone, projector and head '
            'must agree (set MMAIRL_TRACEBACK=1 to see the traceback)',
            kinds=(AttributeError, TypeError, RuntimeError),
            but=(torch.OutOfMemoryError,),
            code='first-step',
        ),
        explained_deaths(),
    ):
        check_features(loop.runner, arguments[-1])
        loop.run_iter(*arguments)


def check_features(runner: Any, batch: dict) -> None:
    """Raise unless the backbone returns features, as evaluation requires them. The run is not affected."""
    if runner.strategy:
        return  # Parts of a sharded model cannot run on their own.
    model = network_of(runner)
    model.backbone.eval()
    with same_randomness(), torch.no_grad(), torch.compiler.set_stance('force_eager'):
        inputs = model.data_preprocessor(batch, training=True)['inputs']
        require_features(model.backbone, inputs if isinstance(inputs, Tensor) else inputs[0])
    runner.model.train()


class EpochLoop(EpochBasedTrainLoop):
    """mmengine's loop over epochs. It can start inside an epoch, and it begins with a validation that is due."""

    def run(self) -> nn.Module:
        self.runner.call_hook('before_train')
        restore_randomness(self.runner)
        length = len(self.dataloader)
        while self._iter != self._epoch * length or not finished(
            self, self._epoch, self._max_epochs
        ):
            self.run_epoch()
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        done = self._iter - self._epoch * len(self.dataloader)
        for index, batch in enumerate(batches(self.dataloader, self._epoch, done), done):
            run_step(self, index, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


class IterLoop(IterBasedTrainLoop):
    """mmengine's loop over iterations. It can start inside an epoch, and it begins with a validation that is due."""

    def __init__(self, runner: Any, dataloader: DataLoader, *args: Any, **kwargs: Any) -> None:
        # mmengine's constructor starts to read from the loader, and would thus start the data workers.
        idle = DataLoader(dataloader.dataset, generator=dataloader.generator)
        super().__init__(runner, idle, *args, **kwargs)
        self.dataloader = dataloader

    def run(self) -> nn.Module:
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        restore_randomness(self.runner)
        remaining = endless(self.dataloader, self._iter)
        while not finished(self, self._iter, self._max_iters):
            self.runner.model.train()
            run_step(self, next(remaining))
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model
