"""Two-level designs: which combinations of factors a study runs, and which effects its rows can separate.

Each factor has a first level, 0, and a second level, 1. Each row of the study is one combination of levels. A full factorial
design has all combinations; a fraction has only some of them. Fractions are regular (Box and Hunter, 1961): the first
factors, called basic, take all combinations of their levels. Each of the remaining factors is generated from some of the
basic factors. It is at its second level in the rows in which an odd number of these basic factors is at the second level.
Every fraction therefore has the row in which all factors are at their first level.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product

import numpy as np

# An effect is named by its factors: one factor for a main effect, several factors for an interaction.
Effect = tuple[str, ...]
ROMAN = ('', 'I', 'II', 'III', 'IV', 'V', 'VI', 'VII', 'VIII', 'IX', 'X')


@dataclass(frozen=True)
class Design:
    """The factors of a study, which have two levels each, and the level of each factor in each row.

    Args:
        factors: Names of the factors.
        rows: For each row, by name, the levels of all factors.
        interactions: Pairs of factors whose interaction the study tests.
    """

    factors: tuple[str, ...]
    rows: dict[str, tuple[int, ...]]
    interactions: tuple[tuple[str, str], ...] = ()

    @property
    def main(self) -> list[Effect]:
        return [(factor,) for factor in self.factors]

    @property
    def asked(self) -> list[Effect]:
        """The effects that the study tests: all main effects, and the declared interactions."""
        return [*self.main, *map(tuple, self.interactions)]

    @property
    def pairs(self) -> list[Effect]:
        return list(combinations(self.factors, 2))

    def signs(self, effect: Effect, names: Sequence[str]) -> np.ndarray:
        """Return the column of an effect in the model: for each named row, the product of the levels of the effect's factors.

        Levels are coded as -1 and 1 for this product.
        """
        places = [self.factors.index(factor) for factor in effect]
        levels = np.array([self.rows[name] for name in names])[:, places]
        return np.prod(2 * levels - 1, axis=1)

    def alias(self, one: Effect, two: Effect) -> int:
        """Return 0 if the rows can separate two effects; otherwise, return 1 or -1.

        The value 1 means that the effects are equal in all rows, and -1 means that they are opposite in all rows.
        """
        names = list(self.rows)
        product_of_signs = self.signs(one, names) * self.signs(two, names)
        constant = (product_of_signs == product_of_signs[0]).all()
        return int(product_of_signs[0]) if constant else 0

    @property
    def resolution(self) -> int | None:
        """The resolution: the smallest number of factors whose product is the same in all rows.

        It is None if there are no such factors, as in a full factorial.
        """
        for count in range(1, len(self.factors) + 1):
            if any(self.alias(term, ()) for term in combinations(self.factors, count)):
                return count
        return None

    @property
    def words(self) -> str:
        """A description of the design for the plan and the study page."""
        possible = 2 ** len(self.factors)
        if len(self.rows) == possible:
            return f'all {possible} combinations of {len(self.factors)} factors'
        words = f'{len(self.rows)} of {possible} combinations of {len(self.factors)} factors'
        return words if self.resolution is None else f'{words}, resolution {ROMAN[self.resolution]}'

    def aliases(self, effect: Effect) -> list[str]:
        """Return the main effects and pairwise interactions that the rows cannot separate from an effect.

        An effect with the opposite sign in all rows is marked by a minus.
        """
        found = []
        for other in [*self.main, *self.pairs]:
            sign = self.alias(effect, other)
            if sign and set(other) != set(effect):
                found.append(title(other) if sign > 0 else f'−{title(other)}')
        return found

    @property
    def confusion(self) -> str:
        """A description of all main effects and pairwise interactions that the rows cannot separate."""
        groups = []
        for effect in self.distinct:
            if others := self.aliases(effect):
                groups.append(f'{title(effect)} from {", ".join(others)}')
        if not groups:
            return 'all main effects and pairwise interactions can be separated'
        return f'effects that cannot be separated: {"; ".join(groups)}'

    @property
    def distinct(self) -> list[Effect]:
        """Main effects, tested interactions and other pairwise interactions, in this order.

        Of the effects that the rows cannot separate from each other, the list has only the first one.
        """
        distinct: list[Effect] = []
        for effect in [*self.asked, *self.pairs]:
            confounded = any(self.alias(effect, other) for other in distinct)
            if effect not in distinct and not confounded:
                distinct.append(effect)
        return distinct

    @property
    def indistinct(self) -> tuple[Effect, Effect] | None:
        """The first two tested effects that the rows cannot separate; None if they can separate all tested effects."""
        for pair in combinations(self.asked, 2):
            if self.alias(*pair):
                return pair
        return None


def title(effect: Effect) -> str:
    return ' × '.join(effect)


def fraction_rows(
    factors: int, halvings: int, asked: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return the levels of each row of the best fraction of a full factorial design.

    The best fraction leaves the fewest pairs of tested effects confounded. Among equally good fractions, it is the one with
    minimum aberration: it has the fewest short defining words (see `defining_words`).

    Args:
        factors: Number of factors.
        halvings: The fraction has 1 / 2^halvings of all combinations.
        asked: The tested effects, each as the indices of its factors.
    """
    basic = factors - halvings
    effects = [sum(1 << place for place in effect) for effect in asked]
    differences = [one ^ two for one, two in combinations(effects, 2)]

    def badness(generators: Sequence[int]) -> tuple[int, list[int]]:
        """Return the number of confounded pairs of tested effects, and the number of defining words of each length."""
        words = defining_words(generators, basic)
        confounded = sum(difference in words for difference in differences)
        lengths = [word.bit_count() for word in words]
        return confounded, [lengths.count(length) for length in range(1, factors + 1)]

    masks = range((1 << basic) - 1, 0, -1)
    best = min(combinations_with_replacement(masks, halvings), key=badness)
    return list(_rows_of(best, basic))


def defining_words(generators: Sequence[int], basic: int) -> list[int]:
    """Return the defining words of a fraction: the sets of factors whose product is the same in all rows.

    A set of factors is a bit mask. Each generator is the set of basic factors that generates one further factor. Together
    with this factor, it is a defining word. The exclusive ors (XOR) of these words are all other defining words.

    Args:
        generators: For each generated factor, the bit mask of its basic factors.
        basic: Number of basic factors.
    """
    words = [0]
    for number, generator in enumerate(generators):
        relation = generator | 1 << basic + number
        words += [word ^ relation for word in words]
    return words[1:]


def _rows_of(generators: Sequence[int], basic: int) -> Iterator[tuple[int, ...]]:
    for levels in product((0, 1), repeat=basic):
        mask = sum(level << place for place, level in enumerate(levels))
        generated = [(mask & generator).bit_count() % 2 for generator in generators]
        yield *levels, *generated
