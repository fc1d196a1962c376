"""Tune the rows of a study with equal budgets before they are compared.

Tuning is a study before the study. Each search trains several trials of each row. The first trial has the row's own options.
Further trials change the row's own values of the tuned keys, along scrambled Sobol points that are the same for all rows.
Trials are measured on held-out images, never on test images. Each row is then trained with the options of its best trial, from
a fresh seed, and only these runs are compared. The replicate of a tuned row is a whole search, so the spread over seeds
includes the randomness of tuning.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import scipy
from mmengine.config import Config
from msgspec import structs

from mmairl.config import walk
from mmairl.errors import UserError
from mmairl.evaluation.sets import held_out, require_apart
from mmairl.study.cost import run_flops
from mmairl.study.fairness import Prepared
from mmairl.study.runs import Run, lay_out_runs, plan_runs
from mmairl.study.study import Row, Study, Tune
from mmairl.study.tasks import metric_of

# The seed of the trials of search 0. It is far from the seeds of the compared runs, which are 0, 1, and so on.
FIRST_SEED = 1000


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
    own = {'.'.join(map(str, keys)): value for keys, value in walk(cfg.to_dict())}
    points = scipy.stats.qmc.Sobol(len(tune.ranges), rng=search).random_base2(trials.bit_length())
    options: list[dict[str, Any]] = [{}]
    for point in points[: trials - 1]:
        sampled = {}
        for (key, times), place in zip(tune.ranges.items(), point):
            value, factor = own.get(key), times ** (2 * float(place) - 1)
            if value is None:
                continue
            new = 1 - (1 - value) * factor if key in tune.momenta else value * factor
            sampled[key] = round(new) if isinstance(value, int) else new
        options.append(sampled)
    return options


def trial_study(prepared: Prepared, search: int) -> Prepared:
    """Return the study of all trials of one search. Its rows are 'ROW, trial NUMBER', and its test images are held out."""
    tune = prepared.study.tune
    trained = [row for row in prepared.study.rows if row.trains]
    flops = {row.name: run_flops(prepared.configs[row.name]) for row in trained}
    counts = trial_counts(tune.budget, flops)
    rows, configs = [], {}
    for row in trained:
        cfg = prepared.configs[row.name]
        for number, options in enumerate(trial_options(tune, cfg, search, counts[row.name])):
            trial = Row(f'{row.name}, trial {number}', row.config, options)
            changed = copy.deepcopy(cfg)
            changed.merge_from_dict(options)
            changed.evaluation.train, changed.evaluation.test = held_out(cfg.evaluation)
            changed.evaluation.pop('val', None)
            rows.append(trial)
            configs[trial.name] = changed
    study = Study(f'Search {search}', rows=tuple(rows), seeds=(FIRST_SEED + search,))
    folder = prepared.out / 'trials' / f'search_{search}'
    return Prepared(study, configs, (tune.criterion,), folder)


def prepare_trials(prepared: Prepared, fresh: bool = False) -> list[Prepared]:
    """Lay out the runs of all searches (see `lay_out_runs`). The held-out images must not contain test images."""
    described = {str(cfg.get('evaluation')): cfg for cfg in prepared.configs.values()}
    for cfg in described.values():
        require_apart(cfg.evaluation)
    searches = [trial_study(prepared, search) for search in prepared.study.seeds]
    for trials in searches:
        lay_out_runs(trials, fresh)
    return searches


def with_chosen_options(prepared: Prepared) -> Prepared:
    """Return the study with the options of the best trials, and with the seeds of the searches that have ended.

    A search has ended if each of its trials has a score or has failed.
    """
    tuned: dict[str, dict[int, Mapping[str, Any]]] = {}
    ended = []
    for search in prepared.study.seeds:
        runs = plan_runs(trial_study(prepared, search))
        if any(run.state()[0] not in ('done', 'failed') for run in runs):
            continue
        ended.append(search)
        for row in filter(lambda row: row.trains, prepared.study.rows):
            trials = [run for run in runs if run.row.name.rpartition(',')[0] == row.name]
            best = best_trial(trials, prepared.study.tune.criterion)
            tuned.setdefault(row.name, {})[search] = best.row.options
    study = structs.replace(prepared.study, seeds=tuple(ended))
    return replace(prepared, study=study, tuned=tuned)


def best_trial(trials: Sequence[Run], task: str) -> Run:
    """Return the trial with the best score. A trial that failed loses; of equal trials, the first one wins.

    Raises:
        UserError: If no trial has a score.
    """
    scores = {}
    for run in filter(lambda run: run.done, trials):
        scores[run] = next(iter(run.measured(task).scores.values()))
    if not scores:
        raise UserError(
            'tune: no trial of a row has finished; see the logs of the trials',
            code='no-finished-trial',
        )
    best = min if metric_of(task, task)['lower_is_better'] else max
    return best(scores, key=scores.get)
