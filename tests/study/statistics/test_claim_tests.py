"""Test statistical tests of claims: they agree with comparisons of rows and with least squares, and have the stated error
rates in simulations.
"""

import numpy as np
import pytest

from mmairl.study.statistics.claim_tests import (
    CONTRADICTED,
    INCONCLUSIVE,
    SUPPORTED,
    Contrast,
    Evidence,
    above,
    all_hold,
    collapse_rate,
    family_verdicts,
    most_hold,
    parallel_lines,
    sum_of_means,
    within,
)
from mmairl.study.statistics.compare_rows import paired, unpaired

STUDIES = 1500
# A simulated error rate may exceed 5 % by three of its standard errors.
LIMIT = 0.05 + 3 * np.sqrt(0.05 * 0.95 / STUDIES)
RANDOM = np.random.default_rng


@pytest.mark.parametrize('blocks', [True, False])
def test_contrast_of_two_rows_is_the_t_test(blocks):
    values = RANDOM(0).normal(size=(2, 5)) * [[1], [4]]
    contrast = row_contrast(values, [1, -1], blocks)
    estimate, error, freedom = (paired if blocks else unpaired)(*values)
    assert contrast == Contrast(pytest.approx(estimate), pytest.approx(error), freedom, 5)


def test_contrast_counts_only_runs_that_exist():
    values = np.array([[1.0, 2.0, np.nan], [0.0, 1.0, 5.0]])
    assert row_contrast(values, [1, -1], False).seeds == 2
    assert np.isnan(row_contrast(values[:, :1], [1, -1], False).error)


def row_contrast(values, weights, blocks):
    return sum_of_means(np.array(weights)[:, None] * values, blocks)


def false_verdicts(simulate, rule):
    """Return the fraction of simulated studies whose claim gets a verdict, although the true means are on the claim's
    boundary.
    """
    random = RANDOM(1)
    return np.mean([family_verdicts([rule(simulate(random))])[0] != INCONCLUSIVE for _ in range(STUDIES)])


@pytest.mark.parametrize('seeds', [2, 8])
@pytest.mark.parametrize('spread', [1, 16])
@pytest.mark.parametrize(
    ('weights', 'means', 'rule'),
    [
        ([1, -1], [2, 2], above),
        ([1, -1], [3, 2], lambda contrast: within(contrast, 1.0)),
        ([1, -1], [1, 2], lambda contrast: above(contrast, -1.0)),
        ([1, -1, -1, 1], [4, 1, 5, 2], above),
        ([1], [3], lambda contrast: above(contrast.shifted(-3.0))),
    ],
    ids=['difference', 'equivalence', 'not_worse', 'interaction', 'rival'],
)
def test_error_rate_on_the_boundary_is_at_most_five(weights, means, rule, spread, seeds):
    spreads = np.where(np.arange(len(means)) == 0, spread, 1.0)[:, None]

    def simulate(random):
        values = np.array(means, float)[:, None] + spreads * random.normal(size=(len(means), seeds))
        return row_contrast(values, weights, blocks=False)

    assert false_verdicts(simulate, rule) <= LIMIT


def test_largest_error_rate_when_two_steps_tie():
    def simulate(random):
        values = np.array([[0.0], [2.0], [4.0], [4.5]]) + random.normal(size=(4, 5))
        return [row_contrast(values, weights, False) for weights in ([1, -2, 1, 0], [0, -1, 2, -1])]

    def rule(contrasts):
        return all_hold([above(contrast) for contrast in contrasts])

    assert false_verdicts(simulate, rule) <= LIMIT


@pytest.mark.parametrize('true', [0, 1, 2])
def test_most_error_rate_with_dependent_scores(true):
    """The three scores share most of their noise. The claim 'most scores improve' is true if at least two improve."""

    def simulate(random):
        shared = random.normal(size=(2, 4))
        parts = []
        for score in range(3):
            values = 0.9 * shared + 0.4 * random.normal(size=(2, 4))
            values[0] += 9.0 if score < true else 0.0
            parts.append(above(row_contrast(values, [1, -1], False)))
        return parts

    verdicts = [family_verdicts([most_hold(simulate(random))])[0] for random in map(RANDOM, range(STUDIES))]
    if true < 2:
        assert np.mean([verdict == SUPPORTED for verdict in verdicts]) <= LIMIT
    else:
        assert np.mean([verdict == CONTRADICTED for verdict in verdicts]) <= LIMIT
        assert np.mean([verdict == SUPPORTED for verdict in verdicts]) > 0.9


@pytest.mark.parametrize('claimed', [True, False])
def test_collapse_error_rate_at_one_half(claimed):
    verdicts = [collapse_rate(RANDOM(study).binomial(6, 0.5), 6, claimed) for study in range(STUDIES)]
    assert np.mean([one.p < 0.05 for one in verdicts]) <= LIMIT


def test_six_collapsed_runs_are_needed():
    assert collapse_rate(5, 5, True).p > 0.05 > collapse_rate(6, 6, True).p


SLOPE, SECOND_LESS_FIRST = np.eye(3)[0], np.array([0, -1, 1])


@pytest.mark.parametrize('claimed', ['slope', 'intercept'])
def test_regression_error_rate_without_an_effect(claimed):
    groups = np.repeat([0, 1], 5)

    def simulate(random):
        x = random.normal(size=10) + groups
        y = random.normal(size=10) + (x if claimed == 'intercept' else 2 * groups)
        return parallel_lines(x, y, groups, SLOPE if claimed == 'slope' else SECOND_LESS_FIRST)

    assert false_verdicts(simulate, above) <= LIMIT


def test_regression_equals_least_squares():
    random = RANDOM(2)
    groups = np.repeat([0, 1, 2], 4)
    x = random.normal(size=12)
    y = 1.5 * x + np.array([1.0, 3.0, -1.0])[groups] + 1e-3 * random.normal(size=12)
    for weights, value in (([1, 0, 0, 0], 1.5), ([0, 0, 1, -1], 4.0)):
        assert parallel_lines(x, y, groups, np.array(weights)).estimate == pytest.approx(value, abs=0.01)


def test_family_error_rate_with_dependent_claims():
    """Ten claims without a true effect concern three rows, so they share runs and thus noise."""
    random = RANDOM(3)
    wrong = 0
    for _ in range(STUDIES):
        values = random.normal(size=(3, 5)) * [[1], [2], [4]]
        pairs = [(1, -1, 0), (0, 1, -1), (1, 0, -1), (1, -2, 1), (-1, 1, 0)]
        family = [above(row_contrast(values, weights, False)) for weights in pairs]
        family += [above(row_contrast(values**3, weights, False)) for weights in pairs]
        wrong += any(verdict != INCONCLUSIVE for verdict in family_verdicts(family))
    assert wrong / STUDIES <= LIMIT


def test_claims_without_evidence_count_as_inconclusive():
    decided = Evidence(support=0.02)
    assert family_verdicts([decided]) == [SUPPORTED]
    assert family_verdicts([decided, Evidence(reason='one seed')]) == [INCONCLUSIVE, INCONCLUSIVE]


def test_contrast_with_more_seeds_has_a_smaller_error():
    contrast = Contrast(estimate=1.0, error=1.0, freedom=2.0, seeds=3)
    assert contrast.at(12) == Contrast(1.0, pytest.approx(0.5), 11.0, 12)
