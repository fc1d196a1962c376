"""The worth of tuning against counting by hand."""

from itertools import combinations

import numpy as np
import pytest

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
