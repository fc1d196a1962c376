"""Hooks that act after each optimizer step: the teacher follows the student, then the queue receives new keys."""

import math
import random
from typing import Literal

import torch
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.errors import UserError
from mmairl.models.processes import gather, network_of
from mmairl.registry import HOOKS


def momentum_at(step: int, steps: int, base: float, schedule: str) -> float:
    """Return the momentum of the teacher at a step.

    With the schedule 'cosine', it is ``1 - (1 - base) (cos(pi k / K) + 1) / 2`` at step k of K.

    >>> momentum_at(0, 100, 0.99, 'cosine'), momentum_at(100, 100, 0.99, 'cosine')
    (0.99, 1.0)
    """
    if schedule == 'constant':
        return base
    return 1 - (1 - base) * (math.cos(math.pi * step / steps) + 1) / 2


@HOOKS.register_module()
class MomentumHook(Hook):
    """Call `model.teacher.follow(model, momentum)` after each optimizer step.

    With gradient accumulation, the teacher moves once per optimizer step. It does not move if the optimizer wrapper skipped the
    step because float16 gradients overflowed. The hook does nothing for a model without a teacher.

    Args:
        base: Initial momentum, from 0 to 1.
        schedule: With `'cosine'`, the momentum rises to 1 at the end of the run. With `'constant'`, it stays at `base`.
        first_step: Position of the first optimizer step in the schedule. Default: 1. With 0, as in BYOL's released code, the
            first step uses exactly `base`.

    Raises:
        UserError: If `base` or `schedule` is invalid.
    """

    def __init__(
        self, base: float = 0.99, schedule: str = 'cosine', first_step: Literal[0, 1] = 1
    ) -> None:
        if schedule not in ('cosine', 'constant') or not 0 <= base <= 1:
            raise UserError(
                f"MomentumHook: expected schedule 'cosine' or 'constant' and base from 0 to 1 ('schedule={schedule}, "
                f"base={base}'); correct default_hooks.momentum",
                code='bad-momentum',
            )
        self.base = base
        self.schedule = schedule
        self.first_step = first_step

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        model = network_of(runner)
        if getattr(model, 'teacher', None) is None or not step_taken(runner):
            return
        momentum = self.momentum(runner)
        model.teacher.follow(model, momentum)
        runner.message_hub.update_scalar('train/momentum', momentum)

    def momentum(self, runner: Runner) -> float:
        every = accumulated(runner)
        step = math.ceil((runner.iter + 1) / every) - 1 + self.first_step
        steps = math.ceil(runner.max_iters / every)
        return momentum_at(step, steps, self.base, self.schedule)


@HOOKS.register_module()
class QueueHook(Hook):
    """Add keys to the queue after each optimizer step, and after the teacher has moved.

    The hook calls `model.queue.enqueue(keys)` with the keys of all processes and of all accumulated batches. The keys of one
    view per batch enter the queue. The model returns them from `keys_of_one_view(draw)`. The random generator `draw` depends
    only on seed and iteration, so the choice of the view is the same in all processes and after a resume. The hook does nothing
    for a model without a queue.
    """

    # MomentumHook has the priority NORMAL and therefore runs first.
    priority = 'BELOW_NORMAL'

    def before_train(self, runner: Runner) -> None:
        self.keys: list[Tensor] = []
        # With diff_rank_seed, processes have different seeds. To choose the same view, all use the seed of the first process.
        seed = torch.tensor(runner.seed)
        broadcast(seed)
        self.seed = seed.item()

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        model = network_of(runner)
        if getattr(model, 'queue', None) is None:
            return
        draw = random.Random(f'{self.seed}:{runner.iter}')
        self.keys.append(model.keys_of_one_view(draw))
        if step_taken(runner):
            model.queue.enqueue(gather(torch.cat(self.keys)))
        if runner.optim_wrapper.should_update():
            self.keys = []


def accumulated(runner: Runner) -> int:
    """Return the number of iterations in an optimizer step. mmengine has no public name for it."""
    return runner.optim_wrapper._accumulative_counts


def step_taken(runner: Runner) -> bool:
    """Return whether this iteration ended with an optimizer step that was not skipped."""
    wrapper = runner.optim_wrapper
    return wrapper.should_update() and getattr(wrapper, 'stepped', True)
