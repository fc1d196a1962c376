"""When teacher and queue move; test_five_steps.py has the momentum of each step."""

import pytest
import torch

from mmairl.engine import run
from mmairl.engine.hooks.after_step import MomentumHook
from mmairl.errors import UserError
from mmairl.models.heads.base import unit


def test_under_accumulation_teacher_and_queue_move_once_per_optimizer_step(toy_config):
    """The keys of both iterations enter in their order."""
    cfg = toy_config(width=8, steps=4, batch=16, queue=24, **{'optim_wrapper.accumulative_counts': 2})
    cfg.model.symmetric = False
    run.share_batch(cfg, 1)
    assert cfg.train_dataloader.batch_size == 8
    runner = run.build(cfg)
    moved = []
    follow = runner.model.teacher.follow
    runner.model.teacher.follow = lambda student, momentum: (moved.append(momentum), follow(student, momentum))
    runner.train()
    assert moved == pytest.approx([0.995, 1.0])  # two optimizer steps in four iterations
    queue = runner.model.queue
    assert queue.position == (4 * 8) % 24
    assert torch.allclose(queue.vectors[:8], unit(queue.fresh[1]))


def test_momentum_at_first_middle_and_last_step(toy_config):
    """m(k) = 1 - (1 - m0) (cos(pi k / K) + 1) / 2 for k = 1, 2, 3 = K."""
    cfg = toy_config(width=8, steps=3, **{'default_hooks.momentum.base': 0.96})
    run.share_batch(cfg, 1)
    runner = run.build(cfg)
    momenta = []
    follow = runner.model.teacher.follow
    runner.model.teacher.follow = lambda student, momentum: (momenta.append(momentum), follow(student, momentum))
    runner.train()
    assert momenta == pytest.approx([1 - 0.04 * 0.75, 1 - 0.04 * 0.25, 1.0])


@pytest.mark.parametrize('wrong', [dict(schedule='linear'), dict(base=1.5)])
def test_a_wrong_setting_is_one_sentence(wrong):
    with pytest.raises(UserError, match='MomentumHook'):
        MomentumHook(**wrong)
