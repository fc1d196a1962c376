"""The worth of tuning against counting by hand, and the rate of false verdicts with and without fresh runs."""

from itertools import combinations

import numpy as np
import pytest

from mmairl.study.numbers.statistics import DIFFERS, paired, verdicts
from mmairl.study.numbers.tuning import ahead_from, best_of, curve, forgiving


def test_the_expected_best_is_the_mean_over_all_choices_of_trials():
    published, others = 5.0, [3.0, 9.0, 4.0, 7.0]
    for drawn in range(5):
        by_hand = np.mean([max([published, *chosen]) for chosen in combinations(others, drawn)])
        assert best_of(published, others)[drawn] == pytest.approx(by_hand)


def test_the_curve_of_searches_is_their_mean_with_students_interval():
    searches = [np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.0]), np.array([3.0, 5.0])]
    first, second = curve(searches)
    assert (first['estimate'], second['estimate']) == (2.0, 3.0)
    assert first['high'] - first['estimate'] == pytest.approx(
        4.302653 / 3**0.5, rel=1e-6
    )  # t of two degrees of freedom
    assert curve(searches[:1]) == [dict(estimate=1.0), dict(estimate=2.0), dict(estimate=4.0)]


def test_a_row_is_ahead_from_the_number_of_trials_after_which_it_stays_so():
    behind = [np.array([10.0, 10.0, 10.0, 10.0]) + noise for noise in (0.0, 0.1, 0.2)]
    rising = [np.array([9.0, 14.0, 10.05, 13.0]) + noise for noise in (0.0, 0.2, 0.1)]
    assert ahead_from(rising, behind, 0.05) == 4
    assert ahead_from(behind, rising, 0.05) is None
    assert ahead_from(rising[:1], behind, 0.05) is None


def test_the_forgiving_share_counts_trials_near_the_best():
    assert forgiving([80.0, 79.2, 70.0, 60.0], 1.0) == 0.5


STUDIES, MOST = 8000, 0.05 + 3 * (0.05 * 0.95 / 8000) ** 0.5


def searched(
    rng: np.random.Generator, searches: int, trials: int, sharp: float, place: float
) -> tuple[np.ndarray, ...]:
    """Simulate searches whose score falls with the square of the distance to `place`, and return the score by which the
    best trial was chosen, and that of its fresh run. The first trial is the published value, 0; a run spreads by 2.8 points.
    """
    points = rng.uniform(-1, 1, (STUDIES, searches, trials))
    points[..., 0] = 0
    true = 80 - sharp * (points - place) ** 2
    tried = true + rng.normal(0, 2.8, true.shape)
    best = tried.argmax(-1)[..., None]
    fresh = np.take_along_axis(true, best, -1) + rng.normal(0, 2.8, best.shape)
    return np.take_along_axis(tried, best, -1)[..., 0], fresh[..., 0]


def false_alarms(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.mean(verdicts(*(of[:, None] for of in paired(one, two)), margin=1.0) == DIFFERS))


@pytest.mark.parametrize('searches,naive', [(3, 0.3), (5, 0.7)])
def test_equal_methods_with_1_and_20_trials_differ_no_more_than_promised_by_fresh_runs(searches, naive):
    rng = np.random.default_rng(searches)
    few, many = (searched(rng, searches, trials, 0.0, 0.0) for trials in (1, 20))
    assert false_alarms(few[1], many[1]) < MOST
    assert false_alarms(few[0], many[0]) > naive  # the rule that compares best trials by the scores that chose them


@pytest.mark.parametrize('searches', [3, 5])
def test_methods_that_differ_in_how_much_tuning_they_need_differ_no_more_than_promised_once_they_had_it(searches):
    """One row forgives any value; the other's published value is far from a sharp peak that is as high."""
    rng = np.random.default_rng(searches)
    forgiving_row, sharp_row = (searched(rng, searches, 20, *response) for response in ((1.0, 0.0), (20.0, 0.7)))
    assert false_alarms(forgiving_row[1], sharp_row[1]) < MOST
    assert false_alarms(forgiving_row[0], sharp_row[0]) > 0.1
    few, as_few = (searched(rng, searches, 4, 20.0, place)[1] for place in (0.7, -0.7))
    assert false_alarms(few, as_few) < MOST
