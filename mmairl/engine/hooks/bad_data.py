"""Hooks that handle steps with non-finite values, and unreadable images."""

from pathlib import Path

import torch
from mmengine.dist import all_gather_object, get_rank, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.data.training_images import TrainingImages
from mmairl.errors import Diverged
from mmairl.io import write_json
from mmairl.models.norm import norms_of
from mmairl.models.processes import network_of
from mmairl.registry import HOOKS


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Report steps with a non-finite loss or gradient, and end a run that has too many of them.

    The optimizer wrapper skips these steps, and teacher and queue do not change. This hook restores the statistics of batch
    norm, and each process writes the file names of its images in the step to WORK_DIR/non_finite/.

    One case differs: on a GPU, a step whose loss is finite but whose gradients are not is reported one step later. Its
    gradients are dropped, but teacher, queue and statistics change as in other steps. With float16, gradients that overflow
    are not reported, because the loss scaler handles them.

    Args:
        limit: The run ends after this number of skipped steps, including steps before a resume. Default: 20.

    Raises:
        Diverged: After `limit` skipped steps.
    """

    priority = 'HIGH'

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit

    def before_train(self, runner: Runner) -> None:
        buffers = [buffer for layer in norms_of(network_of(runner)) for buffer in layer.buffers()]
        # Floats and integers are in separate lists, because torch copies a list at once only if its tensors have equal types.
        self.statistics = [
            [buffer for buffer in buffers if buffer.is_floating_point()],
            [buffer for buffer in buffers if not buffer.is_floating_point()],
        ]
        self.before = [[buffer.clone() for buffer in part] for part in self.statistics]
        # Indices of the images in the current and in the previous optimizer step.
        self.images: list[int] = []
        self.last_images: list[int] = []
        self.accumulated = runner.optim_wrapper.accumulated
        self.skipped = runner.message_hub.get_info('skipped_steps', 0)

    @torch.no_grad()
    def after_train_iter(self, runner: Runner, data_batch: dict, **_: object) -> None:
        samples = data_batch.get('data_samples')
        if isinstance(samples, dict):
            self.images += torch.as_tensor(samples.get('index', ())).tolist()
        if not runner.optim_wrapper.should_update():
            return
        if getattr(runner.optim_wrapper, 'dropped', False):
            self._report(runner, runner.iter - self.accumulated + 1, self.last_images, 'gradients')
        self.last_images, self.images = self.images, []
        if runner.optim_wrapper.finite:
            self._copy(self.statistics, self.before)
        else:
            self._copy(self.before, self.statistics)
            self._report(runner, runner.iter + 1, self.last_images, 'loss or gradients')

    @staticmethod
    def _copy(source: list[list[Tensor]], target: list[list[Tensor]]) -> None:
        for values, copies in zip(source, target):
            if values:
                torch._foreach_copy_(copies, values)

    def _report(self, runner: Runner, iteration: int, images: list[int], culprit: str) -> None:
        self.skipped += 1
        runner.message_hub.update_info('skipped_steps', self.skipped)
        loader = runner.train_dataloader
        name = getattr(loader.dataset, 'name', None)
        path = Path(runner.work_dir) / 'non_finite' / f'iter_{iteration}_process_{get_rank()}.json'
        record = dict(
            iteration=iteration,
            epoch=runner.epoch + 1,
            seed=getattr(loader.sampler, 'seed', None),
            indices=images,
            files=[name(index) for index in images] if name else [],
        )
        write_json(path, record)
        runner.logger.warning(
            f'the {culprit} of iteration {iteration} are not finite, so the step is skipped ({self.skipped} skipped steps so '
            f'far; the run ends after {self.limit}); the file {path} lists the images of the step'
        )
        if self.skipped >= self.limit:
            raise Diverged(
                f'training: {self.skipped} steps had a non-finite loss or gradient, the last at iteration {iteration}; lower '
                f'the learning rate, use bfloat16 instead of float16, or check the images listed in {path.parent}',
                code='diverged',
            )


@HOOKS.register_module()
class UnreadableHook(Hook):
    """End a run that has too many unreadable images, and log the unreadable images at the end of every run.

    The data workers of a process share a list of unreadable images (data/training_images.py). The processes exchange their
    lists, so that each process skips all images that any process could not read.

    Args:
        interval: Iterations between two exchanges. Default: 100.

    Raises:
        UserError: If more images are unreadable than `max_unreadable`, a setting of the data set, allows.
    """

    def __init__(self, interval: int = 100) -> None:
        self.interval = interval

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        dataset = runner.train_dataloader.dataset
        due = get_world_size() > 1 and self.every_n_train_iters(runner, self.interval)
        if due and isinstance(dataset, TrainingImages):
            dataset.refuse_too_many(of_all_processes(dataset))

    def after_train(self, runner: Runner) -> None:
        dataset = runner.train_dataloader.dataset
        if not isinstance(dataset, TrainingImages):
            return
        lines = dataset.names_with_reasons(of_all_processes(dataset))
        if lines and is_main_process():
            listed = '\n  '.join(['', *lines])
            runner.logger.warning(
                f'{len(lines)} unreadable images were skipped; fix or remove them:{listed}'
            )


def of_all_processes(dataset: TrainingImages) -> Tensor:
    """Return the unreadable images of all processes, and add them to the list of this process."""
    met = torch.cat(all_gather_object(dataset.met())).unique()
    # Only these entries are written, because a data worker may be writing to other entries at the same time.
    dataset.unreadable[met] = True
    return met
