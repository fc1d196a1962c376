"""A batch whose loss or gradients are not finite does no harm, is counted, and can be looked at."""

from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.files import write_json
from mmairl.network import network_of
from mmairl.registry import HOOKS


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Undoes what a batch with a loss or gradients that are not finite has left behind; ends the run after `limit` of them.

    The optimizer's wrapper does not take such a step, and teacher and queue stay as they are; here the batch-norm statistics
    of the forward pass are put back. On a GPU, gradients are known a step later: they were taken as zero. Each process writes
    its batch's file names to WORK_DIR/non_finite/.
    """

    priority = 'HIGH'

    def __init__(self, limit: int = 20) -> None:
        if limit < 1:
            raise UserError(f'NonFiniteHook.limit={limit} ends a run before it starts; set 1 or more')
        self.limit = limit

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._NormBase)]
        self.statistics = [buffer for layer in norms for buffer in layer.buffers()]
        self.before = [buffer.clone() for buffer in self.statistics]
        self.batches: list[list[int]] = []
        self.images: list[int] = []  # of the last step
        self.accumulated = runner.optim_wrapper._accumulative_counts
        self.skipped = runner.message_hub.get_info('skipped_steps', 0)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.batches.append(_indices(data_batch))
        if not runner.optim_wrapper.should_update():
            return
        images, self.batches = [index for batch in self.batches for index in batch], []
        if getattr(runner.optim_wrapper, 'dropped', False):
            self._report(runner, runner.iter - self.accumulated + 1, self.images, 'gradients')
        self.images = images
        if runner.optim_wrapper.finite:
            _copy(self.before, self.statistics)
            return
        _copy(self.statistics, self.before)
        self._report(runner, runner.iter + 1, images, 'loss or gradients')

    def _report(self, runner: Runner, iteration: int, images: list[int], what: str) -> None:
        self.skipped += 1
        runner.message_hub.update_info('skipped_steps', self.skipped)
        sampler = runner.train_dataloader.sampler
        found = dict(iteration=iteration, epoch=runner.epoch + 1, seed=getattr(sampler, 'seed', None))
        path = Path(runner.work_dir) / 'non_finite' / f'iter_{iteration}_process_{get_rank()}.json'
        files = file_names(runner.train_dataloader.dataset, images)
        write_json(path, {**found, 'indices': images, 'files': files})
        runner.logger.warning(
            f'the {what} of iteration {iteration} are not finite: the step is skipped ({self.skipped} so far, the run ends at '
            f'{self.limit}); its images are listed in {path}'
        )
        if self.skipped >= self.limit:
            raise UserError(
                f'{self.skipped} steps had a loss or gradients that are not finite, the last at iteration {iteration}; lower '
                f'the learning rate, use bfloat16 instead of float16, or look at the images listed in {path.parent}'
            )


@torch.no_grad()
def _copy(target: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    if target:
        torch._foreach_copy_(target, source)


def _indices(batch: dict | None) -> list[int]:
    """Where in the data set a batch's images are."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    index = samples.get('index') if isinstance(samples, dict) else None
    return [] if index is None else [int(at) for at in index]


def file_names(dataset: object, indices: list[int]) -> list[str]:
    """The files of these images, where the data set, or the one it is a part of, is made of files."""
    while dataset is not None and not hasattr(type(dataset), 'path'):
        kept = vars(dataset).get('indices')
        indices = indices if kept is None else [int(kept[index]) for index in indices]
        dataset = vars(dataset).get('dataset')
    return [] if dataset is None else [str(dataset.path(index)) for index in indices]
