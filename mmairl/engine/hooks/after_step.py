"""After each optimizer step: the teacher moves, and its keys enter the queue."""

import math
import random

import torch
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.errors import UserError
from mmairl.models.heads.base import unit
from mmairl.models.processes import gather, network_of
from mmairl.registry import HOOKS


def momentum_at(step: int, steps: int, base: float, schedule: str) -> float:
    """m(k) = 1 - (1 - m0) (cos(pi k / K) + 1) / 2, or m0 throughout.

    >>> momentum_at(0, 100, 0.99, 'cosine'), momentum_at(100, 100, 0.99, 'cosine')
    (0.99, 1.0)
    """
    if schedule == 'constant':
        return base
    return 1 - (1 - base) * (math.cos(math.pi * step / steps) + 1) / 2


@HOOKS.register_module()
class MomentumHook(Hook):
    """Moves the teacher after each optimizer step k = 1..K, at a momentum that is constant or ascends to 1.

    The step is counted from the iteration alone, so that a resumed run continues where it was, and under
    accumulation the teacher moves once per optimizer step.
    """

    def __init__(self, base: float = 0.99, schedule: str = 'cosine') -> None:
        if schedule not in ('cosine', 'constant') or not 0 <= base <= 1:
            raise UserError(
                f"MomentumHook wants a schedule 'cosine' or 'constant' and a base from 0 to 1, not {schedule!r} and {base}"
            )
        self.base, self.schedule = base, schedule

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        model = network_of(runner)
        teacher = getattr(model, 'teacher', None)
        if teacher is None or not runner.optim_wrapper.stepped:
            return
        every = runner.optim_wrapper.accumulated
        step, steps = math.ceil((runner.iter + 1) / every), math.ceil(runner.max_iters / every)
        momentum = momentum_at(step, steps, self.base, self.schedule)
        teacher.follow(model, momentum)
        runner.message_hub.update_scalar('train/momentum', momentum)


@HOOKS.register_module()
class QueueHook(Hook):
    """After each optimizer step, enqueues the teacher's keys of all processes; a network without a queue is left alone.

    Of several views' keys those of one view are enqueued, drawn at random from the seed and the step rather than from a
    generator's state, so that all processes and a resumed run draw the same.
    """

    def before_train(self, runner: Runner) -> None:
        self.collected: list[Tensor] = []
        seed = torch.tensor(runner.seed)  # a process's own where processes augment differently
        broadcast(seed)
        self.seed = seed.item()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        model = network_of(runner)
        queue = getattr(model, 'queue', None)
        if queue is None:
            return
        view = random.Random(f'{self.seed}:{runner.iter}').choice(sorted(queue.fresh))
        self.collected.append(unit(queue.fresh[view].detach()))
        if runner.optim_wrapper.should_update():
            keys, self.collected = torch.cat(self.collected), []
            if runner.optim_wrapper.finite:
                queue.enqueue(gather(keys))
