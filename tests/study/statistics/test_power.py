"""The power of comparisons, against simulation and statsmodels' definition of a noncentral t-test."""

import numpy as np
import pytest
import scipy.stats

from mmairl.study.statistics.contrasts import LEVEL, contrast
from mmairl.study.statistics.power import POWER, power, seeds_needed


@pytest.fixture
def effect():
    rows = dict(a={0: 32.0, 1: 33.5, 2: 31.0}, b={0: 30.0, 1: 31.0, 2: 30.5})
    return contrast(dict(a=1, b=-1), rows, paired=True)


def test_power_agrees_with_simulation():
    draw = np.random.default_rng(0)
    gaps = draw.normal(2.0, 1.5, (20_000, 4))
    found = scipy.stats.ttest_1samp(gaps, 0, axis=1).pvalue < LEVEL / 3
    assert power(2.0, 1.5 / 2, 3, family=3) == pytest.approx(found.mean(), abs=0.01)


def test_needed_seeds_reach_the_power(effect):
    needed = seeds_needed(effect, family=9)
    spread = effect.error * np.sqrt(3)
    powers = [power(effect.estimate, spread / np.sqrt(n), n - 1, 9) for n in (needed - 1, needed)]
    assert powers[0] < POWER <= powers[1]
