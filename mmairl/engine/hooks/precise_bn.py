"""Batch norm in fine-tuning: the memory of its running statistics, and statistics measured again."""

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
    """Set the decay of every batch norm to max(1 - 10 / s, 0.9) for s steps an epoch, BYOL's rule for small sets.

    Torch's momentum is one minus that: the statistics remember about a tenth of an epoch.
    """

    def before_train(self, runner: Runner) -> None:
        momentum = min(10 / len(runner.train_dataloader), 0.1)
        for layer in norms_of(runner.model):
            layer.momentum = momentum


@HOOKS.register_module()
class PreciseBNHook(Hook):
    """Replace running statistics by their mean over training batches, with the weights fixed, before each validation.

    As in detectron2, the batches go through the training forward pass, so that the norms of a head see the regions they
    are trained on. Training continues as if nothing had happened. mmpretrain's hook of this name uses `mode='tensor'`,
    where heads of mmdet see other regions, and requires a loader with a `batch_size`, which mmdet's batches by aspect
    ratio do not have.

    Args:
        batches: Number of batches to average over. Default: 200.
    """

    # After the optimizer's step, before the checkpoint (VERY_LOW) that is evaluated.
    priority = 'LOW'

    def __init__(self, batches: int = 200) -> None:
        self.batches = batches

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        loop = runner.train_loop
        iterations = len(loop.dataloader) if isinstance(loop, EpochBasedTrainLoop) else 1
        validates = runner.val_loop is not None and self.every_n_train_iters(
            runner, loop.val_interval * iterations
        )
        if validates or self.is_last_train_iter(runner):
            self.measure(runner)

    def measure(self, runner: Runner) -> None:
        model = network_of(runner)

        def forward(batch: dict) -> None:
            with runner.optim_wrapper.optim_context(runner.model):
                model(**model.data_preprocessor(batch, training=True), mode='loss')

        with same_randomness():
            measure_statistics(model, islice(_second_loader(runner), self.batches), forward)


def _second_loader(runner: Runner) -> DataLoader:
    """Return another loader of the training set, because the one that trains must keep its position."""
    dataset = runner.train_dataloader.dataset
    options = {**runner.cfg.train_dataloader, 'dataset': dataset, 'persistent_workers': False}
    return runner.build_dataloader(options, seed=runner.iter)
