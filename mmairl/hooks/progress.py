"""A live line of how the run is doing."""

import logging
import sys

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mmairl.registry import HOOKS

# What is shown, how it is called in little space, and how it is written.
SHOWN = {
    'loss': ('loss', '.3f'),
    'instance_accuracy': ('acc', '.1%'),
    'lr': ('lr', '.4f'),
    'momentum': ('m', '.5f'),
}


@HOOKS.register_module()
class ProgressHook(Hook):
    """A progress bar with loss, instance accuracy, learning rate, momentum and time left.

    Values are read every `interval` iterations only, since reading them waits for the device.
    """

    priority = 'VERY_LOW'

    def __init__(self, interval: int = 10) -> None:
        self.interval = interval
        self.progress: Progress | None = None

    def before_train(self, runner: Runner) -> None:
        if not is_main_process():
            return
        # 80 columns are enough for all of it
        columns = [
            BarColumn(12),
            TextColumn('{task.percentage:>3.0f}%  {task.description}  left'),
            TimeRemainingColumn(),
        ]
        self.progress = Progress(*columns)
        self.task = self.progress.add_task('', total=runner.max_iters, completed=runner.iter)
        self.progress.start()
        self._log_to_stdout(runner)  # rich has put a proxy there that prints above the bar

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        due = self.every_n_train_iters(runner, self.interval) or runner.iter + 1 == runner.max_iters
        if self.progress is None or not due:
            return
        scalars = runner.message_hub.log_scalars
        shown = [
            f'{short} {scalars[f"train/{name}"].current():{form}}'
            for name, (short, form) in SHOWN.items()
            if f'train/{name}' in scalars
        ]
        self.progress.update(self.task, completed=runner.iter + 1, description='  '.join(shown))

    def after_run(self, runner: Runner) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None
            self._log_to_stdout(runner)

    def _log_to_stdout(self, runner: Runner) -> None:
        for handler in runner.logger.handlers:
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stdout)
