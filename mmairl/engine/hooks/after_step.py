"""After each optimizer step, update the teacher and add keys to the queue."""

import math
import random
from typing import Literal

import torch
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.errors import UserError
from mmairl.models.processes import network_of
from mmairl.models.queue import KeyQueue
from mmairl.models.siamese import Teacher
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
    """After each optimizer step, call the model's `after_step` to update the teacher and add keys to the queue.

    The hook acts on models with a `Teacher` or a `KeyQueue`. With gradient accumulation, it acts once per optimizer step,
    and the keys of all accumulated batches enter the queue. If the optimizer wrapper reports that it did not call the
    optimizer, the teacher does not change. A step with a non-finite loss adds no keys.

    The keys of one view per batch enter the queue. The view is chosen at random, but the choice depends only on seed and
    iteration, so it is the same in all processes and after a resume.

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

    def before_train(self, runner: Runner) -> None:
        self.keys: list[Tensor] = []
        # With diff_rank_seed, processes have different seeds. To choose the same view, all use the seed of the first process.
        seed = torch.tensor(runner.seed)
        broadcast(seed)
        self.seed = seed.item()

    def after_train_iter(self, runner: Runner, **_: object) -> None:
        model = network_of(runner)
        has_teacher = isinstance(getattr(model, 'teacher', None), Teacher)
        has_queue = isinstance(getattr(model, 'queue', None), KeyQueue)
        if not has_teacher and not has_queue:
            return
        if has_queue:
            draw = random.Random(f'{self.seed}:{runner.iter}')
            self.keys.append(model.keys_of_one_view(draw))
        wrapper = runner.optim_wrapper
        if not wrapper.should_update():
            return
        keys = torch.cat(self.keys) if has_queue and wrapper.finite else None
        self.keys = []
        momentum = self.momentum(runner) if has_teacher and wrapper.stepped else None
        model.after_step(momentum, keys)
        if momentum is not None:
            runner.message_hub.update_scalar('train/momentum', momentum)

    def momentum(self, runner: Runner) -> float:
        every = runner.optim_wrapper.accumulated
        step = math.ceil((runner.iter + 1) / every) - 1 + self.first_step
        steps = math.ceil(runner.max_iters / every)
        return momentum_at(step, steps, self.base, self.schedule)


@HOOKS.register_module()
class QueueHook(Hook):
    """Do nothing. The hook exists because configs of earlier versions contain it. Now `MomentumHook` fills the queue."""

    def before_train(self, runner: Runner) -> None:
        runner.logger.info(
            'QueueHook is ignored, because MomentumHook fills the queue; remove default_hooks.queue'
        )
