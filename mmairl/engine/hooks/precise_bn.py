"""Batch norm where a network is fine-tuned: how long its statistics remember, and statistics measured anew."""

from itertools import islice

from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from mmairl.models.norm import measure_statistics, norms_of
from mmairl.models.processes import network_of
from mmairl.randomness import same_randomness
from mmairl.registry import HOOKS


@HOOKS.register_module()
class EpochBatchNormHook(Hook):
    """BYOL's rule for small sets: every BN layer's decay is max(1 - 10 / s, 0.9), with s steps an epoch.

    Torch's momentum is one minus that: statistics remember about a tenth of an epoch.
    """

    def before_train(self, runner: Runner) -> None:
        momentum = min(10 / len(runner.train_dataloader), 0.1)
        for layer in norms_of(runner.model):
            layer.momentum = momentum


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
        loop = runner.train_loop
        every = loop.val_interval * (len(loop.dataloader) if isinstance(loop, EpochBasedTrainLoop) else 1)
        due = runner.val_loop is not None and self.every_n_train_iters(runner, every)
        if due or self.is_last_train_iter(runner):
            self.measure(runner)

    def measure(self, runner: Runner) -> None:
        model = network_of(runner)

        def forward(batch: dict) -> None:
            with runner.optim_wrapper.optim_context(runner.model):
                model(**model.data_preprocessor(batch, training=True), mode='loss')

        with same_randomness():
            measure_statistics(model, islice(_loader_beside(runner), self.batches), forward)


def _loader_beside(runner: Runner) -> DataLoader:
    """A second loader of the same training set: the one that trains keeps its place."""
    settings = {**runner.cfg.train_dataloader, 'dataset': runner.train_dataloader.dataset, 'persistent_workers': False}
    return runner.build_dataloader(settings, seed=runner.iter)
