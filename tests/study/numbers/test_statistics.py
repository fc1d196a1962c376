"""Verdicts that hold: false alarms, coverage and power by simulation, and the words that a study gets."""

import math

import numpy as np
import pytest
from scipy import stats
from study.small_runs import START, recorded

from mmairl.study.numbers.statistics import (
    compare,
    holm,
    paired,
    plan_seeds,
    power,
    seeds_for,
    verdicts,
    visible_effect,
    welch,
)

STUDIES, ROWS = 4000, 7  # the Monte Carlo error of a share of 5 % is 0.34 points, of 95 % as well
UNEQUAL = np.array([2.6, 0.7, 2.2, 4.7, 6.0, 4.5, 1.6])  # the spreads of the demo's ladder


def ladders(seeds: int, seed_effect: float, spread: np.ndarray | float = 1.0, steps: np.ndarray | float = 0.0):
    """Scores (study, row, seed) of simulated ladders; each row is `steps` above the one before."""
    draw = np.random.default_rng(seeds)
    noise = draw.normal(size=(STUDIES, ROWS, seeds)) * np.broadcast_to(spread, ROWS)[:, None]
    rows = np.cumsum(np.broadcast_to(steps, ROWS))[:, None]
    return noise + rows + seed_effect * draw.normal(size=(STUDIES, 1, seeds))


def standard_error(share: float) -> float:
    return math.sqrt(share * (1 - share) / STUDIES)


@pytest.mark.parametrize('spread', [1.0, UNEQUAL], ids=['equal', 'unequal'])
@pytest.mark.parametrize('seed_effect', [0.0, 3.0])
@pytest.mark.parametrize('seeds', [2, 3, 5, 10])
@pytest.mark.parametrize('test', [paired, welch])
def test_a_ladder_without_effects_raises_a_false_alarm_in_at_most_one_of_twenty(test, seeds, seed_effect, spread):
    scores = ladders(seeds, seed_effect, spread)
    words = verdicts(*test(scores[:, 1:], scores[:, :-1]), margin=1.0)
    assert (words == 'differs').any(-1).mean() <= 0.05 + 2 * standard_error(0.05)


@pytest.mark.parametrize('seeds', [2, 3, 5, 10])
@pytest.mark.parametrize('test', [paired, welch])
def test_an_interval_covers_the_effect_in_nineteen_of_twenty(test, seeds):
    """The paired one exactly, with seed effects as well; Welch's at least so often."""
    scores = ladders(seeds, 3.0 if test is paired else 0.0, steps=2.0)
    estimate, error, freedom = (values[:, 0] for values in test(scores[:, 1:], scores[:, :-1]))
    covered = (abs(estimate - 2.0) <= stats.t.ppf(0.975, freedom) * error).mean()
    assert covered >= 0.95 - 2 * standard_error(0.95)
    assert test is welch or covered <= 0.95 + 2 * standard_error(0.95)


@pytest.mark.parametrize('seeds, effect', [(3, 12.0), (5, 4.0), (10, 2.0)])
def test_a_planted_effect_is_found_as_often_as_promised(seeds, effect):
    """One step of six; the others are nothing. Holm's later steps only add to the power of its first."""
    scores = ladders(seeds, 3.0, steps=np.array([0, 0, 0, effect, 0, 0, 0]))
    words = verdicts(*paired(scores[:, 1:], scores[:, :-1]), margin=1.0)
    promised = power(effect, math.sqrt(2), seeds, blocks=True, comparisons=6)
    assert promised > 0.5 and (words[:, 2] == 'differs').mean() >= promised - 2 * standard_error(promised)


def test_rows_that_are_equal_are_found_equivalent_and_those_at_the_margin_are_not():
    equal, apart = ladders(10, 3.0, spread=0.2), ladders(10, 3.0, spread=0.2, steps=1.0)
    for scores, test in (
        (equal, lambda share: share > 0.95),
        (apart, lambda share: share <= 0.05 + 2 * standard_error(0.05)),
    ):
        words = verdicts(*paired(scores[:, 1:], scores[:, :-1]), margin=1.0)
        assert test((words == 'equivalent').any(-1).mean())


def test_the_tests_are_those_of_the_textbook():
    draw = np.random.default_rng(0)
    one, two = draw.normal(size=5), draw.normal(size=5) + 1
    for ours, theirs in ((paired, stats.ttest_rel(one, two)), (welch, stats.ttest_ind(one, two, equal_var=False))):
        estimate, error, freedom = ours(one, two)
        assert estimate / error == pytest.approx(theirs.statistic) and freedom == pytest.approx(theirs.df)
    # Holm (1979) by hand: 0.01 x 4, then 0.02 x 3, 0.03 x 2 and 0.04 x 1, each no smaller than the one before
    assert holm(np.array([0.03, 0.01, 0.04, 0.02])) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_the_seeds_that_are_planned_are_the_fewest_with_the_power():
    wanted = seeds_for(2.0, 1.5, True, 6)
    assert power(2.0, 1.5, wanted, True, 6) >= 0.8 > power(2.0, 1.5, wanted - 1, True, 6)
    assert power(visible_effect(1.5, 5, True, 6), 1.5, 5, True, 6) == pytest.approx(0.8, abs=1e-6)
    assert seeds_for(0.001, 10.0, True, 6) is None
    assert seeds_for(5.0, 1.0, True, 6) == 4  # with three, scipy has NaN for the chance to find it on the wrong side


def record(*rows: list[float], starts: tuple[dict | None, ...] = (START, START)) -> dict:
    """A study whose rows have these scores, each built on the one before."""
    names = [f'row {number}' for number in range(len(rows))]
    return dict(rows=[recorded(*of, on=on) for *of, on in zip(names, rows, starts, [None, *names])])


@pytest.mark.parametrize('start, blocks', [
    (START, True),
    ({**START, 'order': 'other'}, False),
    ({**START, 'order': None}, False),
    ({**START, 'weights': 'other'}, False),
    ({**START, 'weights': 'other', 'shapes': 'other'}, True),  # another network cannot start from the same weights
    (None, False),  # runs of before this was recorded
])  # fmt: skip
def test_seeds_are_blocks_only_where_they_mean_the_same_in_both_rows(start, blocks):
    (found,) = compare(record([1.0, 5.0, 9.0], [3.0, 7.1, 10.9], starts=(START, start)), 'knn', 1.0)
    assert found.blocks == blocks and found.verdict == ('differs' if blocks else 'undecided')
    assert found.estimate == pytest.approx(2.0)
    # by hand: differences of 2.0, 2.1 and 1.9 have a standard deviation of 0.1
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert not blocks or (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert found.better > 0.999 if blocks else 0.5 < found.better < 0.95


@pytest.mark.parametrize('one, two, verdict', [
    ([1.0], [3.0], 'one seed: no verdict'),
    ([1.0, 2.0], [3.0], 'one seed: no verdict'),
    ([1.0, 2.0], [2.0, 3.0], 'no spread: no verdict'),
    ([1.0, 2.0], [], 'not measured'),
    ([1.0, math.nan], [1.0, 2.0], 'one seed: no verdict'),
    ([1.0, 5.0, 9.0], [1.0, 5.1, 8.9], 'equivalent'),
    ([1.0, 5.0, 9.0], [2.0, 4.0, 15.0], 'undecided'),
])  # fmt: skip
def test_what_cannot_be_told_is_said(one, two, verdict):
    (found,) = compare(record(one, two), 'knn', 1.0)
    assert found.verdict == verdict
    assert (found.low is None) == ('no' in verdict.split() or verdict == 'not measured')
    plan_seeds([found], 1.0)
