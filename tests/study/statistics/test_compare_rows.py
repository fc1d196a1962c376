"""Differences of rows and effects of factors, from records of studies."""

from itertools import product

import numpy as np
import pytest
import scipy.stats

from mmairl.study.statistics.compare import (
    are_paired,
    factor_effects,
    row_effects,
    same_start,
    scores_by_row,
)
from mmairl.study.statistics.contrasts import COLLAPSED, ONE_SEED

START = dict(weights='a', shapes='b', order='c')


def row(name, scores, on=None, start=START, collapsed=()):
    runs = []
    for seed, score in enumerate(scores):
        state = 'missing' if score is None else 'done'
        runs.append(
            dict(
                seed=seed,
                state=state,
                scores={'knn': score},
                start=start,
                collapsed=seed in collapsed,
            )
        )
    return dict(name=name, on=on, runs=runs)


def crossed(scores, levels=None, paired=True, **changes):
    levels = levels or list(product((0, 1), repeat=2))
    rows = [
        row(
            str(number),
            values,
            start=START if paired else None,
            **changes.get(str(number), {}),
        )
        for number, values in enumerate(scores)
    ]
    names = [str(number) for number in range(len(levels))]
    return dict(
        rows=rows,
        design=dict(factors=list('abc')[: len(levels[0])], rows=dict(zip(names, levels))),
    )


@pytest.mark.parametrize(
    'change, paired',
    [
        ({}, True),
        (dict(order='other'), False),
        (dict(order=None), False),
        (dict(weights='other'), False),
        (dict(weights='other', shapes='other'), True),
    ],
)
def test_pairing_uses_recorded_order_and_weights(change, paired):
    study = dict(rows=[row('a', [1, 2]), row('b', [1, 2], start={**START, **change})])
    assert are_paired(study, ['a', 'b'], 'knn') == paired


def test_runs_without_a_record_are_not_paired():
    assert not same_start(START, None)


def test_missing_and_infinite_scores_are_left_out():
    study = dict(rows=[row('a', [1.0, None, float('nan'), float('inf'), 5.0])])
    assert scores_by_row(study, 'knn') == {'a': {0: 1.0, 4: 5.0}}


def test_rows_are_compared_with_their_base_rows():
    one, two, three = [30, 31, 33], [20, 22, 21], [40, 39, 38.5]
    study = dict(rows=[row('a', one), row('b', two, 'a'), row('c', three, 'a')])
    effects = row_effects(study, 'knn', 1.0)
    expected = [scipy.stats.ttest_rel(scores, one).pvalue for scores in (two, three)]
    assert [effect.p_differs() for effect in effects] == pytest.approx(expected)


def test_main_effect_equals_the_difference_of_means():
    scores = np.random.default_rng(0).normal(30, 2, (4, 3))
    a, b = factor_effects(crossed(scores.tolist()), 'knn', 1.0)
    means = scores.mean(1)
    assert a.estimate == pytest.approx((means[2] + means[3] - means[0] - means[1]) / 2)
    assert b.estimate == pytest.approx((means[1] + means[3] - means[0] - means[2]) / 2)


def test_unpaired_error_adds_the_variances_of_rows():
    scores = np.random.default_rng(1).normal(30, 2, (4, 3))
    a, _ = factor_effects(crossed(scores.tolist(), paired=False), 'knn', 1.0)
    variances = scores.var(1, ddof=1)
    assert a.error == pytest.approx(np.sqrt(sum(variances / 3)) / 2)
    parts = variances / 3
    assert a.freedom == pytest.approx(min(sum(parts) ** 2 / sum(parts**2 / 2), 2 * np.log2(4) / 2))


def test_paired_error_leaves_out_the_effects_of_seeds():
    scores = np.random.default_rng(2).normal(30, 1, (4, 3))
    shifted = scores + np.array([0, 50, -20])
    errors = [factor_effects(crossed(s.tolist()), 'knn', 1.0)[0].error for s in (scores, shifted)]
    assert errors[0] == pytest.approx(errors[1])


def test_effects_use_the_seeds_that_all_rows_have():
    scores = [[30, 31, 32], [33, 35, None], [30, 30, 31], [36, 38, 37]]
    a, _ = factor_effects(crossed(scores), 'knn', 1.0)
    assert len(a.by_seed) == 2


def test_missing_row_is_named():
    a, _ = factor_effects(crossed([[30], [31], [32], []]), 'knn', 1.0)
    assert a.verdict == 'not estimable without 3'


def test_one_seed_has_no_verdict():
    a, _ = factor_effects(crossed([[30], [31], [32], [34]]), 'knn', 1.0)
    assert a.verdict == ONE_SEED and a.estimate == 2.5


def test_collapsed_runs_leave_factors_untested():
    study = crossed([[30, 31, 32]] * 4, **{'3': dict(collapsed={0, 1, 2})})
    a, _ = factor_effects(study, 'knn', 1.0)
    assert (a.verdict, a.estimate, a.collapsed) == (COLLAPSED, None, (3, 0))
