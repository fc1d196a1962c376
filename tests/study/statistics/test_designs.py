"""Test fractional factorial designs: fractions equal the published ones, and effects that a fraction cannot separate are
named.
"""

from itertools import combinations, product

import numpy as np
import pytest

from mmairl.study.statistics.designs import Design, fraction_rows


def design(rows: list[tuple[int, ...]], **others) -> Design:
    factors = tuple('abcdefgh'[: len(rows[0])])
    return Design(factors, {str(levels): levels for levels in rows}, **others)


@pytest.mark.parametrize('factors, halvings, resolution, pairs', [
    (3, 1, 3, 0), (4, 1, 4, 0), (5, 1, 5, 10), (5, 2, 3, 0), (6, 1, 6, 15), (6, 2, 4, 0), (7, 3, 4, 0), (7, 2, 4, 15),
    (8, 4, 4, 0),
])  # fmt: skip
def test_fraction_has_the_published_resolution(factors, halvings, resolution, pairs):
    """The resolutions are those of Table 6.22 of Box, Hunter and Hunter.

    `pairs` counts the pairs of factors whose interaction has no alias among the main effects and the other pairs.
    """
    rows = fraction_rows(factors, halvings, [(place,) for place in range(factors)])
    plan = design(rows)
    assert len(set(rows)) == 2 ** (factors - halvings) and rows[0] == (0,) * factors
    assert plan.resolution == resolution
    assert sum(not plan.aliases(pair) for pair in plan.pairs) == pairs


def test_aliases_are_equal_or_opposite_columns():
    plan = design(fraction_rows(5, 2, [(place,) for place in range(5)]))
    signs = 2 * np.array(list(plan.rows.values())) - 1
    effects = [effect for count in (1, 2) for effect in combinations(range(5), count)]
    for one in effects:
        column = signs[:, one].prod(1)
        expected = set()
        for other in effects:
            name, product = ' × '.join(plan.factors[place] for place in other), column @ signs[:, other].prod(1)
            expected |= {name} if product == len(signs) else {f'−{name}'} if product == -len(signs) else set()
        name = tuple(plan.factors[place] for place in one)
        assert {*plan.aliases(name), ' × '.join(name)} == expected


def test_fraction_separates_the_asked_interactions():
    """In the usual fraction of six factors in 16 rows, some interactions are confounded with each other.

    If two such interactions are to be tested, another fraction separates them.
    """
    mains = [(place,) for place in range(6)]
    usual = design(fraction_rows(6, 2, mains))
    one, two = next(pair for pair in combinations(usual.pairs, 2) if usual.alias(*pair))
    tested = [*mains, *(tuple(map(usual.factors.index, pair)) for pair in (one, two))]
    assert not design(fraction_rows(6, 2, tested), interactions=(one, two)).indistinct


def test_inseparable_asked_effects_are_named():
    assert design(fraction_rows(3, 1, [(0,), (1,), (2,), (0, 1)]), interactions=(('a', 'b'),)).indistinct
    assert design([(0, 0), (1, 1)]).indistinct == (('a',), ('b',))
    assert design(fraction_rows(5, 1, [])).words == '16 of 32 combinations of 5 factors, resolution V'
    assert design([(0, 0), (0, 1), (1, 0)]).words == '3 of 4 combinations of 2 factors'
    whole = design(list(product((0, 1), repeat=3)), interactions=(('a', 'b'), ('b', 'c')))
    assert (whole.indistinct, whole.resolution, whole.words) == (None, None, 'all 8 combinations of 3 factors')
