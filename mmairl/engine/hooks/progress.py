"""Log values of training steps without waiting for the device, and show a line of progress."""

import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook, RuntimeInfoHook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import Runner
from rich.console import Console
from torch import Tensor

from mmairl.registry import HOOKS

# A history keeps this number of values, in memory and in checkpoints. mmengine's histories keep a million.
KEPT = 2000
# The short names and the formats of the values on the progress line.
SHOWN = {
    'loss': ('loss', '.3f'),
    'instance_accuracy': ('acc', '.1%'),
    'lr': ('lr', '.4f'),
    'momentum': ('m', '.5f'),
}
# The number of seconds between two progress lines in a file.
SECONDS = 30


class DeviceHistory(HistoryBuffer):
    """A HistoryBuffer of mmengine whose tensors stay on the device until the history is read.

    mmengine reads each value immediately, so that the CPU waits for the device in every step. A copy or a pickle of this object
    is a plain HistoryBuffer.
    """

    def __init__(self, values: Any = (), counts: Any = ()) -> None:
        self.waiting: list[Tensor] = []
        super().__init__(list(values), list(counts), KEPT)

    def update(self, value: float | Tensor, count: int = 1) -> None:
        if not isinstance(value, Tensor):
            super().update(value, count)
            return
        self.waiting.append(value.detach())
        if len(self.waiting) == KEPT:
            self.current()

    @property
    def _log_history(self) -> np.ndarray:
        waiting, self.waiting = self.waiting, []
        for value in torch.stack(waiting).tolist() if waiting else ():
            super().update(value)
        return self.values

    @_log_history.setter
    def _log_history(self, values: np.ndarray) -> None:
        self.values = values

    def __reduce__(self) -> tuple:
        return HistoryBuffer, (*self.data, KEPT)


def record(hub: MessageHub, name: str, value: float | Tensor) -> None:
    """Log a value like mmengine's `update_scalar`, but do not wait for the device."""
    history = hub.log_scalars.get(name)
    if not isinstance(history, DeviceHistory):
        hub._set_resumed_keys(name, True)
        hub.log_scalars[name] = history = DeviceHistory(*(history.data if history else ()))
    history.update(value)


@HOOKS.register_module()
class AsyncRuntimeInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook, except that losses are not copied to the CPU at every step."""

    def after_train_iter(self, runner: Runner, outputs: dict | None = None, **_: object) -> None:
        for name, value in (outputs or {}).items():
            record(runner.message_hub, f'train/{name}', value)
        norm = getattr(runner.optim_wrapper, 'gradient_norm', None)
        if norm is not None and runner.optim_wrapper.should_update():
            record(runner.message_hub, 'train/grad_norm', norm)
        for history in runner.message_hub.log_scalars.values():
            # An update copies the history, which takes a millisecond for a million values.
            history.max_length = KEPT


@HOOKS.register_module()
class ProgressHook(Hook):
    """Show the progress of a run: loss, instance accuracy, learning rate, teacher momentum and remaining time.

    Terminals and notebooks show one line that is updated every second. A file gets a line every 30 seconds. Values are read
    only at these times, because the CPU waits for the device when it reads them.
    """

    priority = 'VERY_LOW'

    def before_train(self, runner: Runner) -> None:
        self.first = runner.iter
        self.started = self.shown = time.monotonic()
        self.console = Console()
        self.live = self.console.is_terminal or self.console.is_jupyter

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        now = time.monotonic()
        done = runner.iter + 1
        last = done == runner.max_iters
        waits = now - self.shown < (1 if self.live else SECONDS)
        if not is_main_process() or (waits and not last):
            return
        self.shown = now
        seconds = (now - self.started) * (runner.max_iters - done) / (done - self.first)
        left = timedelta(seconds=round(seconds))
        line = f'{done / runner.max_iters:4.0%}  {current_values(runner)}  {left} left'
        if self.live:
            width = self.console.width - 1
            print(f'\r{line[:width]:{width}}', end='\n' if last else '', flush=True)
        else:
            print(f'training {line}', flush=True)


def current_values(runner: Runner) -> str:
    scalars = runner.message_hub.log_scalars
    return '  '.join(
        f'{short} {scalars[f"train/{name}"].current():{form}}'
        for name, (short, form) in SHOWN.items()
        if f'train/{name}' in scalars
    )
