"""The expected score of the best trial equals the mean over all choices of trials."""

from itertools import combinations

import numpy as np
import pytest

from mmairl.study.statistics.tuning import best_of, curve, fraction_within


def test_expected_best_is_the_mean_over_all_choices():
    published, others = 5.0, [3.0, 9.0, 4.0, 7.0]
    for size in range(5):
        by_hand = np.mean([max([published, *chosen]) for chosen in combinations(others, size)])
        assert best_of(published, others)[size] == pytest.approx(by_hand)


def test_curve_is_the_mean_with_a_t_interval():
    searches = [np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.0]), np.array([3.0, 5.0])]
    first, second = curve(searches)
    assert (first['estimate'], second['estimate']) == (2.0, 3.0)
    # 4.302653 is the 97.5 % quantile of t with two degrees of freedom.
    assert first['high'] - first['estimate'] == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert curve(searches[:1]) == [dict(estimate=1.0), dict(estimate=2.0), dict(estimate=4.0)]


def test_fraction_within_counts_trials_near_the_best():
    assert fraction_within([80.0, 79.2, 70.0, 60.0], 1.0) == 0.5


def test_chosen_trials_are_reported_on_other_images():
    choose, report = [5.0, 3.0, 9.0, 4.0, 7.0], [50.0, 30.0, 20.0, 40.0, 70.0]
    for size in range(5):
        chosen = [max((0, *others), key=choose.__getitem__) for others in combinations(range(1, 5), size)]
        by_hand = np.mean([report[trial] for trial in chosen])
        assert best_of(choose[0], choose[1:], report)[size] == pytest.approx(by_hand)
