"""Log values of training steps without waiting for the device, and show a progress line."""

import time
from collections import deque
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

# A history keeps this number of values, both in memory and in checkpoints. mmengine's histories keep a million.
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
# The width of the progress bar on a terminal, in characters.
BAR = 12


class DeviceHistory(HistoryBuffer):
    """A HistoryBuffer of mmengine, except that tensors stay on the device until the history is read.

    mmengine's class converts each value immediately, so that the CPU waits for the device, and it copies the whole history at
    each update. A copy or a pickle of this object is a plain HistoryBuffer.
    """

    def __init__(self, log_history: Any = (), count_history: Any = ()) -> None:
        self._values = deque(log_history, KEPT)
        self._counts = deque(count_history, KEPT)
        self._waiting: list[Tensor] = []
        self.max_length = KEPT
        self._set_default_statistics()

    def update(self, value: float | Tensor, count: int = 1) -> None:
        self._counts.append(count)
        if isinstance(value, Tensor):
            self._waiting.append(value.detach())
            if len(self._waiting) == KEPT:
                self._read()
        else:
            self._read()
            self._values.append(float(value))

    def _read(self) -> None:
        if self._waiting:
            self._values.extend(torch.stack(self._waiting).tolist())
            self._waiting.clear()

    @property
    def _log_history(self) -> np.ndarray:
        self._read()
        return np.array(self._values)

    @property
    def _count_history(self) -> np.ndarray:
        return np.array(self._counts)

    def current(self) -> float:
        self._read()
        return self._values[-1]

    def __reduce__(self) -> tuple:
        """Turn copies and pickles of this object into plain HistoryBuffers, which can be read without mmairl."""
        return HistoryBuffer, (self._log_history, self._count_history, KEPT)


def record(hub: MessageHub, name: str, value: float | Tensor) -> None:
    """Log a value like mmengine's `update_scalar`, but do not wait for the device."""
    bound_histories(hub)
    if name not in hub.log_scalars:
        hub._set_resumed_keys(name, True)
        hub.log_scalars[name] = DeviceHistory()
    hub.log_scalars[name].update(value)


def bound_histories(hub: MessageHub) -> None:
    """Replace mmengine's histories, which grow during a run, by histories of limited length."""
    for name, history in hub.log_scalars.items():
        if not isinstance(history, DeviceHistory):
            hub.log_scalars[name] = DeviceHistory(*history.data)


@HOOKS.register_module()
class AsyncRuntimeInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook, except that losses are not copied to the CPU at every step."""

    def before_train_iter(self, runner: Runner, **details: object) -> None:
        super().before_train_iter(runner, **details)
        bound_histories(runner.message_hub)

    def after_train_iter(self, runner: Runner, outputs: dict | None = None, **_: object) -> None:
        for name, value in (outputs or {}).items():
            record(runner.message_hub, f'train/{name}', value)
        norm = getattr(runner.optim_wrapper, 'gradient_norm', None)
        if norm is not None and runner.optim_wrapper.should_update():
            record(runner.message_hub, 'train/grad_norm', norm)


@HOOKS.register_module()
class ProgressHook(Hook):
    """Show the progress of a run: loss, instance accuracy, learning rate, teacher momentum and remaining time.

    Terminals and notebooks show a bar that is updated every second. A file gets a line every 30 seconds. Values are read only
    at these times, because the CPU waits for the device when it reads them. `rich.progress` is not used, because its live
    display overwrites log lines: mmengine's log handler writes directly to the terminal and is unaware of that display.

    Args:
        interval: After this number of steps, the hook logs once how fast the data workers and training are. Default: 50.
    """

    priority = 'VERY_LOW'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval

    def before_train(self, runner: Runner) -> None:
        self.first = runner.iter
        self.started = self.shown = time.monotonic()
        console = Console()
        is_watched = console.is_terminal or console.is_jupyter
        # 0 columns mean that the output is a file.
        self.columns = console.width - 1 if is_watched else 0

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        if not is_main_process():
            return
        done = runner.iter + 1
        now = time.monotonic()
        if now - self.shown < (1 if self.columns else SECONDS):
            return
        self.shown = now
        seconds = (now - self.started) * (runner.max_iters - done) / (done - self.first)
        left = timedelta(seconds=round(seconds))
        line = f'{done / runner.max_iters:.0%}  {current_values(runner)}  {left} left'
        if not self.columns:
            print(f'training {line}', flush=True)
            return
        bar = f'{"█" * (BAR * done // runner.max_iters):░<{BAR}} {line}'
        # The line is padded with spaces, so that it covers the previous line.
        print(f'{bar[: self.columns]:{self.columns}}\r', end='', flush=True)


def current_values(runner: Runner) -> str:
    scalars = runner.message_hub.log_scalars
    values = []
    for name, (short, form) in SHOWN.items():
        if f'train/{name}' in scalars:
            values.append(f'{short} {scalars[f"train/{name}"].current():{form}}')
    return '  '.join(values)
