"""Equal tuning budgets: before rows are compared, each is tuned with the same budget on the same relative points.

The first trial is the row as published. Further trials vary the row's own values by scrambled Sobol points, which all rows
share. The best trial is trained again from a fresh seed, and only these runs are compared. Searches are repeated with other
points and seeds, so the spread over searches includes the chance of both.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice, permutations, product
from typing import Annotated, Any

import scipy
from mmengine.config import Config
from msgspec import Meta

from mmairl.config import by_key
from mmairl.errors import UserError
from mmairl.evaluation.protocol import protocol_class
from mmairl.io import Declared
from mmairl.registry import PROTOCOLS

MOST_TRIALS = 10_000  # of a row in a search
SPARE = 16  # Sobol points per trial, because points that repeat a trial are skipped
OWN = 2  # most dimensions of a row in addition to the study's
LENGTH = 'the budget counts runs of one length and batch size'
MEASURING = 'all trials are measured the same way'
NOT_SEARCHED = {  # the reason by key
    **dict.fromkeys(('train_cfg', 'total_batch_size', 'train_dataloader.batch_size'), LENGTH),
    **dict.fromkeys(('evaluation', 'recipes'), MEASURING),
    'randomness': 'trials of a search share their seed',
}
FIRST = 1000  # seed of the trials of search 0, far from the seeds of the compared runs


class Dimension(Declared, frozen=True):
    """A config key that trials vary, either by `times`, a range of factors of the row's own value, or over listed `values`.

    The range is searched on a log scale. With `complement`, the factors apply to 1 - value, as for a momentum.
    """

    key: str
    times: Annotated[tuple[float | str, ...], Meta(min_length=2, max_length=2)] | None = None
    values: Annotated[tuple[Any, ...], Meta(min_length=2)] | None = None
    complement: bool = False

    def __post_init__(self) -> None:
        if (self.times is None) == (self.values is None):
            raise UserError(
                f'{self.key}: set either `times`, such as [1/8, 8], or `values`',
                code='times-or-values',
            )
        if self.times and not 0 < self.ends[0] < self.ends[1]:
            raise UserError(
                f'{self.key}: the range is empty ({list(self.times)}); set two positive factors, the smaller one first',
                code='empty-range',
            )

    @property
    def ends(self) -> list[float]:
        try:
            return [float(Fraction(str(end))) for end in self.times]
        except (ValueError, ZeroDivisionError):
            raise UserError(
                f'{self.key}: `times` must be numbers ({list(self.times)}); set, for example, [1/8, 8]',
                code='range-not-numbers',
            ) from None

    def at(self, place: float, own: Any) -> Any:
        """Return the value at a place from 0 to 1 on the dimension, for a row whose own value is `own`."""
        if self.values:
            return self.values[min(int(place * len(self.values)), len(self.values) - 1)]
        low, high = self.ends
        factor = low ** (1 - place) * high**place
        if self.complement:
            return 1 - (1 - own) * factor
        return max(1, round(own * factor)) if isinstance(own, int) else own * factor

    def place(self, value: Any, own: Any) -> float:
        """Return the place from 0 to 1 of a value; NaN if it is not a listed value."""
        if self.values:
            listed = value in self.values
            return self.values.index(value) / (len(self.values) - 1) if listed else math.nan
        low, high = self.ends
        factor = (1 - value) / (1 - own) if self.complement else value / own
        return math.log(factor / low) / math.log(high / low)

    def require_fits(self, row: str, own: Any) -> None:
        """Raise if the range does not apply to a row's own value."""
        if self.values:
            return
        is_number = isinstance(own, int | float) and own and own is not True
        if not is_number or (self.complement and not 0 <= self.at(1, own) < 1):
            raise UserError(
                f"{self.key}: `times` does not apply to the value of '{row}' ({own!r}); set `values`",
                code='range-does-not-fit',
            )


Dimensions = Annotated[dict[str, Dimension], Meta(min_length=1)]


class Tune(Declared, frozen=True):
    """Tunes the recipe of a task for each model, by trials around the recipe's own values."""

    trials: Annotated[int, Meta(ge=2)]
    dimensions: Dimensions

    def __post_init__(self) -> None:
        require_distinct(self.dimensions)


class Search(Declared, frozen=True):
    """Tunes the rows of a study before they are compared."""

    # Training FLOPs of a search, in runs of the study's cheapest row.
    budget: Annotated[float, Meta(ge=1, le=MOST_TRIALS)]
    dimensions: Dimensions
    searches: Annotated[int, Meta(ge=1)] = 3
    criterion: str = 'knn'

    def __post_init__(self) -> None:
        require_distinct(self.dimensions)
        require_searchable(self.dimensions)
        known = [name for name in PROTOCOLS.names() if not protocol_class(name).trains]
        if self.criterion not in known:
            raise UserError(
                f"search.criterion: not a protocol that searches can use ('{self.criterion}'); set one of {', '.join(known)}. "
                'To choose without labels among finished trials, see projects/label_free',
                code='unknown-criterion',
            )


def require_distinct(dimensions: Mapping[str, Dimension]) -> None:
    """Raise if two dimensions vary the same key, or if one key is part of the other."""
    for one, other in permutations(dimensions.values(), 2):
        if is_within(one.key, other.key):
            raise UserError(
                f'dimensions: {one.key} is varied twice, also as a part of {other.key}; remove one of the two',
                code='same-dimension',
            )


