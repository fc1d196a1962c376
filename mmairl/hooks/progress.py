"""How the run is doing: a live line on a terminal, and now and then a line where the output goes into a file."""

import logging
import sys
import time
from datetime import timedelta

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mmairl.registry import HOOKS

# What is shown, how it is called in little space, and how it is written.
SHOWN = {
    'loss': ('loss', '.3f'),
    'instance_accuracy': ('acc', '.1%'),
    'lr': ('lr', '.4f'),
    'momentum': ('m', '.5f'),
}
SECONDS = 30  # between two lines in a file


@HOOKS.register_module()
class ProgressHook(Hook):
    """A progress bar with loss, instance accuracy, learning rate, momentum and time left.

    Values are read every `interval` iterations only, with the log line, since reading them waits for the device; in a file
    every SECONDS.
    """

    priority = 'VERY_LOW'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval
        self.progress: Progress | None = None

    def before_train(self, runner: Runner) -> None:
        if not is_main_process():
            return
        self.began, self.first, self.said = time.monotonic(), runner.iter, time.monotonic()
        if not Console().is_terminal:
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
        done = runner.iter + 1
        if self.progress is not None:
            due = self.every_n_train_iters(runner, self.interval) or done in (self.first + 1, runner.max_iters)
            self.progress.update(self.task, completed=done, description=values(runner) if due else None)
        elif is_main_process() and (now := time.monotonic()) - self.said >= SECONDS:
            self.said = now
            left = timedelta(seconds=round((now - self.began) * (runner.max_iters - done) / (done - self.first)))
            print(f'training {done / runner.max_iters:.0%}  {values(runner)}  {left} left', flush=True)

    def after_run(self, runner: Runner) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None
            self._log_to_stdout(runner)

    def _log_to_stdout(self, runner: Runner) -> None:
        for handler in runner.logger.handlers:
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stdout)


def values(runner: Runner) -> str:
    scalars = runner.message_hub.log_scalars
    return '  '.join(
        f'{short} {scalars[f"train/{name}"].current():{form}}'
        for name, (short, form) in SHOWN.items()
        if f'train/{name}' in scalars
    )
