"""Two-level designs: which combinations of factors a study runs, and which effects its rows can separate.

Each factor has a first level, 0, and a second level, 1. Each row of the study is one combination of levels. A full factorial
design has all combinations; a fraction has only some of them. Fractions are regular (Box and Hunter, 1961): the first
factors, called basic, take all combinations of their levels. Each of the remaining factors is generated from some of the
basic factors. It is at its second level in the rows in which an odd number of these basic factors is at the second level.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import prod
from string import ascii_lowercase

from mmairl.errors import UserError

# The factors of an effect: one for the effect of a factor, two for their interaction.
Term = tuple[str, ...]


@dataclass(frozen=True)
class Design:
    """The factors of a study, which have two levels each, and the level of each factor in each row.

    Args:
        factors: Names of the factors.
        rows: For each row, by name, the levels of all factors.
    """

    factors: Sequence[str]
    rows: Mapping[str, Sequence[int]]

    def signs(self, term: Term) -> dict[str, int]:
        """Return, for each row, the product of the levels of the term's factors, coded as -1 and 1."""
        places = [self.factors.index(factor) for factor in term]
        return {name: prod(2 * row[at] - 1 for at in places) for name, row in self.rows.items()}

    def alias(self, one: Term, two: Term) -> int:
        """Return 0 if the rows can separate two effects, 1 if they are equal in all rows, and -1 if they are opposite."""
        first, second = self.signs(one), self.signs(two)
        products = {first[name] * second[name] for name in self.rows}
        return products.pop() if len(products) == 1 else 0

    def aliases(self, factor: str) -> list[str]:
        """Return the effects of other factors and of pairs of factors that the rows cannot separate from a factor's.

        An effect with the opposite sign in all rows is marked by a minus.
        """
        others = [(other,) for other in self.factors if other != factor]
        found = []
        for term in [*others, *combinations(self.factors, 2)]:
            if sign := self.alias((factor,), term):
                found.append('−' * (sign < 0) + ' × '.join(term))
        return found


# The factors that generate each further factor of a fraction, by the number of basic factors and the number of halvings
# (Box, Hunter and Hunter, Table 6.22). In the first entry, the factors a and b generate the factor d. In a half of a design,
# all basic factors generate the last factor.
GENERATORS = {
    (3, 2): ['ab', 'ac'],
    (4, 2): ['abc', 'bcd'],
    (5, 2): ['abcd', 'abde'],
    (3, 3): ['ab', 'ac', 'bc'],
    (4, 3): ['abc', 'bcd', 'acd'],
    (4, 4): ['abc', 'bcd', 'acd', 'abd'],
}


def fraction_rows(factors: int, fraction: Fraction) -> list[tuple[int, ...]]:
    """Return the levels of each row of a full factorial design, or of its fraction with the highest resolution.

    Raises:
        UserError: If GENERATORS lacks the fraction.
    """
    halvings = fraction.denominator.bit_length() - 1
    basic = factors - halvings
    generators = GENERATORS.get((basic, halvings), [])
    if halvings == 1 and basic > 1:
        generators = [ascii_lowercase[:basic]]
    if len(generators) != halvings:
        raise UserError(
            f'cross.fraction: {fraction} is not possible with {factors} factors; use a larger fraction',
            code='wrong-fraction',
        )
    rows = []
    for levels in product((0, 1), repeat=basic):
        named = dict(zip(ascii_lowercase, levels))
        further = [sum(map(named.get, names)) % 2 for names in generators]
        rows.append((*levels, *further))
    return rows
