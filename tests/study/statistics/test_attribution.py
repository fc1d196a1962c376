"""Test the attribution of effects to factors: it is exact for planted scores, agrees with a published example, and has
correct error rates in simulations.
"""

import math
from dataclasses import asdict
from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats
from study.small_runs import START, recorded

from mmairl.study.statistics.attribution import attribute, fit, shares
from mmairl.study.statistics.designs import Design, fraction_rows


def full_rows(factors: int) -> list[tuple[int, ...]]:
    return list(product((0, 1), repeat=factors))


def study(levels: list[tuple[int, ...]], scores, start: dict | None = START, **others) -> dict:
    """Return a study's record. `scores` has a list for each row, with a number or None for each seed."""
    factors = tuple('abcdefgh'[: len(levels[0])])
    design = Design(factors, {str(row): row for row in levels}, **others)
    rows = [recorded(name, line, start) for name, line in zip(design.rows, scores)]
    return dict(rows=rows, seeds=list(range(len(scores[0]))), design=asdict(design))


def estimates(entries: list[dict]) -> list[float | None]:
    return [entry['estimate'] for entry in entries]


def planted(levels: tuple[int, ...]) -> float:
    """Return a score that depends on main effects, an interaction of two factors and one of three."""
    a, b, c, d, *_ = (*levels, 0, 0, 0)
    return 20 + 5 * a - 2 * b + 3 * a * b + 7 * b * c * d


def shapley(value, factors: int) -> list[float]:
    """Return the Shapley shares of factors by enumerating all orders in which they can be added."""
    gains = np.zeros(factors)
    for order in permutations(range(factors)):
        levels = [0] * factors
        for place in order:
            before, levels[place] = value(tuple(levels)), 1
            gains[place] += value(tuple(levels)) - before
    return list(gains / math.factorial(factors))


@pytest.mark.parametrize('factors', [2, 3, 4])
def test_full_factorial_effects_and_shares_are_exact(factors):
    rows = full_rows(factors)
    result = attribute(study(rows, [[planted(row)] * 2 for row in rows]), 'knn', 1.0)
    assert estimates(result['shares']) == pytest.approx(shapley(planted, factors))
    assert result['gain']['estimate'] == pytest.approx(planted((1,) * factors) - planted((0,) * factors))
    assert result['exact']
    means = {row: planted(row) for row in rows}
    names = [share['factor'] for share in result['shares']]
    for effect in result['effects']:
        places = list(map(names.index, effect['factors']))
        high = [value for row, value in means.items() if sum(1 - row[place] for place in places) % 2 == 0]
        low = [value for row, value in means.items() if sum(1 - row[place] for place in places) % 2]
        assert effect['estimate'] == pytest.approx(np.mean(high) - np.mean(low)), effect['name']


def test_fraction_equals_the_whole_without_triples():
    def pairs(levels):
        a, b, c, d, e = levels
        return 3 + 4 * a - b + 2 * c * d - 5 * a * e + 0.5 * e

    rows = fraction_rows(5, 1, [(place,) for place in range(5)])
    result, whole = (
        attribute(study(plan, [[pairs(row)] for row in plan]), 'knn', 1.0) for plan in (rows, full_rows(5))
    )
    assert estimates(result['effects']) == pytest.approx(estimates(whole['effects']))
    assert estimates(result['shares']) == pytest.approx(shapley(pairs, 5))
    assert not result['exact']
    assert {effect['verdict'] for effect in result['effects']} == {'not tested (one seed)'}
    assert result['shares'][0]['low'] is None


def test_irregular_design_gives_the_effects_of_the_whole():
    """Seven of eight rows suffice for the mean, three main effects and three interactions of two factors."""
    rows = full_rows(3)
    whole, most = (
        attribute(study(some, [[planted(row)] * 2 for row in some]), 'knn', 1.0) for some in (rows, rows[1:])
    )
    assert estimates(most['effects']) == pytest.approx(estimates(whole['effects']))
    assert not most['exact']
    (one, *_) = attribute(study(rows[3:], [[planted(row)] * 2 for row in rows[3:]]), 'knn', 1.0)['effects']
    assert one['verdict'] == 'not estimable'