def require_searchable(dimensions: Mapping[str, Dimension]) -> None:
    """Raise if a dimension changes the length of training, its seed, or how trials are measured."""
    for (name, dimension), (key, reason) in product(dimensions.items(), NOT_SEARCHED.items()):
        if is_within(dimension.key, key) or is_within(key, dimension.key):
            raise UserError(
                f'search.dimensions.{name}: {dimension.key} cannot be searched, because {reason}; remove it',
                code='not-searchable',
            )


def is_within(key: str, prefix: str) -> bool:
    """Return True if a dotted key equals `prefix` or is part of it."""
    return f'{key}.'.startswith(f'{prefix}.')


def own_value(cfg: Config, key: str) -> Any:
    """Return the value of a dotted key, or None if the config has no such key."""
    return by_key(cfg).get(key)


def own_values(dimensions: Mapping[str, Dimension], cfg: Config) -> dict[str, Any]:
    """Return the values of the dimensions' keys in a config."""
    return {dimension.key: own_value(cfg, dimension.key) for dimension in dimensions.values()}


def dimensions_of(search: Search | Tune, row: Any, cfg: Config) -> dict[str, Dimension]:
    """Return the dimensions of a row, those of its own `search` included. Keys that its config lacks are skipped."""
    own = row.search if isinstance(search, Search) else {}
    require_searchable(own)
    dimensions = {**search.dimensions, **own}
    require_distinct(dimensions)
    fitting = {}
    for name, dimension in dimensions.items():
        value = own_value(cfg, dimension.key)
        if value is not None:
            dimension.require_fits(row.name, value)
            fitting[name] = dimension
        elif name in own:
            raise UserError(
                f"'{row.name}': the config has no {dimension.key} to search; remove the dimension {name}",
                code='no-key-to-search',
            )
    return fitting


def trials_for(budget: float, flops: Mapping[str, float]) -> dict[str, int]:
    """Return the number of trials of each row, as published included. The budget counts runs of the cheapest row."""
    total = budget * min(flops.values()) * (1 + 1e-9)  # so that rounding does not cost a trial
    return {row: max(1, math.floor(total / cost)) for row, cost in flops.items()}


def sobol_points(dimensions: int, number: int, trials: int) -> list[list[float]]:
    """Return the points of search `number`, one column per dimension. They do not depend on the row or the budget."""
    sobol = scipy.stats.qmc.Sobol(dimensions + OWN, rng=number)
    return sobol.random_base2(math.ceil(math.log2(max(1, trials)))).tolist()


def setting_count(search: Search | Tune, row: Any, cfg: Config) -> float:
    """Return the number of different trials, as published included; infinite if a range is searched."""
    dimensions = dimensions_of(search, row, cfg)
    if not all(dimension.values for dimension in dimensions.values()):
        return math.inf
    return 1 + sum(1 for _ in islice(_combinations(dimensions, cfg), MOST_TRIALS))


def trial_options(
    search: Search | Tune,
    row: Any,
    cfg: Config,
    number: int,
    trials: int,
) -> list[dict[str, Any]]:
    """Return the config overrides of the row's trials in search `number`. The first trial, as published, has none.

    If all dimensions list their values, there may be fewer different trials than `trials`.
    """
    dimensions = dimensions_of(search, row, cfg)
    columns = dict.fromkeys([*search.dimensions, *dimensions])
    own = own_values(dimensions, cfg)
    options: list[dict[str, Any]] = []
    further: list[dict[str, Any]] = []  # used if too few points differ
    for point in sobol_points(len(search.dimensions), number, SPARE * trials):
        if len(options) == trials - 1:
            break
        places = dict(zip(columns, point))
        sampled = {}
        for name, dimension in dimensions.items():
            sampled[dimension.key] = dimension.at(places[name], own[dimension.key])
        repeats = sampled == own or sampled in options
        (further if repeats else options).append(sampled)
    if all(dimension.values for dimension in dimensions.values()):
        listed = islice(_combinations(dimensions, cfg), SPARE * trials)
        further = [combination for combination in listed if combination not in options]
    return [{}, *options, *further][:trials]


def _combinations(dimensions: Mapping[str, Dimension], cfg: Config) -> Iterator[dict[str, Any]]:
    """Yield all combinations of listed values, except for the row's own."""
    own = own_values(dimensions, cfg)
    different = []
    for dimension in dimensions.values():
        values = dimension.values
        different.append([value for at, value in enumerate(values) if value not in values[:at]])
    for values in product(*different):
        options = dict(zip(own, values))
        if options != own:
            yield options


def searched_keys(
    search: Search | None, rows: Sequence[Any], configs: Mapping[str, Config]
) -> dict[str, set[str]]:
    """Return the searched keys of each row.

    Raises:
        UserError: If no row has one of the keys, or if only one of two compared rows has an undeclared key.
    """
    if search is None:
        return {row.name: set() for row in rows}
    keys = {}
    for row in rows:
        dimensions = dimensions_of(search, row, configs[row.name])
        keys[row.name] = {dimension.key for dimension in dimensions.values()}
    for name, dimension in search.dimensions.items():
        if not any(dimension.key in searched for searched in keys.values()):
            raise UserError(
                f'search.dimensions.{name}: no row has the key ({dimension.key}); correct it',
                code='no-key-to-search',
            )
    for row in rows:
        for key in sorted(keys[row.name] ^ keys[row.against or row.name]):
            if not any(is_within(key, prefix) for prefix in row.declares):
                raise UserError(
                    f"'{row.name}': {key} is searched in only one of this row and '{row.against}'; search both, or add the key "
                    "to the row's `declares`",
                    code='undeclared-search',
                )
    return keys
