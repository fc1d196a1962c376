"""Two-level designs: which combinations of factors a study runs, and which effects its rows can separate.

A level is 0 (the first of a factor) or 1. Fractions are regular (Box and Hunter, 1961): each of the last factors is generated
from some of the others, and is at its second level if an odd number of them is. A fraction thus always has the row of all
first levels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product

import numpy as np

Effect = tuple[str, ...]  # the factors of a main effect or of an interaction
ROMAN = ('', 'I', 'II', 'III', 'IV', 'V', 'VI', 'VII', 'VIII', 'IX', 'X')


@dataclass(frozen=True)
class Design:
    """Factors with two levels each, and the levels of each row of a study.

    Args:
        factors: Names of the factors.
        rows: The levels of each row, by its name.
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
        """Main effects and the interactions that the study tests."""
        return [*self.main, *map(tuple, self.interactions)]

    @property
    def pairs(self) -> list[Effect]:
        return list(combinations(self.factors, 2))

    def signs(self, effect: Effect, names: Sequence[str]) -> np.ndarray:
        """Return the column of an effect: in each row the product of its factors' levels, as -1 and 1."""
        places = [self.factors.index(factor) for factor in effect]
        levels = np.array([self.rows[name] for name in names])[:, places]
        return np.prod(2 * levels - 1, axis=1)

    def alias(self, one: Effect, two: Effect) -> int:
        """Return 1 or -1 if two effects are equal or opposite in every row, and 0 if they can be separated."""
        names = list(self.rows)
        product_of_signs = self.signs(one, names) * self.signs(two, names)
        constant = (product_of_signs == product_of_signs[0]).all()
        return int(product_of_signs[0]) if constant else 0

    @property
    def resolution(self) -> int | None:
        """The fewest factors whose product is constant; None for a full factorial."""
        for count in range(1, len(self.factors) + 1):
            if any(self.alias(term, ()) for term in combinations(self.factors, count)):
                return count
        return None

    @property
    def words(self) -> str:
        """The design in words, for the plan and the page."""
        possible = 2 ** len(self.factors)
        if self.resolution is None:
            return f'all {possible} combinations of {len(self.factors)} factors'
        return (
            f'{len(self.rows)} of {possible} combinations of {len(self.factors)} factors, '
            f'resolution {ROMAN[self.resolution]}'
        )

    def aliases(self, effect: Effect) -> list[str]:
        """Return the main effects and pairs that cannot be separated from an effect, each with its sign."""
        found = []
        for other in [*self.main, *self.pairs]:
            sign = self.alias(effect, other)
            if sign and set(other) != set(effect):
                found.append(title(other) if sign > 0 else f'−{title(other)}')
        return found

    @property
    def confusion(self) -> str:
        """The main effects and pairwise interactions that the rows cannot separate, in words."""
        groups = []
        for effect in self.distinct:
            if others := self.aliases(effect):
                groups.append(f'{title(effect)} from {", ".join(others)}')
        if not groups:
            return 'all main effects and pairwise interactions can be separated'
        return f'effects that cannot be separated: {"; ".join(groups)}'

    @property
    def distinct(self) -> list[Effect]:
        """Main effects, tested interactions and other pairs. Of effects that cannot be separated, only the first."""
        distinct: list[Effect] = []
        for effect in [*self.asked, *self.pairs]:
            confounded = any(self.alias(effect, other) for other in distinct)
            if effect not in distinct and not confounded:
                distinct.append(effect)
        return distinct

    @property
    def indistinct(self) -> tuple[Effect, Effect] | None:
        """The first two tested effects that the rows cannot separate."""
        for pair in combinations(self.asked, 2):
            if self.alias(*pair):
                return pair
        return None


def title(effect: Effect) -> str:
    return ' × '.join(effect)


def fraction_rows(
    factors: int, halvings: int, asked: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return the levels of the fraction that separates most of the tested effects and, among equals, has least aberration.

    Args:
        factors: Number of factors.
        halvings: The fraction is 1 / 2^halvings of all combinations.
        asked: Tested effects, by the numbers of their factors.
    """
    basic = factors - halvings
    effects = [sum(1 << place for place in effect) for effect in asked]
    differences = [one ^ two for one, two in combinations(effects, 2)]

    def badness(generators: Sequence[int]) -> tuple[int, list[int]]:
        """Return the number of confounded pairs of tested effects, and the number of words of each length."""
        words = defining_words(generators, basic)
        confounded = sum(difference in words for difference in differences)
        lengths = [word.bit_count() for word in words]
        return confounded, [lengths.count(length) for length in range(1, factors + 1)]

    masks = range((1 << basic) - 1, 0, -1)
    best = min(combinations_with_replacement(masks, halvings), key=badness)
    return list(_rows_of(best, basic))


def defining_words(generators: Sequence[int], basic: int) -> list[int]:
    """Return the products of factors that are constant, as bit masks of factors.

    Factor `basic + number` is the parity of the basic factors in its generator. The words are all sums (exclusive or) of
    these relations, without the empty one.
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
