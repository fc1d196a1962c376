"""Save a run and stop it after a signal."""

import signal
from functools import cache

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.errors import UserError
from mmairl.registry import HOOKS
from mmairl.signals import Listener, Stopped


@HOOKS.register_module()
class PreemptionHook(Hook):
    """After a signal to any process, stop all processes after the same optimizer step and write `iter_N.pth`.

    Each step, the flags of all processes are combined over gloo while the next step runs. This does not block the device,
    and no process stops alone.

    Raises:
        Stopped: When the checkpoint is written. The command exits with 75.
        UserError: If the run has no ExactCheckpointHook to save it.
    """

    priority = 'LOWEST'  # after the checkpoint hook

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.leaving = False

    def before_train(self, runner: Runner) -> None:
        self.listener = Listener()
        self.group = host_group(dist.group.WORLD) if get_world_size() > 1 else None
        self.pending: tuple[torch.Tensor, dist.Work] | None = None

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        received = self._combine()
        if received and runner.optim_wrapper.should_update() and runner.iter + 1 < runner.max_iters:
            self._leave(runner, received)

    def _combine(self) -> int:
        """Return the signal that any process had received one step ago, which is the same in all processes."""
        if self.group is None:
            return self.listener.received
        received = 0
        if self.pending is not None:
            flag, work = self.pending
            work.wait()
            received = int(flag)
        flag = torch.tensor(self.listener.received)
        self.pending = (
            flag,
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group, async_op=True),
        )
        return received

    def _leave(self, runner: Runner, number: int) -> None:
        name = signal.Signals(number).name
        hook = next((hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook)), None)
        if hook is None:
            raise UserError(
                f'stopped by {name} without saving, so all steps since the last checkpoint are lost; set '
                "default_hooks.checkpoint.type='ExactCheckpointHook'",
                code='cannot-save',
            )
        steps = runner.iter + 1
        self.leaving = True
        path = hook.save_as(runner, f'iter_{steps}.pth', dict(epoch=runner.epoch, iter=steps))
        hook.writer.finish()
        self.after_train(runner)
        raise Stopped(
            f'stopped by {name} after {steps} iterations: {path} is written; resume with --resume'
        )

    def after_train(self, runner: Runner) -> None:
        if self.pending is not None:
            self.pending[1].wait()
        self.after_run(runner)

    def after_run(self, runner: Runner) -> None:
        if self.listener:  # None if the run failed before its first step
            self.listener.close(self.leaving)


@cache
def host_group(everyone: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the group of all processes over gloo. It is created once for all runs of a process, such as those of a sweep."""
    return dist.new_group(backend='gloo')
