"""ScheduleHook changes numbers of a model during training: formulas, values in a run, and errors for unknown numbers."""

import math

import pytest
from harness.errors import raises_code

from mmairl.engine import run as launch
from mmairl.engine.hooks.schedules import value_at
from mmairl.errors import UserError
from mmairl.registry import HOOKS


@pytest.mark.parametrize(
    'curve, values',
    [('linear', (4, 5, 6, 6)), ('cosine', (4, 5, 6, 6)), ('step', (4, 4, 6, 6))],
)
def test_schedule_goes_from_start_to_end_and_stays(curve, values):
    assert [
        value_at(share, 4, 6, until=0.5, curve=curve) for share in (0, 0.25, 0.5, 1)
    ] == pytest.approx(values)
    quarter = {'linear': 4.5, 'cosine': 5 - math.cos(math.pi / 4), 'step': 4}[curve]
    assert value_at(0.125, 4, 6, 0.5, curve) == pytest.approx(quarter)


def test_schedule_sets_values_in_a_run(toy_config):
    def run(**options):
        cfg = toy_config('mocov2plus_r50_200e.py', steps=4, **options)
        cfg.custom_hooks = [
            dict(type='ScheduleHook', values={'head.temperature': dict(start=0.2, end=0.4)})
        ]
        return launch.train(cfg).model.head.temperature

    assert run() == pytest.approx(0.2 + 0.2 * 3 / 4)


def test_unknown_number_or_schedule_raises(toy_config):
    for values in ({'head.heat': dict(start=0, end=1)}, {'tail.temperature': dict(start=0, end=1)}):
        cfg = toy_config('mocov2plus_r50_200e.py', steps=1)
        cfg.custom_hooks = [dict(type='ScheduleHook', values=values)]
        with raises_code('no-such-number'):
            launch.train(cfg)
    for wrong in (
        dict(start=0),
        dict(start=0, end=1, until=0),
        dict(start=0, end=1, curve='zigzag'),
    ):
        with pytest.raises(UserError, match='(missing|division|zigzag)'):
            HOOKS.build(dict(type='ScheduleHook', values={'head.temperature': wrong}))
