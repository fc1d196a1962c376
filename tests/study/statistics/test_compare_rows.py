"""Test comparisons of rows (configurations of a study): error rates, coverage and power in simulations, and verdicts on
planted scores.
"""

import math

import numpy as np
import pytest
from scipy import stats
from study.small_runs import START, recorded

from mmairl.study.statistics.compare_rows import (
    compare_scores,
    holm,
    improvement,
    paired,
    unpaired,
    verdicts,
)
from mmairl.study.statistics.power import plan_seeds, power

# In this many studies, a rate of 5 % or 95 % has a standard error of 0.34 points.
STUDIES, ROWS = 4000, 7


def ladders(seeds: int, seed_effect: float, spread: np.ndarray | float = 1.0, steps: np.ndarray | float = 0.0):
    """Return scores (study, row, seed) of simulated studies in which each row is `steps` better than the previous one."""
    draw = np.random.default_rng(seeds)
    noise = draw.normal(size=(STUDIES, ROWS, seeds)) * np.broadcast_to(spread, ROWS)[:, None]
    rows = np.cumsum(np.broadcast_to(steps, ROWS))[:, None]
    return noise + rows + seed_effect * draw.normal(size=(STUDIES, 1, seeds))


def standard_error(share: float) -> float:
    return math.sqrt(share * (1 - share) / STUDIES)


@pytest.mark.parametrize('seeds', [2, 3, 5, 10])
@pytest.mark.parametrize('test', [paired, unpaired])
def test_intervals_cover_the_effect_in_95_percent(test, seeds):
    """Paired intervals have a coverage of exactly 95 %, also with seed effects.

    Unpaired intervals cover at least as often.
    """
    scores = ladders(seeds, 3.0 if test is paired else 0.0, steps=2.0)
    estimate, error, freedom = (values[:, 0] for values in test(scores[:, 1:], scores[:, :-1]))
    covered = (abs(estimate - 2.0) <= stats.t.ppf(0.975, freedom) * error).mean()
    assert covered >= 0.95 - 2 * standard_error(0.95)
    assert test is unpaired or covered <= 0.95 + 2 * standard_error(0.95)


@pytest.mark.parametrize('seeds, effect', [(3, 12.0), (5, 4.0), (10, 2.0)])
def test_planted_effect_is_found_with_stated_power(seeds, effect):
    """Only one of six comparisons has an effect.

    `power` is the power of the first step of Holm's correction. The later steps can only increase the power.
    """
    scores = ladders(seeds, 3.0, steps=np.array([0, 0, 0, effect, 0, 0, 0]))
    words = verdicts(*paired(scores[:, 1:], scores[:, :-1]), margin=1.0)
    promised = power(effect, math.sqrt(2), seeds, comparisons=6)
    assert promised > 0.5 and (words[:, 2] == 'differs').mean() >= promised - 2 * standard_error(promised)


def test_equal_rows_are_equivalent_marginal_ones_not():
    equal, apart = ladders(10, 3.0, spread=0.2), ladders(10, 3.0, spread=0.2, steps=1.0)
    # In `apart`, most verdicts are 'differs', which takes precedence over 'equivalent'. In `noisy`,
    # 'differs' is rare, so it cannot hide a wrong 'equivalent'.
    noisy = ladders(10, 3.0, spread=1.0, steps=1.0)
    for scores, test in (
        (equal, lambda share: share > 0.95),
        (apart, lambda share: share <= 0.05 + 2 * standard_error(0.05)),
        (noisy, lambda share: share <= 0.05 + 2 * standard_error(0.05)),
    ):
        words = verdicts(*paired(scores[:, 1:], scores[:, :-1]), margin=1.0)
        assert test((words == 'equivalent').any(-1).mean())


def test_t_tests_equal_those_of_scipy():
    draw = np.random.default_rng(0)
    one, two = draw.normal(size=5), draw.normal(size=5) + 1
    for ours, theirs in ((paired, stats.ttest_rel(one, two)), (unpaired, stats.ttest_ind(one, two, equal_var=False))):
        estimate, error, freedom = ours(one, two)
        assert estimate / error == pytest.approx(theirs.statistic) and freedom == 4
    # By hand, Holm's correction (1979) gives 0.01 x 4, 0.02 x 3, 0.03 x 2 and 0.04 x 1. The last value
    # is raised to the value before it.
    assert holm(np.array([0.03, 0.01, 0.04, 0.02])) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def record(*rows: list[float], starts: tuple[dict | None, ...] = (START, START)) -> dict:
    """Return a study in which each row builds on the previous one. The lists contain the scores of the rows."""
    names = [f'row {number}' for number in range(len(rows))]
    return dict(rows=[recorded(*row, on=on) for *row, on in zip(names, rows, starts, [None, *names])])


