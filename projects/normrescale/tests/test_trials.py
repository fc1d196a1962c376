"""Compare `trial_benefit` with counts by hand, and the coverage of its interval with 95 % in simulated studies."""

import numpy as np
import pytest

from projects.normrescale.simulate import coverage
from projects.normrescale.trials import trial_benefit


@pytest.mark.parametrize('target, trials', [(50, 0), (55, 1), (69, 5), (71, None)])
def test_benefit_is_the_trials_until_tuning_catches_up(target, trials):
    tuned = [[[score] * 2 for score in (50, 40, 70, 60, 30, 20)]] * 3
    benefit = trial_benefit(tuned, [[target] * 2] * 3)
    assert (benefit.trials, benefit.most, benefit.target) == (trials, 5, target)
    # The three seeds have equal scores, so their variance cannot be estimated and the interval is as wide as possible.
    assert (benefit.low, benefit.high) == (0, None)


def test_luck_on_the_choosing_images_is_no_benefit():
    random = np.random.default_rng(0)
    lucky = 50 + random.normal(0, 5, (40, 9, 2))  # no trial is better than another
    benefit = trial_benefit(lucky, np.full((40, 2), 53.0))
    assert benefit.trials is benefit.low is None and max(benefit.curve) < 52


@pytest.mark.parametrize('case', ['equally good', 'a lower rate suffices', 'seeds differ much'])
def test_interval_covers_simulated_truths(case):
    assert coverage(case, 3, studies=150)['holds'] > 0.9


def test_enough_seeds_decide():
    assert coverage('no rate suffices', 10, studies=50)['decided'] > 0.4
