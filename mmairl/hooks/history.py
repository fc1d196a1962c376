"""Logged values that stay on the device until somebody reads them, and of which only the latest are kept."""

from collections import deque
from typing import Any

import numpy as np
import torch
from mmengine.hooks import RuntimeInfoHook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import Runner
from torch import Tensor

from mmairl.registry import HOOKS

KEPT = 2000  # the widest window that a log averages over; mmengine keeps a million, in each checkpoint too


class DeviceHistory(HistoryBuffer):
    """mmengine's buffer, which takes a tensor without waiting for it and reads all that came since at once.

    The original turns each value into a number at once, a wait for the device per scalar and step, and copies its whole
    history at each update. It is saved as the original.
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
        """Of a copy as well."""
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
