"""Tune the rows of a study with equal budgets before they are compared.

Tuning is a study before the study. Each search trains several trials of each row. The first trial has the row's own options.
Further trials change the row's own values of the tuned keys, along scrambled Sobol points that are the same for all rows.
Trials are measured on held-out images, never on test images. Each row is then trained with the options of its best trial, from
a fresh seed, and only these runs are compared. The replicate of a tuned row is a whole search, so the spread over seeds
includes the randomness of tuning.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

import scipy
from mmengine.config import Config
from msgspec import Meta

from mmairl.config import by_key
from mmairl.errors import UserError
from mmairl.io import Declared

# The seed of the trials of search 0. It is far from the seeds of the compared runs, which are 0, 1, and so on.
FIRST_SEED = 1000
# The config keys that must be equal in all trials: they change the cost or the measurement of a trial.
FIXED = ('train_cfg', 'total_batch_size', 'train_dataloader', 'evaluation', 'recipes', 'randomness')


class Range(Declared, frozen=True):
    """The values of a tuned key: the row's own value times a factor between the ends of `times`, on a log scale.

    With `complement`, the factor multiplies 1 - value, which suits a momentum such as 0.996.
    """

    times: Annotated[tuple[float | str, ...], Meta(min_length=2, max_length=2)]
    complement: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.factor(0) < self.factor(1):
            raise UserError(
                f'tune.keys: `times` must be two positive factors, the smaller one first ({list(self.times)}); correct them',
                code='empty-range',
            )

    def factor(self, place: float) -> float:
        """Return the factor at a position from 0 (the start of the range) to 1 (its end)."""
        low, high = (float(Fraction(str(end))) for end in self.times)
        return low ** (1 - place) * high**place

    def at(self, place: float, own: Any) -> Any:
        """Return the value at a position, given the row's own value."""
        if self.complement:
            return 1 - (1 - own) * self.factor(place)
        value = own * self.factor(place)
        return max(1, round(value)) if isinstance(own, int) else value


class Tune(Declared, frozen=True):
    """Tunes the rows of a study before they are compared.

    `budget` is the training FLOPs that each row can spend on its trials in one search, in runs of the cheapest row.
    """

    budget: Annotated[float, Meta(ge=1, le=1000)]
    keys: Annotated[dict[str, Range], Meta(min_length=1)]
    searches: Annotated[int, Meta(ge=1)] = 3
    criterion: str = 'knn'

    def __post_init__(self) -> None:
        for key in self.keys:
            if fixed := [name for name in FIXED if f'{key}.'.startswith(f'{name}.')]:
                raise UserError(
                    f'tune.keys: {key} cannot be tuned, because {fixed[0]} must be equal in all trials; remove the key',
                    code='not-tunable',
                )


def trial_counts(budget: float, flops: Mapping[str, float | None]) -> dict[str, int]:
    """Return how many trials of each row the budget pays for, at least one.

    Args:
        budget: The cost of each row's trials, in runs of the cheapest row.
        flops: The training FLOPs of a run of each row. If some are unknown, all rows have the same number of trials.
    """
    if None in flops.values():
        flops = dict.fromkeys(flops, 1.0)
    # The small extra budget prevents a rounding error from removing a trial that the budget exactly pays for.
    total = budget * min(flops.values()) * (1 + 1e-9)
    return {row: max(1, math.floor(total / cost)) for row, cost in flops.items()}


def trial_options(tune: Tune, cfg: Config, search: int, trials: int) -> list[dict[str, Any]]:
    """Return the config overrides of each trial of a row in one search. The first trial has none.

    Keys that the row's config lacks are skipped. The Sobol points depend only on the index of the search, so all rows have the
    same points, and a larger budget only adds points.
    """
    own = {key: by_key(cfg).get(key) for key in tune.keys}
    sobol = scipy.stats.qmc.Sobol(len(tune.keys), rng=search)
    points = sobol.random_base2(math.ceil(math.log2(trials)))[: trials - 1] if trials > 1 else ()
    options: list[dict[str, Any]] = [{}]
    for point in points:
        sampled = {}
        for (key, values), place in zip(tune.keys.items(), point):
            if own[key] is not None:
                sampled[key] = _value(key, values, float(place), own[key])
        options.append(sampled)
    return options


def _value(key: str, values: Range, place: float, own: Any) -> Any:
    try:
        return values.at(place, own)
    except TypeError:
        raise UserError(
            f"tune.keys: the factors of {key} cannot be applied to the row's own value ({own!r}); remove the key",
            code='range-does-not-fit',
        ) from None


def best_trial(scores: Mapping[int, float | None], higher_is_better: bool = True) -> int:
    """Return the index of the best trial. A trial without a score, which failed, is the worst. Of equal trials, the first wins.

    Raises:
        UserError: If no trial has a score.
    """
    known = {trial: score for trial, score in scores.items() if score is not None}
    if not known:
        raise UserError(
            'tune: no trial of a row has finished; see the logs of the trials',
            code='no-finished-trial',
        )
    sign = 1 if higher_is_better else -1
    return max(sorted(known), key=lambda trial: sign * known[trial])
