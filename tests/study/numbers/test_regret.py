"""Regret by hand, and how often a measure that knows nothing is trusted."""

import numpy as np
import pytest

from mmairl.study.numbers.regret import TRUSTED, USELESS, best_trusted, judge, regrets, resampled, words


def test_regret_is_the_best_less_the_picked_and_ties_share():
    scores = np.array([50.0, 60, 40])
    assert regrets(scores, np.array([1.0, 0, 2])) == 20 and regrets(scores, scores) == 0
    assert regrets(scores, np.array([2.0, 0, 2])) == 15
    assert regrets(scores, np.full(3, -np.inf)) == pytest.approx(10)  # a measure without a value picks at random
    low, high = resampled([(scores, -scores)] * 4)
    assert 0 <= low < 20 == high


def test_a_false_word_is_said_of_one_situation_in_twenty_at_most():
    """Each of 20 measures is within the margin in exactly half of all choices: neither word is true."""
    rng = np.random.default_rng(0)
    said = [words(rng.binomial(15, 0.5, 20), [15] * 20, [0.0] * 20, 1.0) for _ in range(2000)]
    for word in (TRUSTED, USELESS):
        assert np.mean([word in of for of in said]) <= 0.05
    naive = np.mean((rng.binomial(15, 0.5, (2000, 20)) >= 12).any(1))  # each at 5 %, uncorrected
    assert naive > 0.25


def test_a_measure_that_knows_is_trusted_and_one_that_errs_is_not():
    rng = np.random.default_rng(0)
    scores = [rng.normal(60, 5, 6) for _ in range(12)]
    noise = {str(number): [(s, rng.normal(size=6)) for s in scores] for number in range(10)}
    cells = judge(
        dict(noise, knows=[(s, s + rng.normal(0, 0.1, 6)) for s in scores], errs=[(s, -s) for s in scores]), 1.0
    )
    assert best_trusted(cells) == 'knows' and cells['errs']['word'] == USELESS
    assert cells['knows']['correlation'] > 0.9 and cells['errs']['correlation'] == pytest.approx(-1)
    assert cells['errs']['low'] < cells['errs']['regret'] <= cells['errs']['high'] + 3
    assert best_trusted(judge({'knows': [(s, s) for s in scores[:3]]}, 1.0)) is None  # three choices show nothing
    rare = [(s, np.where(s == s.min(), 99, s) if number < 2 else s) for number, s in enumerate(scores)]
    assert (
        judge({'rare': rare}, 1.0)['rare']['word'] != TRUSTED
    )  # mostly right, and far off in between: the mean says so
