"""Which factor did it: exact on planted functions, a published example, and error rates by simulation."""

import math
from dataclasses import asdict
from itertools import permutations

import numpy as np
import pytest

from mmairl.study.attribution import attribute
from mmairl.study.designs import Design, fraction_rows, full_rows

START = dict(weights='a', shapes='b', order='c')


def study(levels: list[tuple[int, ...]], scores, start: dict | None = START, **others) -> dict:
    """A record of these rows; `scores` has a line for each, with a number (or None) for each seed."""
    factors = tuple('abcdefgh'[: len(levels[0])])
    design = Design(factors, dict.fromkeys(factors, ('0', '1')), {str(of): of for of in levels}, **others)
    rows = []
    for name, line in zip(design.rows, scores):
        runs = [
            dict(seed=seed, state='done', scores={'knn': float(v)}, start=start)
            for seed, v in enumerate(line)
            if v is not None
        ]
        rows.append(dict(name=name, runs=runs))
    return dict(rows=rows, seeds=list(range(len(scores[0]))), design=asdict(design))


def planted(levels: tuple[int, ...]) -> float:
    """Factors with effects of their own, a pair, and three together."""
    a, b, c, d, *_ = (*levels, 0, 0, 0)
    return 20 + 5 * a - 2 * b + 3 * a * b + 7 * b * c * d


def shapley(value, factors: int) -> list[float]:
    """Over all orders, by walking each."""
    gains = np.zeros(factors)
    for order in permutations(range(factors)):
        levels = [0] * factors
        for place in order:
            before, levels[place] = value(tuple(levels)), 1
            gains[place] += value(tuple(levels)) - before
    return list(gains / math.factorial(factors))


@pytest.mark.parametrize('factors', [2, 3, 4])
def test_effects_and_shares_of_a_full_factorial_are_exact(factors):
    rows = full_rows(factors)
    found = attribute(study(rows, [[planted(of)] * 2 for of in rows]), 'knn', 1.0)
    assert [share.estimate for share in found.shares] == pytest.approx(shapley(planted, factors))
    assert found.gain.estimate == pytest.approx(planted((1,) * factors) - planted((0,) * factors)) and found.exact
    means = {of: planted(of) for of in rows}
    for effect in found.effects:
        places = [found.shares.index(next(s for s in found.shares if s.factor == name)) for name in effect.factors]
        high = [value for of, value in means.items() if sum(1 - of[place] for place in places) % 2 == 0]
        low = [value for of, value in means.items() if sum(1 - of[place] for place in places) % 2]
        assert effect.estimate == pytest.approx(np.mean(high) - np.mean(low)), effect.name


def test_effects_and_shares_of_a_fraction_are_those_of_the_whole_where_factors_act_alone_or_in_pairs():
    def pairs(levels):
        a, b, c, d, e = levels
        return 3 + 4 * a - b + 2 * c * d - 5 * a * e + 0.5 * e

    rows = fraction_rows(5, 1, [(place,) for place in range(5)])
    found, whole = (attribute(study(of, [[pairs(levels)] for levels in of]), 'knn', 1.0) for of in (rows, full_rows(5)))
    assert [e.estimate for e in found.effects] == pytest.approx([e.estimate for e in whole.effects])
    assert [s.estimate for s in found.shares] == pytest.approx(shapley(pairs, 5))
    assert not found.exact and found.resolution == '16 of 32 combinations of 5 factors, resolution V'
    assert {effect.verdict for effect in found.effects} == {'one seed: no verdict'} and found.shares[0].low is None
