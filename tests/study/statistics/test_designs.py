"""Fractions of factorial designs, and the effects that they can separate."""

from fractions import Fraction
from itertools import combinations

import pytest

from mmairl.study.statistics.designs import Design, fraction_rows


def design(factors, halvings):
    rows = fraction_rows(factors, Fraction(1, 2**halvings))
    return Design('abcdefg'[:factors], {str(levels): levels for levels in rows})


@pytest.mark.parametrize(
    'factors, halvings, resolution',
    [(3, 1, 3), (4, 1, 4), (5, 1, 5), (5, 2, 3), (7, 3, 4)],
)
def test_best_fractions_have_the_tabulated_resolution(factors, halvings, resolution):
    """Box, Hunter and Hunter, Table 6.22."""
    half = design(factors, halvings)
    confounded = min(
        n for n in range(1, 8) if any(half.alias(t, ()) for t in combinations(half.factors, n))
    )
    assert confounded == resolution


def test_fraction_has_each_level_in_half_of_the_rows():
    half = design(5, 1)
    assert len(half.rows) == 16
    assert all(sum(half.signs((factor,)).values()) == 0 for factor in half.factors)


def test_effects_that_cannot_be_separated_are_named():
    assert design(4, 1).aliases('a') == []
    assert sorted(design(3, 1).aliases('a')) in (['b × c'], ['−b × c'])


def test_full_factorial_separates_all_effects():
    full = Design('ab', {'1': (0, 0), '2': (0, 1), '3': (1, 0), '4': (1, 1)})
    assert full.aliases('a') == []
