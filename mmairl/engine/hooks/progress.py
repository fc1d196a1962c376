"""Log values of training steps without waiting for the device, and show a line of progress."""

import shutil
import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import Hook, LoggerHook, RuntimeInfoHook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.errors import Diverged
from mmairl.models.processes import own_parts
from mmairl.registry import HOOKS
from mmairl.signals import ARGUMENTS

# A history keeps this number of values, in memory and in checkpoints. mmengine's histories keep a million.
KEPT = 2000
# The short names and the formats of the values on the progress line.
SHOWN = {
    'train/loss': ('loss', '.3f'),
    'train/instance_accuracy': ('acc', '.1%'),
    'train/lr': ('lr', '.4f'),
    'train/momentum': ('m', '.5f'),
}
# The number of seconds between two progress lines in a file.
SECONDS = 30


@HOOKS.register_module()
class AsyncRuntimeInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook, except that losses are read from the device only every `interval` steps and for the log.

    The hook also logs values that other hooks add to `outputs` in `after_train_iter`.

    Args:
        interval: Steps between two reads. Default: 50.

    Raises:
        Diverged: In all processes, if the loss is NaN or infinite in one of them.
    """

    # The hook runs after the hooks that add values, and before mmengine's LoggerHook.
    priority = 'BELOW_NORMAL'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval
        self.waiting: dict[str, list[Tensor]] = {}

    def after_train_iter(self, runner: Runner, batch_idx: int, outputs: dict, **_: object) -> None:
        norm = getattr(runner.optim_wrapper, 'gradient_norm', None)
        if norm is not None:
            outputs['grad_norm'] = norm
        for name, value in outputs.items():
            self.waiting.setdefault(name, []).append(torch.as_tensor(value).detach())
        done = runner.iter + 1
        logged = any(
            isinstance(hook, LoggerHook) and self.every_n_inner_iters(batch_idx, hook.interval)
            for hook in runner.hooks
        )
        if logged or done % self.interval == 0 or done == runner.max_iters:
            require_finite(runner, 'loss', self.waiting['loss'])
            self.read(runner)

    def read(self, runner: Runner) -> None:
        """Copy the values since the last read from the device to the message hub."""
        hub = runner.message_hub
        for name, values in self.waiting.items():
            for value in torch.stack(values).tolist():
                hub.update_scalar(f'train/{name}', value)
        self.waiting.clear()
        for history in hub.log_scalars.values():
            # An update copies the history, which takes a millisecond for a million values.
            history.max_length = KEPT

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.read(runner)
        checkpoint['message_hub'] = runner.message_hub.state_dict()


def require_finite(runner: Runner, what: str, values: Sequence[Tensor]) -> None:
    """Raise in all processes if a value is not finite in one of them. All processes must call this function together."""
    finite = torch.stack([part.detach().isfinite().all() for part in own_parts(values)])
    all_finite = finite.all().float()
    all_reduce(all_finite, 'min')
    if all_finite:
        return
    last = runner.message_hub.get_info('last_ckpt', None)
    advice = f'continue from the last good checkpoint, {last},' if last else 'start again'
    raise Diverged(
        f'training: the {what} is not finite at iteration {runner.iter + 1}; {advice} with a lower '
        f'optim_wrapper.optimizer.lr, in another folder ({ARGUMENTS["folder"]})',
        code='diverged',
    )


@HOOKS.register_module()
class ProgressHook(Hook):
    """Show the progress of a run: loss, instance accuracy, learning rate, teacher momentum and remaining time.

    A terminal shows one line that is updated every second. A file gets a line every 30 seconds.
    """

    priority = 'VERY_LOW'

    def before_train(self, runner: Runner) -> None:
        self.first = runner.iter
        self.started = self.shown = time.monotonic()

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        now = time.monotonic()
        done, total = runner.iter + 1, runner.max_iters
        live = sys.stdout.isatty()
        due = now - self.shown > (1 if live else SECONDS) or done == total
        if not due or not is_main_process():
            return
        self.shown = now
        seconds = (now - self.started) * (total - done) / (done - self.first)
        scalars = runner.message_hub.log_scalars
        words = [
            f'{short} {scalars[name].current():{form}}'
            for name, (short, form) in SHOWN.items()
            if name in scalars
        ]
        left = timedelta(seconds=round(seconds))
        line = '  '.join([f'training {done / total:4.0%}', *words, f'{left} left'])
        width = shutil.get_terminal_size().columns - 1
        shown = f'\r{line[:width]:{width}}' if live else line
        print(shown, end='' if live and done < total else '\n', flush=True)
