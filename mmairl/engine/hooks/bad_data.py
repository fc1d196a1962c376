"""Bad images do no harm, are counted and listed: those of a loss or gradients that are not finite, and unreadable ones."""

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
    """Undoes what a batch with a loss or gradients that are not finite has left behind; ends the run after `limit` of them.

    The optimizer's wrapper does not take such a step, and teacher and queue stay as they are; here the batch-norm statistics
    of the forward pass are put back. On a GPU, gradients are known a step later: they were taken as zero. Each process writes
    its batch's file names to WORK_DIR/non_finite/.
    """

    priority = 'HIGH'

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        buffers = [buffer for layer in norms_of(model) for buffer in layer.buffers()]
        # Means and variances, and counts of batches: torch copies a list of both kinds tensor by tensor.
        self.statistics = [
            [buffer for buffer in buffers if buffer.is_floating_point() == kind] for kind in (True, False)
        ]
        self.before = [[buffer.clone() for buffer in part] for part in self.statistics]
        self.images: list[int] = []  # of this step, and of the last one
        self.last_images: list[int] = []
        self.accumulated = runner.optim_wrapper.accumulated
        self.skipped = runner.message_hub.get_info('skipped_steps', 0)

    @torch.no_grad()
    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: dict, outputs=None) -> None:
        samples = data_batch.get('data_samples')
        if isinstance(samples, dict):
            self.images += torch.as_tensor(samples.get('index', ())).tolist()
        if not runner.optim_wrapper.should_update():
            return
        if getattr(runner.optim_wrapper, 'dropped', False):
            self._report(runner, runner.iter - self.accumulated + 1, self.last_images, 'gradients')
        self.last_images, self.images = self.images, []
        finite = runner.optim_wrapper.finite
        target, source = (self.before, self.statistics) if finite else (self.statistics, self.before)
        for to, values in zip(target, source):
            if to:
                torch._foreach_copy_(to, values)
        if not finite:
            self._report(runner, runner.iter + 1, self.last_images, 'loss or gradients')

    def _report(self, runner: Runner, iteration: int, images: list[int], what: str) -> None:
        self.skipped += 1
        runner.message_hub.update_info('skipped_steps', self.skipped)
        sampler = runner.train_dataloader.sampler
        place = dict(iteration=iteration, epoch=runner.epoch + 1, seed=getattr(sampler, 'seed', None))
        path = Path(runner.work_dir) / 'non_finite' / f'iter_{iteration}_process_{get_rank()}.json'
        name = getattr(runner.train_dataloader.dataset, 'name', None)
        write_json(path, {**place, 'indices': images, 'files': [name(index) for index in images] if name else []})
        runner.logger.warning(
            f'the {what} of iteration {iteration} are not finite: the step is skipped ({self.skipped} so far, the run ends at '
            f'{self.limit}); its images are listed in {path}'
        )
        if self.skipped >= self.limit:
            raise Diverged(
                f'{self.skipped} steps had a loss or gradients that are not finite, the last at iteration {iteration}; lower '
                f'the learning rate, use bfloat16 instead of float16, or look at the images listed in {path.parent}'
            )


@HOOKS.register_module()
class UnreadableHook(Hook):
    """Stops a run when all processes together have met too many unreadable images, and ends it with their list.

    The workers of one process count together by themselves (data/training.py). Processes tell each other every `interval`
    iterations, so that each of them skips what any of them has met.
    """

    def __init__(self, interval: int = 100) -> None:
        self.interval = interval

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
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
            runner.logger.warning(f'{len(lines)} unreadable images were skipped; mend or remove them:{listed}')


def of_all_processes(dataset: TrainingImages) -> Tensor:
    """Return the unreadable images of all processes; each process marks them, and only those it has met are sent."""
    met = torch.cat(all_gather_object(dataset.met())).unique(dim=0)
    dataset.reasons[met[:, 0]] = met[:, 1].to(torch.uint8)  # the others stay: a worker may be writing them
    return met
