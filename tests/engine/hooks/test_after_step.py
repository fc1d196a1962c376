"""The teacher, then the queue, are updated once per optimizer step, also if their classes come from a user."""

import pytest
import torch
from harness.errors import raises_code
from torch import nn

from mmairl.engine.hooks.after_step import MomentumHook
from mmairl.engine.runner import Runner
from mmairl.models.heads.base import unit
from mmairl.registry import MODELS


def calls_of(runner: Runner) -> list:
    """Train, and return the momentum of each call of `follow`, and 'enqueue' for each call of `enqueue`."""
    calls = []
    follow, enqueue = runner.model.teacher.follow, runner.model.queue.enqueue
    runner.model.teacher.follow = lambda student, momentum: (
        calls.append(momentum),
        follow(student, momentum),
    )
    runner.model.queue.enqueue = lambda keys: (calls.append('enqueue'), enqueue(keys))
    runner.train()
    return calls


def test_accumulation_moves_teacher_and_then_queue_once(toy_config):
    cfg = toy_config(
        width=8, steps=4, batch=16, queue=24, **{'optim_wrapper.accumulative_counts': 2}
    )
    cfg.model.symmetric = False
    runner = Runner.from_cfg(cfg)
    first, _, second, _ = calls = calls_of(runner)
    assert calls[1::2] == ['enqueue'] * 2 and [first, second] == pytest.approx([0.995, 1.0])
    queue = runner.model.queue
    assert queue.position == (4 * 8) % 24
    assert torch.allclose(queue.vectors[:8], unit(runner.model.keys[1]))


def test_skipped_float16_step_moves_neither(toy_config):
    options = {'optim_wrapper.dtype': 'float16', 'default_hooks.checkpoint': None}
    runner = Runner.from_cfg(toy_config(width=8, steps=4, queue=32, **options))
    # This scale overflows in the first step, and the scaler then lowers it.
    runner.optim_wrapper.loss_scaler = torch.amp.GradScaler(
        'cpu', init_scale=2.0**120, backoff_factor=2.0**-110
    )
    assert calls_of(runner).count('enqueue') == 3
    assert runner.model.queue.filled == 3 * 8


@pytest.mark.parametrize('first_step', [1, 0])
def test_momentum_at_first_middle_and_last_step(toy_config, first_step):
    """The momentum of step k of K = 3 steps is m(k) = 1 - (1 - m0) (cos(pi k / K) + 1) / 2."""
    options = {'default_hooks.momentum.base': 0.96, 'default_hooks.momentum.first_step': first_step}
    runner = Runner.from_cfg(toy_config(width=8, steps=3, **options))
    ascending = [0.96, 1 - 0.04 * 0.75, 1 - 0.04 * 0.25, 1.0]
    assert calls_of(runner)[::2] == pytest.approx(ascending[first_step : first_step + 3])


@MODELS.register_module(force=True)
class ListQueue(nn.Module):
    """A queue that a user could write: it keeps all keys in a list."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rows = [torch.eye(dim)]

    def negatives(self) -> torch.Tensor:
        return torch.cat(self.rows)

    def enqueue(self, keys: torch.Tensor) -> None:
        self.rows.append(keys)


@MODELS.register_module(force=True)
class DeafQueue(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()


class CountingTeacher(nn.Module):
    """A teacher that a user could write: it copies the student and counts its steps."""

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.backbone, self.projector, self.predictor = teacher.backbone, teacher.projector, None
        self.steps = 0

    def copy_from(self, student: nn.Module) -> None:
        self.steps = 0

    def follow(self, student: nn.Module, momentum: float) -> None:
        self.steps += 1


def test_queue_and_teacher_of_a_user_are_used(toy_config, monkeypatch):
    cfg = toy_config(width=8, steps=3, **{'model.queue': dict(type='ListQueue', _delete_=True)})
    plain = Runner.build_model

    def with_own_teacher(self, model):
        model = plain(self, model)
        model.teacher = CountingTeacher(model.teacher)
        return model

    monkeypatch.setattr(Runner, 'build_model', with_own_teacher)
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert [len(rows) for rows in runner.model.queue.rows] == [16, 8, 8, 8]
    assert runner.model.teacher.steps == 3


WRONG = {
    'no-enqueue': {'model.queue': dict(type='DeafQueue', _delete_=True)},
    'no-queue-hook': {'default_hooks.queue': None},
    'no-momentum-hook': {'default_hooks.momentum': None},
}


@pytest.mark.parametrize('code', WRONG)
def test_part_without_its_hook_or_method_raises(toy_config, code):
    with raises_code(code):
        Runner.from_cfg(toy_config(width=8, **WRONG[code]))


@pytest.mark.parametrize('wrong', [dict(schedule='linear'), dict(base=1.5)])
def test_wrong_momentum_setting_raises(wrong):
    with raises_code('bad-momentum'):
        MomentumHook(**wrong)
