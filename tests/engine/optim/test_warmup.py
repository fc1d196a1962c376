"""At every step of the schedule sgd_200e.py, the learning rate equals the formula of a linear warm-up and a cosine decay."""

import math
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from mmairl.registry import PARAM_SCHEDULERS

CONFIGS = Path(__file__).parents[3] / 'configs'


def rates(
    settings: list[dict], lrs: list[float], epochs: int, epoch_length: int
) -> list[list[float]]:
    """Return the learning rate of each step of a run, for each group of parameters."""
    optimizer = torch.optim.SGD(
        [dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=lr) for lr in lrs]
    )
    defaults = dict(optimizer=optimizer, epoch_length=epoch_length)
    schedulers = [
        PARAM_SCHEDULERS.build(dict(one), default_args={**defaults, 'end': epochs})
        for one in settings
    ]
    seen = []
    for _ in range(epochs * epoch_length):
        seen.append([group['lr'] for group in optimizer.param_groups])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return seen


@pytest.mark.parametrize(
    'epochs,warm_up,epoch_length', [(200, 10, 7), (12, 10, 1), (3, 1, 2), (5, 2, 50)]
)
def test_rate_is_linear_then_cosine(epochs, warm_up, epoch_length):
    settings = Config.fromfile(CONFIGS / '_base_/schedules/sgd_200e.py').param_scheduler
    settings[0].end = settings[1].begin = warm_up
    lrs, until, total = [0.12, 1.8], warm_up * epoch_length, epochs * epoch_length
    for step, measured in enumerate(rates(settings, lrs, epochs, epoch_length)):
        for lr, rate in zip(lrs, measured):
            cosine = lr * (1 + math.cos(math.pi * (step - until) / (total - until))) / 2
            expected = 1e-6 + (lr - 1e-6) * step / until if step < until else cosine
            assert rate == pytest.approx(expected, rel=1e-9, abs=1e-15)
