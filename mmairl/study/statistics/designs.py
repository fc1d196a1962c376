"""Designs: which combinations of factors with two levels a study runs, and which of their effects these rows can tell apart.

A level is 0 (a factor's first) or 1. A fraction is regular (Box and Hunter, 1961): its last factors follow from the others,
each being at its second level where an odd number of some others is. So the row of all first levels is always in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product

import numpy as np

Effect = tuple[str, ...]  # the factors of a main effect or of an interaction
ROMAN = ('', 'I', 'II', 'III', 'IV', 'V', 'VI', 'VII', 'VIII', 'IX', 'X')


@dataclass(frozen=True)
class Design:
    """Factors with two levels each, and the level that each row of a study has of each."""

    factors: tuple[str, ...]
    rows: dict[str, tuple[int, ...]]  # the levels, by the row's name
    interactions: tuple[tuple[str, str], ...] = ()  # that the study asks for, beside the main effects

    @property
    def main(self) -> list[Effect]:
        return [(factor,) for factor in self.factors]

    @property
    def asked(self) -> list[Effect]:
        return [*self.main, *map(tuple, self.interactions)]

    @property
    def pairs(self) -> list[Effect]:
        return list(combinations(self.factors, 2))

    def signs(self, effect: Effect, names: Sequence[str]) -> np.ndarray:
        """The column of an effect: the product of its factors' levels, as -1 and 1, in these rows."""
        places = [self.factors.index(factor) for factor in effect]
        return np.prod([[2 * self.rows[name][place] - 1 for place in places] for name in names], axis=1)

    def alias(self, one: Effect, two: Effect) -> int:
        """1 or -1 where two effects move together or against each other in every row, and 0 where they can be told apart."""
        together = self.signs(one, list(self.rows)) * self.signs(two, list(self.rows))
        return int(together[0]) if (together == together[0]).all() else 0

    @property
    def resolution(self) -> int | None:
        """The fewest factors whose product is the same in every row; None for a full factorial, where there are none."""
        counts = range(1, len(self.factors) + 1)
        return next((n for n in counts if any(self.alias(term, ()) for term in combinations(self.factors, n))), None)

    @property
    def words(self) -> str:
        """Return the words of the plan and the page for the design."""
        found, possible = len(self.rows), 2 ** len(self.factors)
        if self.resolution is None:
            return f'all {possible} combinations of {len(self.factors)} factors'
        return f'{found} of {possible} combinations of {len(self.factors)} factors, resolution {ROMAN[self.resolution]}'

    def aliases(self, effect: Effect) -> list[str]:
        """The main effects and pairwise interactions that cannot be told from this one, each with its sign."""
        others = [other for other in [*self.main, *self.pairs] if set(other) != set(effect)]
        return [f'{"" if sign > 0 else "−"}{title(other)}' for other in others if (sign := self.alias(effect, other))]

    @property
    def confusion(self) -> str:
        """Name the main effects and pairwise interactions that the rows cannot tell apart, in one sentence."""
        kept = self.distinct
        groups = [f'{title(effect)} from {", ".join(others)}' for effect in kept if (others := self.aliases(effect))]
        if not groups:
            return 'main effects and pairwise interactions can all be told apart'
        return f'they cannot tell {"; ".join(groups)}'

    @property
    def distinct(self) -> list[Effect]:
        """Main effects, asked interactions, and then the other pairs; of those that cannot be told apart the first."""
        kept: list[Effect] = []
        for effect in [*self.asked, *self.pairs]:
            if effect not in kept and not any(self.alias(effect, other) for other in kept):
                kept.append(effect)
        return kept

    @property
    def indistinct(self) -> tuple[Effect, Effect] | None:
        """The first two effects that the study asks for and that its rows cannot tell apart."""
        return next((pair for pair in combinations(self.asked, 2) if self.alias(*pair)), None)


def title(effect: Effect) -> str:
    return ' × '.join(effect)


def fraction_rows(factors: int, halvings: int, asked: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The levels of the best fraction: the one that tells most of the asked effects apart, then that of least aberration.

    Effects are given by their factors' numbers. Sets of factors are bit masks here: each of the last `halvings` factors is the
    parity of a mask of the first ones, and the sums of these relations are the products that are the same in every row.
    """
    basic = factors - halvings
    wanted = [sum(1 << place for place in effect) for effect in asked]
    confused = [one ^ two for one, two in combinations(wanted, 2)]

    def badness(masks: Sequence[int]) -> tuple[int, list[int]]:
        whole = [0]
        for number, mask in enumerate(masks):
            relation = mask | 1 << basic + number
            whole += [other ^ relation for other in whole]
        lengths = [word.bit_count() for word in whole[1:]]
        return sum(word in whole[1:] for word in confused), [lengths.count(size) for size in range(1, factors + 1)]

    best = min(combinations_with_replacement(range((1 << basic) - 1, 0, -1), halvings), key=badness)
    rows = []
    for levels in product((0, 1), repeat=basic):
        number = sum(level << place for place, level in enumerate(levels))
        rows.append((*levels, *((number & mask).bit_count() % 2 for mask in best)))
    return rows