def test_published_factorial_has_the_published_effects():
    """Compare with the pilot plant of Box, Hunter and Hunter (1978), section 10.2, which has 2 x 2 x 2 rows of two runs.

    The standard error of each effect is 1.4.
    """
    # In this order of rows, the first factor (temperature) changes fastest.
    order = [(c, b, a) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    runs = [(59, 61), (74, 70), (50, 58), (69, 67), (50, 54), (81, 85), (46, 44), (79, 81)]
    result = attribute(study(order, runs, start=None), 'knn', 1.0)
    assert estimates(result['effects']) == pytest.approx([23, -5, 1.5, 1.5, 10, 0])
    assert result['spread'] ** 2 == pytest.approx(8) and not result['blocks']
    # With eight rows of two runs, the limit of the degrees of freedom is 1.5.
    half = stats.t.ppf(0.975, 1.5) * math.sqrt(2)
    first = result['effects'][0]
    assert (first['low'], first['high']) == (pytest.approx(23 - half), pytest.approx(23 + half))
    assert [effect['name'] for effect in result['effects'] if effect['verdict'] == 'higher'] == ['a']


def test_unequal_seeds_give_least_squares_estimates():
    """The expected values are twice the coefficients of ols('y ~ a*b + C(seed)') in statsmodels 0.15.0, with levels of -1
    and 1.
    """
    scores = [[20.1, 22.4, 19.0], [21.5, 24.9, None], [26.3, None, 24.1], [31.0, 33.2, 29.4]]
    result = attribute(study(full_rows(2), scores), 'knn', 1.0)
    assert estimates(result['effects']) == pytest.approx([7.35, 3.35, 1.564286], abs=1e-6)
    assert result['blocks'] and result['runs'] == 10


def simulated(rows: list[tuple[int, ...]], seeds: int, truth, spread=1.0, seed_effect: float = 0.0):
    """Return the linear model of a design, the scores of 4000 simulated studies as an array (study, run), and the design."""
    design = Design(**study(rows, [[0.0]] * len(rows))['design'])
    runs = [(name, seed) for name in design.rows for seed in range(seeds)]
    draw = np.random.default_rng(seeds)
    noise = draw.normal(size=(4000, len(runs))) * np.repeat(np.broadcast_to(spread, len(rows)), seeds)
    noise += np.tile(seed_effect * draw.normal(size=(4000, seeds)), len(rows))
    means = np.repeat([truth(levels) for levels in rows], seeds)
    return fit(design, runs, blocks=seed_effect > 0), noise + means, design


HALF = fraction_rows(5, 1, [(place,) for place in range(5)])


@pytest.mark.parametrize('rows', [HALF, full_rows(3)], ids=['fraction', 'whole'])
@pytest.mark.parametrize('seeds, seed_effect', [(2, 0.0), (2, 3.0), (10, 3.0)])
def test_intervals_of_effects_cover_them_in_95_percent(rows, seeds, seed_effect):
    def truth(levels):
        return planted(levels[:3])

    model, scores, design = simulated(rows, seeds, truth, seed_effect=seed_effect)
    sums = [*shares(design.factors, model.terms).values(), {design.pairs[0]: 2.0}]
    # The term 3 a b increases the effect of a by 3 if b is 1. The interaction is half of this difference.
    true = [*shapley(truth, len(design.factors)), 1.5]
    for weights, expected in zip(sums, true):
        estimate, error, freedom = model.estimate(scores, weights)
        covered = (abs(estimate - expected) <= stats.t.ppf(0.975, freedom) * error).mean()
        assert covered >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / 4000)


