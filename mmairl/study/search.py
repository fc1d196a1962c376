"""Tune the rows of a study with equal budgets before they are compared.

A row of a study is one configuration, usually trained with several seeds.

A search trains several trials of each row. The first trial has the row's own options (the row as published).
Further trials change the row's own values of the searched keys. The changes follow scrambled Sobol points, which are the same
for all rows. Each row is then trained with the options of its best trial from a fresh seed, and only these final runs are
compared.

A study repeats the search with other points and seeds. The spread over the searches therefore includes the randomness of
tuning and the randomness of training.
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

MOST_TRIALS = 10_000  # the largest number of trials of a row in one search
# The number of Sobol points that are computed for each trial. Spare points are needed, because a point is skipped if it
# repeats the options of an earlier trial.
SPARE = 16
OWN = 2  # the largest number of dimensions that a row can add to the study's dimensions
LENGTH = 'the budget assumes that all trials of a row have the same length and batch size'
MEASURING = 'all trials must be measured in the same way'
NOT_SEARCHED = {  # the config keys that cannot be searched, with the reasons
    **dict.fromkeys(('train_cfg', 'total_batch_size', 'train_dataloader.batch_size'), LENGTH),
    **dict.fromkeys(('evaluation', 'recipes'), MEASURING),
    'randomness': 'all trials of a search must have the same seed',
}
# The seed of the trials of search 0. It is far from the seeds of the compared runs, which are 0, 1, ..., so that trials do
# not share a seed with them.
FIRST = 1000


class Dimension(Declared, frozen=True):
    """A dimension of a search: a config key whose value differs between trials.

    With `times`, trials multiply the row's own value by factors from a range, on a log scale. With `values`, trials take
    one of the listed values. With `complement`, the factors multiply 1 - value, which suits a momentum such as 0.996.
    """

    key: str
    times: Annotated[tuple[float | str, ...], Meta(min_length=2, max_length=2)] | None = None
    values: Annotated[tuple[Any, ...], Meta(min_length=2)] | None = None
    complement: bool = False

    def __post_init__(self) -> None:
        if (self.times is None) == (self.values is None):
            raise UserError(
                f'{self.key}: a dimension requires exactly one of `times` and `values`; set one of them, such as '
                '`times: [1/8, 8]`',
                code='times-or-values',
            )
        if self.times and not 0 < self.ends[0] < self.ends[1]:
            raise UserError(
                f'{self.key}: `times` must be two positive factors, the smaller one first ({list(self.times)}); correct the '
                'factors',
                code='empty-range',
            )

    @property
    def ends(self) -> list[float]:
        try:
            return [float(Fraction(str(end))) for end in self.times]
        except (ValueError, ZeroDivisionError):
            raise UserError(
                f'{self.key}: `times` must be two numbers ({list(self.times)}); set, for example, [1/8, 8]',
                code='range-not-numbers',
            ) from None

    def at(self, place: float, own: Any) -> Any:
        """Return the value that a trial uses.

        Args:
            place: The position on the dimension, from 0 (its start) to 1 (its end).
            own: The row's own value.
        """
        if self.values:
            return self.values[min(int(place * len(self.values)), len(self.values) - 1)]
        low, high = self.ends
        factor = low ** (1 - place) * high**place
        if self.complement:
            return 1 - (1 - own) * factor
        return max(1, round(own * factor)) if isinstance(own, int) else own * factor

    def place(self, value: Any, own: Any) -> float:
        """Return the position of a value on the dimension, where 0 is the start and 1 is the end.

        This is the inverse of `at`. The position of a value outside of the range is below 0 or above 1. It is NaN if the
        dimension lists its values and the value is not one of them.
        """
        if self.values:
            listed = value in self.values
            return self.values.index(value) / (len(self.values) - 1) if listed else math.nan
        low, high = self.ends
        factor = (1 - value) / (1 - own) if self.complement else value / own
        return math.log(factor / low) / math.log(high / low)

    def require_fits(self, row: str, own: Any) -> None:
        """Raise an error if the range of factors cannot be applied to a row's own value, for example to 0 or to a text."""
        if self.values:
            return
        is_number = isinstance(own, int | float) and own and own is not True
        if not is_number or (self.complement and not 0 <= self.at(1, own) < 1):
            raise UserError(
                f"{self.key}: the factors in `times` cannot be applied to the value of row '{row}' ({own!r}); list `values` "
                'instead',
                code='range-does-not-fit',
            )


Dimensions = Annotated[dict[str, Dimension], Meta(min_length=1)]


class Tune(Declared, frozen=True):
    """Tunes the training recipe of a task, such as fine-tuning, separately for each model.

    The trials vary the recipe's own values.
    """

    trials: Annotated[int, Meta(ge=2)]
    dimensions: Dimensions

    def __post_init__(self) -> None:
        require_distinct(self.dimensions)


class Search(Declared, frozen=True):
    """Tunes the rows of a study before they are compared."""

    # The training FLOPs that each row can spend on its trials in one search. The unit is one run of the study's cheapest row.
    budget: Annotated[float, Meta(ge=1, le=MOST_TRIALS)]
    dimensions: Dimensions
    searches: Annotated[int, Meta(ge=1)] = 3
    criterion: str = 'knn'

    def __post_init__(self) -> None:
        require_distinct(self.dimensions)
        require_searchable(self.dimensions)
        known = []
        for name in PROTOCOLS.names():
            protocol = protocol_class(name)
            # Higher values of scores in percent are better. Other scores, such as uniformity, can be better if they are lower.
            if not protocol.trains and protocol.unit == '%':
                known.append(name)
        if self.criterion not in known:
            raise UserError(
                f"search.criterion: trials cannot be compared by this task ('{self.criterion}'); set one of "
                f'{", ".join(known)}. To choose among finished trials without labels, see projects/label_free',
                code='unknown-criterion',
            )


