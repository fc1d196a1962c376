"""A run that is asked to stop finishes its step, writes a checkpoint and exits with the code that asks for another try."""

import os
import signal
from functools import cache
from types import FrameType

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.engine.preemption import Preempted
from mmairl.errors import SIGNALS, UserError, block_signals_in_forks
from mmairl.hooks.checkpoint import ExactCheckpointHook
from mmairl.registry import HOOKS


@cache
def host_group(everyone: dist.ProcessGroup) -> dist.ProcessGroup:
    """The processes over gloo, joined once for all runs of a process, such as those of a sweep."""
    return dist.new_group(backend='gloo')


@HOOKS.register_module()
class PreemptionHook(Hook):
    """On a signal of SIGNALS, all processes stop after the same optimizer step and `iter_N.pth` is written.

    Each step's flags are added up over a gloo group while the next step runs, so that no device is waited for and no process
    stops alone. Further signals change nothing: the file is finished.
    """

    priority = 'LOWEST'  # after the checkpoint hook

    def __init__(self) -> None:
        self.signalled, self.leaving = 0, False
        self.before: dict = {}  # each signal's handler before the run

    def before_train(self, runner: Runner) -> None:
        block_signals_in_forks()
        self.process = os.getpid()
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup sets SIGHUP
        self.before = {number: signal.signal(number, self._note) for number in heard}
        self.group = host_group(dist.group.WORLD) if get_world_size() > 1 else None
        self.asked: tuple[torch.Tensor, dist.Work] | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self.process:
            self.signalled = number
        else:  # a child that a library has forked ends as it would without this handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        wanted = self._wanted()
        if wanted and runner.optim_wrapper.should_update() and runner.iter + 1 < runner.max_iters:
            self._leave(runner, wanted)

    def _wanted(self) -> int:
        """The signal that some process has had, known to all of them from the same step on."""
        if self.group is None:
            return self.signalled
        known = 0
        if self.asked is not None:
            flag, work = self.asked
            work.wait()
            known = int(flag)
        flag = torch.tensor(self.signalled)
        self.asked = flag, dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group, async_op=True)
        return known

    def _leave(self, runner: Runner, number: int) -> None:
        hook = next((hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook)), None)
        if hook is None:
            raise UserError(
                'the run was asked to stop and cannot save itself, so that its steps are lost; set '
                "default_hooks.checkpoint.type='ExactCheckpointHook'"
            )
        steps = runner.iter + 1
        path = hook.save_as(runner, f'iter_{steps}.pth', dict(epoch=runner.epoch, iter=steps))
        hook.writer.finish()
        self.leaving = True
        self.after_train(runner)
        raise Preempted(number, steps, path)

    def after_train(self, runner: Runner) -> None:
        if self.asked is not None:
            self.asked[1].wait()
        self.after_run(runner)

    def after_run(self, runner: Runner) -> None:
        """Also of a run that ended early; but on the way out a second signal must not end those who wait for the file."""
        if not self.leaving:
            for number, handler in self.before.items():
                signal.signal(number, handler)
            self.before = {}
