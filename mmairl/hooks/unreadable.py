"""Images that could not be read are named at the end with the reason, not lost in the log."""

import torch
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import Dataset

from mmairl.registry import HOOKS


@HOOKS.register_module()
class UnreadableHook(Hook):
    """Ends the run with the list of image files that were skipped, by any process, and why."""

    def after_train(self, runner: Runner) -> None:
        dataset = files_of(runner.train_dataloader.dataset)
        if isinstance(getattr(dataset, 'unreadable', None), torch.Tensor):
            all_reduce(dataset.unreadable, 'max')
        skipped = reasons(dataset)
        if skipped and is_main_process():
            lines = ''.join(f'\n  {file}: {reason}' for file, reason in skipped.items())
            runner.logger.warning(f'{len(skipped)} unreadable images were skipped; mend or remove them:{lines}')


def files_of(dataset: Dataset) -> Dataset:
    """The data set that knows the reasons, below those that pick or relabel its images; itself where none does."""
    inner = dataset
    while not hasattr(inner, 'unreadable_reasons') and hasattr(inner, 'dataset'):
        inner = inner.dataset
    return inner if hasattr(inner, 'unreadable_reasons') else dataset


def reasons(dataset: Dataset) -> dict[str, str]:
    """The files that a data set could not read; one of a user's own may know no reasons."""
    if hasattr(dataset, 'unreadable_reasons'):
        return dataset.unreadable_reasons()
    return dict.fromkeys(getattr(dataset, 'unreadable_files', list)(), 'cannot be read')
