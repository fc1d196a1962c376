"""Compare contrasts with scipy, and check their verdicts."""

import numpy as np
import pytest
import scipy.stats

from mmairl.study.statistics.contrasts import (
    COLLAPSED,
    EQUIVALENT,
    HIGHER,
    INCONCLUSIVE,
    LEVEL,
    LOWER,
    MORE_COLLAPSES,
    NO_SPREAD,
    NOT_MEASURED,
    ONE_SEED,
    POWER,
    Effect,
    contrast,
    decide,
    holm,
    seeds_needed,
)


def table(*rows, first_seed=0):
    return {name: dict(enumerate(scores, first_seed)) for name, scores in zip('abcd', rows)}


def difference(*rows, paired=False, collapsed=None):
    return contrast(dict(a=1, b=-1), table(*rows), paired, collapsed)


def draws(*sizes, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.normal(30, scale, size).tolist() for size, scale in zip(sizes, (1, 2, 3, 4))]


def test_paired_rows_use_the_paired_t_test():
    one, two = draws(5, 5)
    effect = difference(one, two, paired=True)
    expected = scipy.stats.ttest_rel(one, two)
    assert effect.p_differs() == pytest.approx(expected.pvalue)
    assert (effect.low, effect.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_paired_rows_use_shared_seeds_only():
    scores = dict(a={0: 1.0, 1: 4.0, 2: 9.0}, b={1: 1.0, 2: 3.0, 3: 50.0})
    effect = contrast(dict(a=1, b=-1), scores, paired=True)
    assert effect.by_seed == (3.0, 6.0)


def test_unpaired_rows_use_the_smaller_freedom():
    one, two = draws(3, 5)
    effect = difference(one, two)
    welch = scipy.stats.ttest_ind(one, two, equal_var=False)
    p = 2 * scipy.stats.t.sf(abs(welch.statistic), 2)
    assert effect.freedom == 2
    assert effect.p_differs() == pytest.approx(p)


def test_contrast_of_four_unpaired_rows():
    rows = draws(3, 4, 5, 3)
    weights = dict(a=1, b=-1, c=-0.5, d=2)
    effect = contrast(weights, table(*rows), paired=False)
    means = [np.mean(row) for row in rows]
    squares = [w**2 * np.var(row, ddof=1) / len(row) for w, row in zip(weights.values(), rows)]
    assert effect.estimate == pytest.approx(np.dot(list(weights.values()), means))
    assert effect.error == pytest.approx(np.sqrt(sum(squares)))
    assert np.mean(effect.by_seed) == pytest.approx(effect.estimate)


def test_equivalence_is_two_one_sided_tests():
    one, two = draws(6, 6)
    effect = difference(one, two, paired=True)
    gaps = np.subtract(one, two)
    below = scipy.stats.ttest_1samp(gaps, 5, alternative='less').pvalue
    above = scipy.stats.ttest_1samp(gaps, -5, alternative='greater').pvalue
    assert effect.p_within(5.0) == pytest.approx(max(below, above))


def test_holm_equals_the_step_down_definition():
    assert holm([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.9])


def test_collapsed_runs_never_enter_means():
    effect = difference([30, 31, 2], [20, 21, 22], collapsed=dict(a={2}))
    assert effect.estimate is None and effect.by_seed == ()
    assert effect.collapsed == (1, 0)
    assert decide([effect], 1.0)[0].verdict == COLLAPSED


def test_collapses_are_compared_by_fisher_test():
    effect = difference([1.0] * 6, draws(6)[0], collapsed=dict(a=range(6)))
    expected = scipy.stats.fisher_exact([[6, 0], [0, 6]]).pvalue
    assert effect.p_differs() == pytest.approx(expected)
    assert decide([effect], 1.0)[0].verdict == MORE_COLLAPSES


@pytest.mark.parametrize(
    'rows, verdict',
    [
        (([30, 31, 32], [20, 21.1, 22]), HIGHER),
        (([20, 21.1, 22], [30, 31, 32]), LOWER),
        (([20, 21, 22.01], [20, 21, 22]), EQUIVALENT),
        (([20, 25, 22], [20, 21, 25]), INCONCLUSIVE),
        (([30.0], [20.0]), ONE_SEED),
        (([30, 31], [20, 21]), NO_SPREAD),
        (([], [20, 21]), NOT_MEASURED),
    ],
)
def test_verdict(rows, verdict):
    assert decide([difference(*rows, paired=True)], 1.0)[0].verdict == verdict


def test_untested_effects_count_toward_the_family():
    effect = difference([30, 31, 32.2], [28.1, 28.9, 30], paired=True)
    alone, *_ = decide([effect], None)
    among, *_ = decide([effect, *[Effect(verdict=ONE_SEED)] * 30], None)
    assert (alone.verdict, among.verdict) == (HIGHER, INCONCLUSIVE)


def test_needed_seeds_reach_the_power():
    """The power is that of a noncentral t-test with Bonferroni's correction."""
    rows = dict(a={0: 32.0, 1: 33.5, 2: 31.0}, b={0: 30.0, 1: 31.0, 2: 30.5})
    effect = contrast(dict(a=1, b=-1), rows, paired=True)
    seeds = seeds_needed(effect, family=9)
    shift = effect.estimate / effect.error * np.sqrt(seeds / 3)
    limit = scipy.stats.t.isf(LEVEL / 18, seeds - 1)
    assert scipy.stats.nct.sf(limit, seeds - 1, shift) >= POWER
