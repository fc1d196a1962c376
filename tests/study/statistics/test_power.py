"""Planned seeds and runs find the effect with the stated power."""

import math

import numpy as np
import pytest
from test_attribution import HALF, simulated
from test_compare_rows import record

from mmairl.study.statistics.compare_rows import compare_scores, verdicts
from mmairl.study.statistics.power import more_runs, plan_seeds, power, seeds_for, visible_effect


def test_planned_seeds_are_the_fewest_with_the_power():
    seeds = seeds_for(2.0, 1.5, 6)
    assert power(2.0, 1.5, seeds, 6) >= 0.8 > power(2.0, 1.5, seeds - 1, 6)
    assert power(visible_effect(1.5, 5, 6), 1.5, 5, 6) == pytest.approx(0.8, abs=1e-6)
    assert seeds_for(0.001, 10.0, 6) is None
    # With four seeds, scipy returns NaN for the probability of the opposite verdict. It must count as 0.
    assert seeds_for(5.0, 1.0, 6) == 4


def test_planned_spread_is_that_of_two_runs():
    few, many = [41.0, 46.0], [40.0, 43.0, 47.0, 44.0, 41.0, 46.0]
    (pair,) = compare_scores(record(few, many, starts=(None, None)), 'knn', 1.0)
    assert pair.deviation == pytest.approx(math.hypot(np.std(few, ddof=1), np.std(many, ddof=1)))
    ((_, spread, _, _, seeds),) = plan_seeds([pair], 4.0)
    assert (spread, seeds) == (f'{pair.deviation:.2f}', str(seeds_for(4.0, pair.deviation, 1)))


def test_planned_runs_find_the_effect_with_80_percent():
    """Plan runs after 2 seeds. With one seed fewer than planned, the power is too low.

    The plan counts only the first step of Holm's correction, and the later steps can only increase the power.
    """
    effect = 0.8
    model, scores, design = simulated(HALF, 2, lambda levels: 0.0)
    seeds = 2 + more_runs(effect, 1.0, 32, design, blocks=False) // 16
    for count, enough in ((seeds, True), (seeds - 1, False)):
        model, scores, design = simulated(HALF, count, lambda levels: effect * levels[0])
        numbers = np.stack([model.estimate(scores, {effect_name: 2.0}) for effect_name in design.asked], axis=-1)
        share = (verdicts(*numbers, margin=0.1)[:, 0] == 'differs').mean()
        assert (share >= 0.8 - 2 * math.sqrt(0.16 / 4000)) == enough
