"""Images that could not be read are counted over all processes, and listed with the reason at the end of the run."""

from mmengine.dist import all_reduce, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.data.training import TrainingImages
from mmairl.registry import HOOKS


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
        lines = dataset.listed(of_all_processes(dataset))
        if lines and is_main_process():
            listed = '\n  '.join(['', *lines])
            runner.logger.warning(f'{len(lines)} unreadable images were skipped; mend or remove them:{listed}')


def of_all_processes(dataset: TrainingImages) -> Tensor:
    """What any process has met, the same in all; each also takes it over."""
    met = dataset.reasons.clone()
    all_reduce(met, 'max')
    found = met.nonzero().squeeze(1)
    dataset.reasons[found] = met[found]  # the others stay: a worker may be writing them
    return met
