"""Test projects/verdicts/forks.py on invented scores with known effects.

A whole run has a changed config from the start. A fork continues a checkpoint of an unchanged run, the trunk, with the changed
config. Effects are differences in score from the trunk.
"""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from mmairl.errors import UserError
from mmairl.io import read_json
from projects.verdicts.forks import (
    agreement,
    false_alarms,
    intervals,
    null_differences,
    read_factors,
    tables,
)

# For each changed key of the config, its effect in whole runs.
EFFECTS = {'a': 6.0, 'b': -4.0, 'c': 2.0, 'd': -1.0}


def row(name, gain, changed=(), at=None, spread=3.0, missing=()):
    draw = np.random.default_rng(sum(map(ord, name)))
    runs = [
        dict(seed=seed, scores=dict(knn=30 + seed + gain + spread * draw.normal()))
        for seed in range(6)
        if seed not in missing
    ]
    fork = None if at is None else dict(of='trunk', at=at)
    return dict(
        name=name, on='trunk' if changed else None, changed=list(changed), fork=fork, runs=runs
    )


def planted(share=0.5, **changes):
    """Return a study in which the effect of a fork at 1/3 of training is `share` times the effect of the whole run."""
    rows = [row('trunk', 0, spread=0)]
    for name, gain in EFFECTS.items():
        rows.append(row(name, gain, [f'model.{name}']))
        rows.append(row(f'{name} forked', share * gain, [f'model.{name}'], 0.3333, 0.0, **changes))
    return dict(name='planted', rows=rows)


def test_forks_belong_to_whole_rows_by_changes():
    factors = read_factors(planted())
    assert [factor.name for factor in factors] == list(EFFECTS)
    for factor in factors:
        np.testing.assert_allclose(factor.forks[Fraction(1, 3)], 0.5 * EFFECTS[factor.name])


def test_seeds_without_a_score_are_left_out():
    assert {len(factor.whole) for factor in read_factors(planted(missing=[2]))} == {5}


def test_agreement_of_proportional_effects():
    whole = np.array(list(EFFECTS.values()))
    fit = agreement(whole, -0.25 * whole)
    assert fit.same_sign == 0
    assert fit.slope == pytest.approx(-0.25)
    assert fit.correlation == pytest.approx(-1)


def test_intervals_cover_the_planted_slope():
    factors = read_factors(planted())
    low, high = intervals(factors, Fraction(1, 3))['slope']
    assert low < 0.5 < high


def test_table_has_a_line_for_each_fork_point():
    study = planted()
    text = tables(read_factors(study))
    assert '| 1/3 | 4 of 4 (' in text
    assert '| a | +3.0 ± 0.0 |' in text
    for row in study['rows']:
        del row['runs'][4:]
    assert '| 1/3 | 4 of 4 |' in tables(read_factors(study))


def test_unfinished_study_is_an_error():
    study = planted()
    del study['rows'][2:]
    with pytest.raises(UserError) as caught:
        read_factors(study)
    assert caught.value.code == 'too-few-factors'


def test_null_differences_are_rows_by_seed():
    study = planted()
    study['rows'][0]['runs'].pop()
    differences = null_differences(study)
    assert differences.shape == (2 * len(EFFECTS), 5)
    np.testing.assert_allclose(differences[1], 0.5 * EFFECTS['a'])


@pytest.mark.parametrize('trunks', [3, 5, 8])
def test_false_alarms_of_forks_stay_at_5_percent(trunks):
    differences = np.array(read_json(Path(__file__).parents[1] / 'null_forks.json'))
    assert differences.shape == (8, 5)
    limit = 0.05 + 3 * np.sqrt(
        0.05 * 0.95 / 4000
    )  # 5 % plus three standard errors of 4000 simulated studies
    assert 0.01 < false_alarms(differences, trunks) < limit
    assert false_alarms(np.random.default_rng(0).normal(size=(8, 5)), trunks) < limit
