"""The log of a run: values that stay on the device until somebody reads them, and a line on its progress."""

import time
from collections import deque
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook, RuntimeInfoHook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import Runner
from rich.console import Console
from torch import Tensor

from mmairl.data.training_images import TrainingImages
from mmairl.engine.batches import images_per_step
from mmairl.hardware import cores
from mmairl.registry import HOOKS

KEPT = 2000  # the widest window that a log averages over; mmengine keeps a million, in each checkpoint too
# What is shown, how it is called in little space, and how it is written.
SHOWN = {
    'loss': ('loss', '.3f'),
    'instance_accuracy': ('acc', '.1%'),
    'lr': ('lr', '.4f'),
    'momentum': ('m', '.5f'),
}
SECONDS, WIDTH = 30, 12  # between two lines in a file, and of the bar where somebody watches


class DeviceHistory(HistoryBuffer):
    """mmengine's buffer, which takes a tensor without waiting for it and reads all that came since at once.

    The original turns each value into a number at once, a wait for the device per scalar and step, and copies its whole
    history at each update. A copy is an ordinary buffer.
    """

    def __init__(self, log_history: Any = (), count_history: Any = ()) -> None:
        self._values, self._counts = deque(log_history, KEPT), deque(count_history, KEPT)
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
        """Return an ordinary buffer, also for a copy."""
        return HistoryBuffer, (self._log_history, self._count_history, KEPT)


def record(hub: MessageHub, name: str, value: float | Tensor) -> None:
    """Log a value under `name`, like `hub.update_scalar`, without waiting for it."""
    bounded(hub)
    if name not in hub.log_scalars:
        hub._set_resumed_keys(name, True)
        hub.log_scalars[name] = DeviceHistory()
    hub.log_scalars[name].update(value)


def bounded(hub: MessageHub) -> None:
    """Take over the histories that mmengine began, so that none grows with the run."""
    for name, history in hub.log_scalars.items():
        if not isinstance(history, DeviceHistory):
            hub.log_scalars[name] = DeviceHistory(*history.data)


@HOOKS.register_module()
class AsyncRuntimeInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook, which would read every loss of every step back to the host."""

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        super().before_train_iter(runner, batch_idx, data_batch)
        bounded(runner.message_hub)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs: dict | None = None) -> None:
        for name, value in (outputs or {}).items():
            record(runner.message_hub, f'train/{name}', value)
        norm = getattr(runner.optim_wrapper, 'gradient_norm', None)
        if norm is not None and runner.optim_wrapper.should_update():
            record(runner.message_hub, 'train/grad_norm', norm)


@HOOKS.register_module()
class ProgressHook(Hook):
    """A progress bar with loss, instance accuracy, learning rate, momentum and time left.

    Values are read, which waits for the device, every second on a terminal and in a notebook, and every SECONDS in a file.
    After `interval` steps it says what the loader can feed.
    """

    priority = 'VERY_LOW'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval

    def before_train(self, runner: Runner) -> None:
        self.began, self.first, self.said = time.monotonic(), runner.iter, time.monotonic()
        console = Console()
        self.columns = console.width - 1 if console.is_terminal or console.is_jupyter else 0  # none in a file

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        if not is_main_process():
            return
        done, now = runner.iter + 1, time.monotonic()
        if done == self.first + self.interval:
            feeding(runner, self.interval // 2)
        if now - self.said < (1 if self.columns else SECONDS):
            return
        self.said = now
        left = timedelta(seconds=round((now - self.began) * (runner.max_iters - done) / (done - self.first)))
        line = f'{done / runner.max_iters:.0%}  {values(runner)}  {left} left'
        bar = f'{"█" * (WIDTH * done // runner.max_iters):░<{WIDTH}} {line}'
        # what is said next begins where the bar does
        print(f'{bar[: self.columns]:{self.columns}}\r' if self.columns else f'training {line}\n', end='', flush=True)


def feeding(runner: Runner, steps: int) -> None:
    """Log how many images a second the data workers of this process can make, beside what its step takes."""
    loader, times = runner.train_dataloader, runner.message_hub.log_scalars
    if not isinstance(loader.dataset, TrainingImages) or 'train/data_time' not in times:
        return
    seconds, waited = (times[f'train/{name}'].mean(steps) for name in ('time', 'data_time'))
    fed, taken = loader.dataset.rate, images_per_step(loader) / get_world_size() / max(seconds - waited, 1e-9)
    said = f'{loader.num_workers} data workers can make {fed:.0f} images/s, and a step takes {taken:.0f} images/s'
    if fed >= taken:
        runner.logger.info(said)
    else:
        runner.logger.warning(
            f'{said} and waits; raise train_dataloader.num_workers ({cores()} cores here), leave the views to the device '
            '(configs/_base_/views/on_device.py), or pack the files where a network disk is slow (tools/pack.py)'
        )


def values(runner: Runner) -> str:
    scalars = runner.message_hub.log_scalars
    return '  '.join(
        f'{short} {scalars[f"train/{name}"].current():{form}}'
        for name, (short, form) in SHOWN.items()
        if f'train/{name}' in scalars
    )
