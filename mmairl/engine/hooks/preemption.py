"""A run that is told to stop finishes its optimizer step, in all its processes, and saves itself."""

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


@cache
def host_group(everyone: dist.ProcessGroup) -> dist.ProcessGroup:
    """The processes over gloo, joined once for all runs of a process, such as those of a sweep."""
    return dist.new_group(backend='gloo')


@HOOKS.register_module()
class PreemptionHook(Hook):
    """When one process is told to stop, all of them stop after the same optimizer step and `iter_N.pth` is written.

    Each step's flags are added up over a gloo group while the next step runs, so that no device is waited for and no process
    stops alone.
    """

    priority = 'LOWEST'  # after the checkpoint hook

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.leaving = False

    def before_train(self, runner: Runner) -> None:
        self.listener = Listener()
        self.group = host_group(dist.group.WORLD) if get_world_size() > 1 else None
        self.asked: tuple[torch.Tensor, dist.Work] | None = None

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        told = self._told()
        if told and runner.optim_wrapper.should_update() and runner.iter + 1 < runner.max_iters:
            self._leave(runner, told)

    def _told(self) -> int:
        """The signal that some process has had, known to all of them from the same step on."""
        if self.group is None:
            return self.listener.told
        known = 0
        if self.asked is not None:
            flag, work = self.asked
            work.wait()
            known = int(flag)
        flag = torch.tensor(self.listener.told)
        self.asked = flag, dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group, async_op=True)
        return known

    def _leave(self, runner: Runner, number: int) -> None:
        hook = next((hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook)), None)
        if hook is None:
            raise UserError(
                'the run was asked to stop and cannot save itself, so that its steps are lost; set '
                "default_hooks.checkpoint.type='ExactCheckpointHook'"
            )
        steps, self.leaving = runner.iter + 1, True
        path = hook.save_as(runner, f'iter_{steps}.pth', dict(epoch=runner.epoch, iter=steps))
        hook.writer.finish()
        self.after_train(runner)
        name = signal.Signals(number).name
        raise Stopped(f'stopped by {name} after {steps} iterations: {path} is written; go on with --resume')

    def after_train(self, runner: Runner) -> None:
        if self.asked is not None:
            self.asked[1].wait()
        self.after_run(runner)

    def after_run(self, runner: Runner) -> None:
        """Also of a run that ended early."""
        if self.listener:
            self.listener.close(self.leaving)
