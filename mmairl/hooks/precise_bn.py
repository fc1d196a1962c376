"""Batch-norm statistics of the weights as they are, measured anew before they are evaluated and saved."""

from collections.abc import Iterator
from itertools import islice

import torch
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from mmairl.randomness import same_randomness
from mmairl.registry import HOOKS


@HOOKS.register_module()
class PreciseBNHook(Hook):
    """Replaces each norm's running statistics by their plain mean over N training batches, weights fixed.

    As in detectron2, the batches go through the training forward, so that a head's norms see the regions that it is
    trained on, and training itself goes on as if nothing had happened. mmpretrain's hook of this name sends them
    through `mode='tensor'`, where mmdet's heads see other regions, and needs a loader with a `batch_size`, which
    mmdet's batches by aspect ratio do not have.
    """

    priority = 'LOW'  # after the optimizer's step, before the checkpoint (VERY_LOW), which holds what is evaluated

    def __init__(self, batches: int = 200) -> None:
        self.batches = batches

    def after_train_iter(self, runner: Runner, *_: object, **__: object) -> None:
        evaluates = runner.val_loop is not None
        if (evaluates and self.every_n_train_iters(runner, runner.train_loop.val_interval)) or self.is_last_train_iter(
            runner
        ):
            with same_randomness():
                measure(runner, islice(_loader_beside(runner), self.batches))


@torch.no_grad()
def measure(runner: Runner, batches: Iterator[dict]) -> None:
    """The cumulative average: batch k moves each statistic by 1/k."""
    model = runner.model.module if is_model_wrapper(runner.model) else runner.model
    norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for count, batch in enumerate(batches, start=1):
        for norm in norms:
            norm.momentum = 1 / count
        with runner.optim_wrapper.optim_context(runner.model):
            model(**model.data_preprocessor(batch, training=True), mode='loss')
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum


def _loader_beside(runner: Runner) -> DataLoader:
    """A second loader of the same training set: the one that trains keeps its place."""
    settings = {**runner.cfg.train_dataloader, 'dataset': runner.train_dataloader.dataset, 'persistent_workers': False}
    return runner.build_dataloader(settings, seed=runner.iter)
