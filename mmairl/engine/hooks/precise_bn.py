"""Hooks for batch norm's running statistics in fine-tuning: one sets their decay, one recomputes them for validation."""

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
    """Set the decay of batch norm's running statistics by BYOL's rule for small data sets.

    With s steps per epoch, the decay is max(1 - 10 / s, 0.9), so that the statistics average over about a tenth of an epoch,
    but over at least ten steps. Torch's momentum of batch norm is 1 minus this decay.
    """

    def before_train(self, runner: Runner) -> None:
        momentum = min(10 / len(runner.train_dataloader), 0.1)
        for layer in norms_of(runner.model):
            layer.momentum = momentum


@HOOKS.register_module()
class PreciseBNHook(Hook):
    """Before each validation, replace the running statistics of batch norm by means over training batches.

    The statistics are also replaced at the end of training. The hook does not affect training in any other way. As in
    detectron2, the batches go through the training forward pass. The norm layers of a detection head therefore receive the same
    kind of regions as in training.

    mmpretrain's hook of the same name does not suit mmdet. Its forward pass has `mode='tensor'`, in which mmdet's heads receive
    other regions than in training. It also requires a loader with a `batch_size`, but the loaders of mmdet that group images
    by aspect ratio have no `batch_size`.

    Args:
        batches: Number of batches to average over. Default: 200.
    """

    # The hook runs before the checkpoint hook (VERY_LOW), so that a checkpoint holds the new statistics.
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
    """Return a second loader of the training set, because the position of the training loader must not change."""
    dataset = runner.train_dataloader.dataset
    options = {**runner.cfg.train_dataloader, 'dataset': dataset, 'persistent_workers': False}
    return runner.build_dataloader(options, seed=runner.iter)
