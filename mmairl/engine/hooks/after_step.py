"""After each optimizer step, move the teacher and fill the queue."""

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
    """Return the teacher's momentum at a step.

    The cosine is ``m(k) = 1 - (1 - base) (cos(pi k / K) + 1) / 2``.

    >>> momentum_at(0, 100, 0.99, 'cosine'), momentum_at(100, 100, 0.99, 'cosine')
    (0.99, 1.0)
    """
    if schedule == 'constant':
        return base
    return 1 - (1 - base) * (math.cos(math.pi * step / steps) + 1) / 2


@HOOKS.register_module()
class MomentumHook(Hook):
    """Move the teacher and fill the queue after each optimizer step ``k = 1..K``, by the model's `after_step`.

    The hook acts on models with a `Teacher` or a `KeyQueue`. With gradient accumulation, it acts once per optimizer step,
    and the keys of all accumulated batches enter the queue. A skipped step does not move the teacher, and a step with a
    non-finite loss adds no keys. The view whose keys enter depends only on seed and iteration, so it is the same in all
    processes and after a resume.

    Args:
        base: Initial momentum, from 0 to 1.
        schedule: `'cosine'` rises to 1 at the end of the run; `'constant'` stays at `base`.
        first_step: Number of the first step in the schedule: 1, or 0 as in BYOL's release, whose first step uses `base`.

    Raises:
        UserError: If a setting is out of range.
    """

    def __init__(
        self, base: float = 0.99, schedule: str = 'cosine', first_step: Literal[0, 1] = 1
    ) -> None:
        if schedule not in ('cosine', 'constant') or not 0 <= base <= 1:
            raise UserError(
                f"MomentumHook: expected schedule 'cosine' or 'constant' and base from 0 to 1 ('{schedule}', '{base}'); "
                'correct default_hooks.momentum',
                code='bad-momentum',
            )
        self.base = base
        self.schedule = schedule
        self.first_step = first_step

    def before_train(self, runner: Runner) -> None:
        self.keys: list[Tensor] = []
        seed = torch.tensor(runner.seed)  # differs between processes under diff_rank_seed
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
    """Do nothing. Configs of earlier versions name this hook; now `MomentumHook` fills the queue."""

    def before_train(self, runner: Runner) -> None:
        runner.logger.info(
            'QueueHook is ignored, because MomentumHook fills the queue; remove default_hooks.queue'
        )