def require_distinct(dimensions: Mapping[str, Dimension]) -> None:
    """Raise an error if two dimensions have the same key, or if one key contains the other."""
    for one, other in permutations(dimensions.values(), 2):
        if is_within(one.key, other.key):
            raise UserError(
                f'dimensions: {one.key} is searched twice, because another dimension searches {other.key}; remove one of the '
                'two dimensions',
                code='same-dimension',
            )


def require_searchable(dimensions: Mapping[str, Dimension]) -> None:
    """Raise an error if a dimension would change the length, batch size or seed of training, or how trials are measured."""
    for (name, dimension), (key, reason) in product(dimensions.items(), NOT_SEARCHED.items()):
        if is_within(dimension.key, key) or is_within(key, dimension.key):
            raise UserError(
                f'search.dimensions.{name}: {dimension.key} cannot be searched, because {reason}; remove the dimension',
                code='not-searchable',
            )


def is_within(key: str, prefix: str) -> bool:
    """Return True if a dotted key is `prefix` or a key inside it, such as `model.head` inside `model`."""
    return f'{key}.'.startswith(f'{prefix}.')


def own_value(cfg: Config, key: str) -> Any:
    """Return the value of a dotted key, or None if the config has no such key."""
    return by_key(cfg).get(key)


def own_values(dimensions: Mapping[str, Dimension], cfg: Config) -> dict[str, Any]:
    """Return the config's own values of the searched keys."""
    return {dimension.key: own_value(cfg, dimension.key) for dimension in dimensions.values()}


def dimensions_of(search: Search | Tune, row: Any, cfg: Config) -> dict[str, Dimension]:
    """Return the dimensions in which a row is searched: the study's dimensions, and those that only this row has.

    A dimension of the study is skipped if the row's config lacks its key.
    """
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
                f"row '{row.name}': its config does not have the searched key {dimension.key}; remove the dimension {name}",
                code='no-key-to-search',
            )
    return fitting


def trials_for(budget: float, flops: Mapping[str, float]) -> dict[str, int]:
    """Return how many trials each row can afford, but at least one: the trial of the row as published.

    Args:
        budget: The FLOPs of each row's trials, in units of one run of the cheapest row.
        flops: The training FLOPs of one run of each row.
    """
    # The small extra budget prevents a rounding error from removing a trial that the budget exactly pays for.
    total = budget * min(flops.values()) * (1 + 1e-9)
    return {row: max(1, math.floor(total / cost)) for row, cost in flops.items()}


def sobol_points(dimensions: int, number: int, trials: int) -> list[list[float]]:
    """Return the Sobol points of a search.

    A point has one coordinate for each dimension of the study, and OWN more for the dimensions that a row can add. The
    points do not depend on the row, and a larger budget only adds points.

    Args:
        dimensions: The number of the study's dimensions.
        number: The index of the search.
        trials: The smallest number of points to return.
    """
    sobol = scipy.stats.qmc.Sobol(dimensions + OWN, rng=number)
    return sobol.random_base2(math.ceil(math.log2(max(1, trials)))).tolist()


def setting_count(search: Search | Tune, row: Any, cfg: Config) -> float:
    """Return the number of different trials that a row can have, including the row as published.

    The number is infinite if a dimension has a range of factors.
    """
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
    """Return the config overrides of each trial of a row in one search.

    The first trial has no overrides. It is the row as published or, if a recipe is tuned, the unchanged recipe.

    Args:
        search: The dimensions to search.
        row: The row.
        cfg: The row's config, or the recipe that is tuned.
        number: The index of the search. If a recipe is tuned, the seed of the run.
        trials: The number of trials. The result has fewer trials if all dimensions list their values and these have fewer
            combinations.
    """
    dimensions = dimensions_of(search, row, cfg)
    columns = dict.fromkeys([*search.dimensions, *dimensions])
    own = own_values(dimensions, cfg)
    options: list[dict[str, Any]] = []
    # Options that repeat an earlier trial. They are used only if too few points have different options.
    further: list[dict[str, Any]] = []
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
    """Yield all combinations of listed values, except for the combination of the row's own values."""
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
    """Return the config keys that are searched in each row.

    Raises:
        UserError: If no row has the key of a dimension. An error is also raised if a key is searched in only one of two
            compared rows (a row and the row in its `against`), unless the row declares the key.
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
                f"search.dimensions.{name}: no row's config has the key ({dimension.key}); correct the key",
                code='no-key-to-search',
            )
    for row in rows:
        for key in sorted(keys[row.name] ^ keys[row.against or row.name]):
            if not any(is_within(key, prefix) for prefix in row.declares):
                raise UserError(
                    f"row '{row.name}': {key} is searched in only one of the two compared rows '{row.name}' and "
                    f"'{row.against}'; search it in both rows, or add the key to the row's `declares`",
                    code='undeclared-search',
                )
    return keys
