"""The teacher and the queue are updated once per optimizer step. test_five_steps.py tests the momentum of each step."""

import logging
from types import SimpleNamespace

import pytest
import torch
from harness.errors import raises_code
from mmengine.hooks import Hook

from mmairl.engine import run
from mmairl.engine.hooks.after_step import MomentumHook
from mmairl.models.heads.base import unit
from mmairl.registry import HOOKS


def momenta_of(runner) -> list[float]:
    """Train, and return the momentum with which each step moves the teacher."""
    momenta = []
    follow = runner.model.teacher.follow
    runner.model.teacher.follow = lambda student, momentum: (momenta.append(momentum), follow(student, momentum))
    runner.train()
    return momenta


def test_accumulation_moves_teacher_and_queue_once(toy_config):
    """Two iterations are one optimizer step, so four iterations are two steps.

    The keys of all iterations are enqueued, in order.
    """
    cfg = toy_config(width=8, steps=4, batch=16, queue=24, **{'optim_wrapper.accumulative_counts': 2})
    cfg.model.symmetric = False
    run.share_batch(cfg, 1)
    assert cfg.train_dataloader.batch_size == 8
    runner = run.build_runner(cfg)
    moved = momenta_of(runner)
    assert moved == pytest.approx([0.995, 1.0])
    queue = runner.model.queue
    assert queue.position == (4 * 8) % 24
    assert torch.allclose(queue.vectors[:8], unit(runner.model.keys[1]))


@pytest.mark.parametrize('first_step', [1, 0])
def test_momentum_at_first_middle_and_last_step(toy_config, first_step):
    """The momentum of step k of K = 3 steps is m(k) = 1 - (1 - m0) (cos(pi k / K) + 1) / 2.

    The steps are counted from `first_step`, so k is 1, 2, 3 or 0, 1, 2.
    """
    options = {'default_hooks.momentum.base': 0.96, 'default_hooks.momentum.first_step': first_step}
    cfg = toy_config(width=8, steps=3, **options)
    run.share_batch(cfg, 1)
    runner = run.build_runner(cfg)
    ascending = [0.96, 1 - 0.04 * 0.75, 1 - 0.04 * 0.25, 1.0]
    assert momenta_of(runner) == pytest.approx(ascending[first_step : first_step + 3])


@pytest.mark.parametrize('wrong', [dict(schedule='linear'), dict(base=1.5)])
def test_wrong_momentum_setting_raises(wrong):
    with raises_code('bad-momentum'):
        MomentumHook(**wrong)


def test_queue_hook_of_old_configs_does_nothing(caplog):
    hook = HOOKS.build(dict(type='QueueHook'))
    with caplog.at_level(logging.INFO, 'queue-hook'):
        hook.before_train(SimpleNamespace(logger=logging.getLogger('queue-hook')))
    assert 'remove default_hooks.queue' in caplog.text
    assert type(hook).after_train_iter is Hook.after_train_iter


def test_hook_ignores_a_queue_that_is_a_tensor():
    """mmpretrain's MoCo stores its queue as a tensor."""
    model = torch.nn.Module()
    model.register_buffer('queue', torch.zeros(4, 8))
    model.teacher = torch.nn.Linear(2, 2)
    MomentumHook().after_train_iter(SimpleNamespace(model=model))