def test_missing_runs_are_stated_and_not_imputed():
    scores = [[planted(levels[:3]) + seed * (number + 1) for seed in range(2)] for number, levels in enumerate(HALF)]
    for one_run, reason in (
        ([*scores[:3], [scores[3][0], None], *scores[4:]], f'not tested (one run of {HALF[3]})'),
        ([*scores[:3], [None, None], *scores[4:]], f'not estimable without {HALF[3]}'),
    ):
        result = attribute(study(HALF, one_run), 'knn', 1.0)
        assert {(effect['verdict'], effect['low']) for effect in result['effects']} == {(reason, None)}
    none = attribute(study(HALF, [[None]] * 16), 'knn', 1.0)
    assert none['runs'] == 0 and none['gain']['estimate'] is None


def test_missing_row_confounds_only_some_effects():
    """If one of four rows (2 x 2) is missing, no main effect is estimable.

    If one of eight rows (2 x 2 x 2) is missing, all main effects and pairwise interactions are estimable.
    """
    pure = [[10.0 * a * b + seed for seed in (0, 1)] for a, b in full_rows(2)]
    result = attribute(study(full_rows(2), [*pure[:3], [None, None]]), 'knn', 1.0)
    assert {effect['verdict'] for effect in result['effects']} == {'not estimable without (1, 1)'}
    rows = full_rows(3)
    result = attribute(
        study(rows, [[planted(row) + seed for seed in (0, 1)] for row in rows[:7]] + [[None] * 2]), 'knn', 1.0
    )
    assert estimates(result['effects'])[:3] == pytest.approx([6.5, -0.5, 0.0]) and not result['exact']


def test_collapsed_runs_leave_verdicts_on_their_counts():
    noise = np.random.default_rng(0).normal(0, 0.1, (16, 4))
    scores = 30 + np.array(HALF)[:, :1] + noise
    scores[np.array(HALF)[:, 1] == 1, 3] = 2.0
    result = attribute(study(HALF, scores), 'knn', 1.0)
    assert (len(result['collapsed']), result['runs']) == (8, 64)
    # The estimate uses only runs that have not collapsed.
    assert result['effects'][0]['estimate'] == pytest.approx(1, abs=0.1)
    verdicts = {effect['name']: effect['verdict'] for effect in result['effects']}
    assert verdicts.pop('b') == 'differs in how many runs collapse' and set(verdicts.values()) == {
        'not tested (collapsed runs)'
    }
    (b,) = (effect for effect in result['effects'] if effect['name'] == 'b')
    assert b['collapsed'] == (8, 0) and b['share'] == pytest.approx(stats.fisher_exact([[8, 24], [0, 32]]).pvalue)


def test_row_with_one_learned_run_is_left_out():
    rows, draw = full_rows(3), np.random.default_rng(0)
    scores = [[20 + 5 * a + 2 * b + value for value in draw.normal(0, 0.1, 3)] for a, b, _ in rows]
    complete = attribute(study(rows, scores), 'knn', 1.0)['effects'][0]
    scores[3][1:] = [2.0, 2.0]
    partial = attribute(study(rows, scores), 'knn', 1.0)
    effect = partial['effects'][0]
    assert partial['alone'] == [f'{rows[3]}, seed 0']
    assert effect['estimate'] == pytest.approx(complete['estimate'], abs=0.2) and effect['low'] < 5 < effect['high']
    assert effect['verdict'] == 'not tested (collapsed runs)'
    pair = attribute(study(full_rows(2), [*scores[4:7], scores[3]]), 'knn', 1.0)['effects'][0]
    # With only four rows, the estimate needs every row. It therefore uses the one run that has not collapsed, but
    # there is no interval.
    assert pair['estimate'] is not None and pair['low'] is None


def test_seeds_are_blocks_if_all_rows_start_alike():
    record = study(full_rows(2), [[1.0, 5.0], [2.1, 6.0], [3.0, 7.1], [4.0, 8.2]])
    result = attribute(record, 'knn', 1.0)
    assert result['blocks'] and result['spread'] < 0.2
    record['rows'][2]['runs'][1]['start'] = {**START, 'order': 'other'}
    result = attribute(record, 'knn', 1.0)
    assert not result['blocks'] and result['spread'] > 2
