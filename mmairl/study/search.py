"""Equal chances: every row of a study is tuned by the same budget, on the same relative points, before it is compared.

A search tries values around the row's own, by scrambled Sobol points that all rows share; the first trial is the row as it is
published. Its winner is trained anew from a fresh seed, and only fresh runs are compared. A search is repeated with other
points and other seeds, so that the spread over searches holds the luck of both.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice, permutations, product
from typing import Annotated, Any

from mmengine.config import Config
from msgspec import Meta
from scipy.stats import qmc

from mmairl.config import by_key
from mmairl.errors import UserError
from mmairl.evaluation.protocol import protocol_class
from mmairl.io import Declared
from mmairl.registry import PROTOCOLS

MOST_TRIALS = 10_000  # of a row in a search
SPARE = 16  # points for each trial, of which those that repeat another trial are passed over
OWN = 2  # dimensions that a row may add to those of all
LENGTH = 'trials of other lengths or batches cost other FLOPs than the budget counts'
MEASURING = 'all trials are measured alike'
NOT_SEARCHED = {
    **dict.fromkeys(('train_cfg', 'total_batch_size', 'train_dataloader.batch_size'), LENGTH),
    **dict.fromkeys(('evaluation', 'recipes'), MEASURING),
    'randomness': 'trials of a search share their seed',
}
FIRST = 1000  # the seed of the first search's trials; its winner has seed 0, far from those


class Dimension(Declared, frozen=True):
    """A key that trials vary: `times` a range around the row's own value, on a log scale, or one of `values`.

    With `complement` the range is of 1 - value, as the momentum of a teacher wants it.
    """

    key: str
    times: Annotated[tuple[float | str, ...], Meta(min_length=2, max_length=2)] | None = None
    values: Annotated[tuple[Any, ...], Meta(min_length=2)] | None = None
    complement: bool = False

    def __post_init__(self) -> None:
        if (self.times is None) == (self.values is None):
            raise UserError(
                f'the dimension of {self.key} wants either `times: [1/8, 8]` or a list of `values`'
            )
        if self.times and not 0 < self.ends[0] < self.ends[1]:
            raise UserError(
                f'the range {list(self.times)} of {self.key} is empty; give two factors above 0, the smaller first'
            )

    @property
    def ends(self) -> tuple[float, float]:
        try:
            low, high = (float(Fraction(str(end))) for end in self.times)
        except (ValueError, ZeroDivisionError):
            raise UserError(
                f'the range {list(self.times)} of {self.key} is not of numbers, such as [1/8, 8]'
            ) from None
        return low, high

    def at(self, place: float, value: Any) -> Any:
        """Return the value of a trial at a place from 0 to 1, of a row whose own is `value`."""
        if self.values:
            return self.values[min(int(place * len(self.values)), len(self.values) - 1)]
        low, high = self.ends
        factor = low ** (1 - place) * high**place
        if self.complement:
            return 1 - (1 - value) * factor
        return max(1, round(value * factor)) if isinstance(value, int) else value * factor

    def place(self, value: Any, own: Any) -> float:
        """Return where from 0 to 1 a trial's value lies, of a row whose own is `own`."""
        if self.values:
            return (
                self.values.index(value) / (len(self.values) - 1)
                if value in self.values
                else math.nan
            )
        low, high = self.ends
        factor = (1 - value) / (1 - own) if self.complement else value / own
        return math.log(factor / low) / math.log(high / low)

    def require_fits(self, row: str, value: Any) -> None:
        """Refuse a row's own value that the range cannot be taken of."""
        if self.values:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(
                f"{self.key} of '{row}' is {value!r}, which is no number; give the dimension `values` to choose from"
            )
        if not value or (self.complement and not 0 <= self.at(1, value) < 1):
            raise UserError(
                f"{self.key} of '{row}' is {value}, and no `times` of it make a range that lies in 0 to 1; give `values`"
            )


Dimensions = Annotated[dict[str, Dimension], Meta(min_length=1)]


class Tune(Declared, frozen=True):
    """How a task that trains is tuned for each network: trials around its recipe's own values."""

    trials: Annotated[int, Meta(ge=2)]
    dimensions: Dimensions

    def __post_init__(self) -> None:
        require_distinct(self.dimensions)


Budget = Annotated[float, Meta(ge=1, le=MOST_TRIALS)]


class Search(Declared, frozen=True):
    """How the rows of a study are tuned."""

    budget: Budget  # training FLOPs of a search, in runs of the study's cheapest row
    dimensions: Dimensions
    searches: Annotated[int, Meta(ge=1)] = 3
    criterion: str = 'knn'  # a protocol, on images that are held out of the training labels

    def __post_init__(self) -> None:
        require_distinct(self.dimensions)
        require_searchable(self.dimensions)
        if self.criterion.split(' ')[0] == 'label_free':
            raise UserError(
                f"search.criterion: searches no longer choose without labels ('{self.criterion}'); set one of "
                f'{", ".join(criteria())}, or choose among finished trials with projects/label_free',
                code='label-free-moved',
            )
        if self.criterion not in criteria():
            raise UserError(
                f"search.criterion: unknown protocol ('{self.criterion}'); set one of {', '.join(criteria())}, which "
                'is measured on images held out of the training labels',
                code='unknown-criterion',
            )


def criteria() -> list[str]:
    """Return the protocols that a search can choose by: those that train nothing."""
    return [name for name in PROTOCOLS.names() if not protocol_class(name).trains]


