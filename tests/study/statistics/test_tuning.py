"""The worth of tuning against counting by hand."""

from itertools import combinations

import numpy as np
import pytest

from mmairl.study.statistics.tuning import best_of, curve, fraction_within, worth
from projects.normrescale.simulate import coverage


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


def test_the_fraction_within_share_counts_trials_near_the_best():
    assert fraction_within([80.0, 79.2, 70.0, 60.0], 1.0) == 0.5


def test_trials_chosen_on_some_images_are_reported_on_others():
    choose, report = [5.0, 3.0, 9.0, 4.0, 7.0], [50.0, 30.0, 20.0, 40.0, 70.0]
    for drawn in range(5):
        chosen = [max((0, *others), key=choose.__getitem__) for others in combinations(range(1, 5), drawn)]
        by_hand = np.mean([report[trial] for trial in chosen])
        assert best_of(choose[0], choose[1:], report)[drawn] == pytest.approx(by_hand)


@pytest.mark.parametrize('target, trials', [(50, 0), (55, 1), (69, 5), (71, None)])
def test_the_worth_is_the_number_of_trials_after_which_tuning_catches_up(target, trials):
    tuned = [[[score] * 2 for score in (50, 40, 70, 60, 30, 20)]] * 3
    found = worth(tuned, [[target] * 2] * 3)
    assert found.trials == trials and found.most == 5 and found.target == target
    assert (found.low, found.high) == (0, None)  # what three seeds that are alike may hide is not known


def test_luck_on_the_images_that_choose_is_no_worth():
    random = np.random.default_rng(0)
    lucky = 50 + random.normal(0, 5, (40, 9, 2))  # no trial is better than another
    found = worth(lucky, np.full((40, 2), 53.0))
    assert found.trials is found.low is None and max(found.curve) < 52


@pytest.mark.parametrize('case', ['as good', 'a lower rate does it', 'seeds differ much'])
def test_the_interval_of_the_worth_holds_the_truth_of_simulated_studies_of_three_seeds(case):
    assert coverage(case, 3, studies=150)['holds'] > 0.9


def test_enough_seeds_decide_what_no_rate_does():
    assert coverage('no rate does it', 10, studies=50)['decided'] > 0.4
