"""Save and stop a run after a signal."""

import signal

import torch
import torch.distributed as dist
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.registry import HOOKS
from mmairl.signals import ARGUMENTS, Listener, Stopped


@HOOKS.register_module()
class PreemptionHook(Hook):
    """After a signal to any process, write the checkpoint `iter_N.pth` and stop all processes after the same optimizer step.

    After each step, the processes tell each other over gloo whether they have received a signal. All processes therefore
    stop together, and the GPU never waits for this exchange.

    Raises:
        Stopped: When the checkpoint is complete. The command then exits with code 75.
    """

    # The hook runs after the checkpoint hook.
    priority = 'LOWEST'

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.leaving = False

    def before_train(self, runner: Runner) -> None:
        self.listener = Listener()
        self.group = dist.new_group(backend='gloo') if get_world_size() > 1 else None

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        received = self._received()
        if received and runner.optim_wrapper.should_update() and runner.iter + 1 < runner.max_iters:
            self._leave(runner, received)

    def _received(self) -> int:
        """Return the number of a signal that some process has received, or 0. It is the same in all processes."""
        number = torch.tensor(self.listener.received)
        if self.group is not None:
            dist.all_reduce(number, dist.ReduceOp.MAX, group=self.group)
        return int(number)

    def _leave(self, runner: Runner, number: int) -> None:
        name = signal.Signals(number).name
        hook = next(hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook))
        steps = runner.iter + 1
        self.leaving = True
        path = hook.save_as(runner, f'iter_{steps}.pth', dict(epoch=runner.epoch, iter=steps))
        hook.finish()
        self.after_run(runner)
        raise Stopped(
            f'stopped by {name} after {steps} iterations and saved {path}; continue with {ARGUMENTS["resume"]}'
        )

    def after_run(self, runner: Runner) -> None:
        # There is no listener if the run failed before its first step.
        if self.listener:
            self.listener.close(self.leaving)