def require_distinct(dimensions: Mapping[str, Dimension]) -> None:
    """Raise if two dimensions vary one key, or one of them a part of the other's."""
    for one, other in permutations(dimensions.values(), 2):
        if within(one.key, other.key):
            same = one.key == other.key
            raise UserError(
                f'two dimensions vary {one.key}{"" if same else f", which is a part of {other.key}"}; give it one',
                code='same-dimension',
            )


def require_searchable(dimensions: Mapping[str, Dimension]) -> None:
    """Raise if trials would differ in what the budget is counted by, in how they are measured, or in luck alone."""
    for name, dimension in dimensions.items():
        for key, reason in NOT_SEARCHED.items():
            if within(dimension.key, key) or within(key, dimension.key):
                raise UserError(
                    f'search.dimensions.{name}: {dimension.key} cannot be searched, since {reason}; leave it out',
                    code='not-searchable',
                )


def within(key: str, prefix: str) -> bool:
    """Whether a dotted key is another one, or lies below it."""
    return f'{key}.'.startswith(f'{prefix}.')


def own_value(cfg: Config, key: str) -> Any:
    """Return the value of a dotted key, or None where the config has no such key."""
    return by_key(cfg).get(key)


def dimensions_of(search: Search | Tune, row: Any, cfg: Config) -> dict[str, Dimension]:
    """Return the dimensions that a row is searched over: those of all whose key it has, and in a search its own."""
    own = row.search if isinstance(search, Search) else {}
    require_searchable(own)
    require_distinct(dimensions := {**search.dimensions, **own})
    values = {name: own_value(cfg, dimension.key) for name, dimension in dimensions.items()}
    if lacking := [name for name in own if values[name] is None]:
        key = dimensions[lacking[0]].key
        raise UserError(
            f"'{row.name}' is to be searched over {lacking[0]}, and its config has no {key}"
        )
    mine = {name: dimension for name, dimension in dimensions.items() if values[name] is not None}
    for name, dimension in mine.items():
        dimension.require_fits(row.name, values[name])
    return mine


def trials_for(budget: float, flops: Mapping[str, float]) -> dict[str, int]:
    """Return how many trials each row has of a budget in runs of the cheapest row, the published one among them."""
    cheapest = min(flops.values())
    return {
        row: max(1, math.floor(budget * cheapest / cost * (1 + 1e-9)))
        for row, cost in flops.items()
    }


def sobol_points(dimensions: int, number: int, trials: int) -> list[list[float]]:
    """Return the Sobol points of search `number`: the same for every row and any budget, a column a dimension."""
    sobol = qmc.Sobol(dimensions + OWN, rng=number)
    return sobol.random_base2(math.ceil(math.log2(max(1, trials)))).tolist()


def setting_count(search: Search | Tune, row: Any, cfg: Config) -> float:
    """Return how many different trials there are, the row as published among them; infinite where a range is searched."""
    mine = dimensions_of(search, row, cfg)
    if not all(axis.values for axis in mine.values()):
        return math.inf
    return 1 + sum(1 for _ in islice(_listed(mine, cfg), MOST_TRIALS))


def trial_options(
    search: Search | Tune, row: Any, cfg: Config, number: int, trials: int
) -> list[dict[str, Any]]:
    """Return the config keys of each trial of a row in search `number`; the first has none, and is as published.

    Points that repeat a trial are passed over. Where all dimensions are lists there may be fewer trials than asked for.
    """
    mine = dimensions_of(search, row, cfg)
    names = dict.fromkeys([*search.dimensions, *mine])
    own = {axis.key: own_value(cfg, axis.key) for axis in mine.values()}
    options: list[dict[str, Any]] = []
    repeated: list[dict[str, Any]] = []
    for point in sobol_points(len(search.dimensions), number, SPARE * trials):
        at = dict(zip(names, point))
        drawn = {axis.key: axis.at(at[name], own[axis.key]) for name, axis in mine.items()}
        if len(options) == trials - 1:
            break
        (repeated if drawn == own or drawn in options else options).append(drawn)
    if all(axis.values for axis in mine.values()):  # combinations that no point has hit
        repeated = [
            listed for listed in islice(_listed(mine, cfg), SPARE * trials) if listed not in options
        ]
    return [{}, *options, *repeated][:trials]


def _listed(mine: Mapping[str, Dimension], cfg: Config) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the values of dimensions that are lists, without the row's own."""
    own = {axis.key: own_value(cfg, axis.key) for axis in mine.values()}
    different = [
        [value for at, value in enumerate(axis.values) if value not in axis.values[:at]]
        for axis in mine.values()
    ]
    for values in product(*different):
        if (options := dict(zip(own, values))) != own:
            yield options


def searched_keys(
    search: Search | None, rows: Sequence[Any], configs: Mapping[str, Config]
) -> dict[str, set[str]]:
    """Return the keys that each row is searched over.

    A key that is searched in a row and not in the one that it is compared with is refused, unless that is declared.
    """
    if search is None:
        return {row.name: set() for row in rows}
    keys = {
        row.name: {axis.key for axis in dimensions_of(search, row, configs[row.name]).values()}
        for row in rows
    }
    for name, dimension in search.dimensions.items():
        if not any(dimension.key in searched for searched in keys.values()):
            raise UserError(f'`search` varies {name} by {dimension.key}, which no row has')
    for row in rows:
        for key in sorted(keys[row.name] ^ keys[row.against]) if row.against else ():
            if not f'{key}.'.startswith(tuple(f'{prefix}.' for prefix in row.declares)):
                here, there = (
                    (row.name, row.against) if key in keys[row.name] else (row.against, row.name)
                )
                raise UserError(
                    f"{key} is searched in '{here}' and not in '{there}', which the study does not declare; search it in both, "
                    "or add it to the row's `declares`"
                )
    return keys