@pytest.mark.parametrize('start, blocks', [
    (START, True),
    ({**START, 'order': 'other'}, False),
    ({**START, 'order': None}, False),
    ({**START, 'weights': 'other'}, False),
    # Another network cannot start from the same weights, so only the order of images counts.
    ({**START, 'weights': 'other', 'shapes': 'other'}, True),
    (None, False),  # Earlier versions recorded neither the initial weights nor the order of images
])  # fmt: skip
def test_seeds_are_blocks_if_both_rows_start_alike(start, blocks):
    (comparison,) = compare_scores(record([41.0, 45.0, 49.0], [43.0, 47.1, 50.9], starts=(START, start)), 'knn', 1.0)
    assert comparison.blocks == blocks and comparison.verdict == ('higher' if blocks else 'inconclusive')
    assert comparison.estimate == pytest.approx(2.0)
    # The differences are 2.0, 2.1 and 1.9, whose standard deviation is 0.1.
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert not blocks or (comparison.low, comparison.high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert comparison.improvement[0] == pytest.approx(6 / 9)
    assert comparison.spread == pytest.approx([2, 2.1, 1.9] if blocks else [-2, 2.1, 5.9])


@pytest.mark.parametrize('one, two, verdict', [
    ([1.0], [3.0], 'not tested (one seed)'),
    ([1.0, 2.0], [3.0], 'not tested (one seed)'),
    ([1.0, 2.0], [2.0, 3.0], 'not tested (no spread)'),
    ([1.0, 2.0], [], 'not measured'),
    ([1.0, math.nan], [1.0, 2.0], 'not tested (one seed)'),
    # In both seeds, the rows differ in 7 of 2 400 images, so the differences have no spread.
    ([20 + 7 / 24, 29.0], [20 + 14 / 24, 29.0 + 7 / 24], 'not tested (no spread)'),
    ([41.0, 45.0, 49.0], [41.0, 45.1, 48.9], 'equivalent'),
    ([41.0, 45.0, 49.0], [42.0, 44.0, 55.0], 'inconclusive'),
    ([41.0, 45.0, 49.0], [46.0, 12.0, 55.0], 'not tested (collapsed runs)'),
])  # fmt: skip
def test_reason_is_given_without_a_verdict(one, two, verdict):
    (comparison,) = compare_scores(record(one, two), 'knn', 1.0)
    assert comparison.verdict == verdict
    assert (comparison.low is None) == (verdict in ('not measured', 'not tested (one seed)', 'not tested (no spread)'))
    plan_seeds([comparison], 1.0)


@pytest.mark.parametrize('row, verdict, share', [
    ([21.0, 19.5, 20.0, 20.5, 19.0], 'differs in how many runs collapse', 2 / 252),
    ([21.0, 19.5, 46.0, 43.1, 49.9], 'not tested (collapsed runs)', 4 / 9),
])  # fmt: skip
def test_collapsed_runs_are_counted_and_tested(row, verdict, share):
    study = record([41.0, 45.0, 49.0, 46.0, 44.0], row)
    study['rows'] += [
        recorded('pixels', [14.0], untrained='pixels'),
        recorded('random', [19.0, 21.0], untrained='random'),
    ]
    (study,) = compare_scores(study, 'knn', 1.0)
    assert (study.verdict, study.collapsed, study.share) == (
        verdict,
        (sum(score < 25 for score in row), 0),
        pytest.approx(share),
    )
    # The estimate uses only runs that have not collapsed.
    assert study.estimate == (None if verdict != 'not tested (collapsed runs)' else pytest.approx(0, abs=2))
    assert study.improvement[0] == pytest.approx(0.0 if verdict != 'not tested (collapsed runs)' else 8.5 / 25, abs=0.1)
    # The paired differences leave out the seeds of the two collapsed runs.
    assert study.spread == (() if verdict != 'not tested (collapsed runs)' else pytest.approx([-3.0, -2.9, 5.9]))


def test_collapse_limit_is_quarter_of_median_gain():
    """The untrained row scores 20, and the median of all other runs is 44.5.

    Runs below 20 + 24.5 / 4 = 26.125 have therefore collapsed.
    """
    study = record([41.0, 45.0, 49.0, 46.0, 44.0], [26.0, 27.0, 46.0, 43.1, 49.9])
    study['rows'].append(recorded('random', [19.0, 21.0], untrained='random'))
    (comparison,) = compare_scores(study, 'knn', 1.0)
    assert comparison.collapsed == (1, 0)


def test_improvement_of_separate_rows_has_an_interval():
    assert improvement([1, 2, 3], [4, 5]) == pytest.approx((0.0, 0.0, 1 - improvement([4, 5], [1, 2, 3])[1]))


@pytest.mark.parametrize('runs', [(2, 2), (2, 5), (3, 3), (3, 8), (5, 5)])
@pytest.mark.parametrize('effect', [0.0, 1.0])
def test_improvement_interval_covers_in_95_percent(runs, effect):
    draw = np.random.default_rng(0)
    true = stats.norm.cdf(effect / math.sqrt(2))
    one, two = (draw.normal(mean, size=(1000, count)) for mean, count in zip((effect, 0), runs))
    ends = np.array([improvement(*pair) for pair in zip(one, two)])
    assert ((ends[:, 1] <= true) & (true <= ends[:, 2])).mean() >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / 1000)
