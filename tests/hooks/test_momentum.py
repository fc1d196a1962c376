"""The momentum curve and when the teacher moves."""

import math

import pytest
import torch

from mmairl.engine import launch
from mmairl.errors import UserError
from mmairl.hooks.momentum import MomentumHook, momentum_at
from mmairl.models.heads import unit


@pytest.mark.parametrize('base', [0.99, 0.996])
def test_the_curve_is_the_closed_form(base):
    for k in range(101):
        assert momentum_at(k, 100, base, 'cosine') == pytest.approx(
            1 - (1 - base) * math.cos(math.pi * k / 200) ** 2, abs=1e-12
        )
    assert momentum_at(57, 100, base, 'constant') == base


def test_a_run_logs_the_curve_and_ends_at_one(toy_config):
    runner = launch.train(toy_config(width=8, steps=4))
    logged, _ = runner.message_hub.get_scalar('train/momentum').data
    assert list(logged) == pytest.approx([1 - 0.005 * (1 + math.cos(math.pi * k / 4)) for k in (1, 2, 3, 4)])


def test_a_resumed_run_goes_on_along_the_curve(toy_config):
    work_dir = launch.train(toy_config(width=8, steps=4)).work_dir
    again = toy_config(width=8, steps=4, resume=True, load_from=f'{work_dir}/iter_2.pth')
    runner = launch.train(again)
    logged, _ = runner.message_hub.get_scalar('train/momentum').data
    assert list(logged[-2:]) == pytest.approx([1 - 0.005 * (1 + math.cos(math.pi * k / 4)) for k in (3, 4)])


def test_under_accumulation_teacher_and_queue_move_once_per_optimizer_step(toy_config):
    cfg = toy_config(width=8, steps=4, batch=16, **{'optim_wrapper.accumulative_counts': 2})
    launch.share_batch(cfg, 1)
    assert cfg.train_dataloader.batch_size == 8
    runner = launch.build(cfg)
    moved = []
    follow = runner.model.teacher.follow
    runner.model.teacher.follow = lambda student, momentum: (moved.append(momentum), follow(student, momentum))
    runner.train()
    assert moved == pytest.approx([0.995, 1.0])  # two optimizer steps in four iterations
    assert runner.model.queue.position == (4 * 8) % 20


@pytest.mark.parametrize('wrong', [dict(schedule='linear'), dict(base=1.5)])
def test_a_wrong_setting_is_one_sentence(wrong):
    with pytest.raises(UserError, match='MomentumHook'):
        MomentumHook(**wrong)


def test_the_queue_is_enqueued_in_the_order_of_the_iterations(toy_config):
    cfg = toy_config(
        width=8, steps=2, batch=16, queue=16, **{'optim_wrapper.accumulative_counts': 2, 'model.symmetric': False}
    )
    runner = launch.train(cfg)
    assert torch.allclose(runner.model.queue.vectors[8:], unit(runner.model.queue.fresh[1]))
