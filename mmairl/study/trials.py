"""Plan, compare and record the trials of a search.

A row of a study is one configuration. A search tunes each row by trials, which are training runs with different options. A row
with its own, unchanged options is called the row as published. This module returns the number of trials of each row, chooses
the best trial, and records all trials for the study page.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.errors import UserError
from mmairl.io import read_json, write_json
from mmairl.study.cost import flops
from mmairl.study.factors import Configs
from mmairl.study.schema import (
    CHOICE,
    REQUEST_AND_LOGS,
    Asked,
    Choice,
    Chosen,
    RunResult,
    set_aside,
)
from mmairl.study.search import (
    FIRST,
    Search,
    dimensions_of,
    own_value,
    own_values,
    setting_count,
    trials_for,
)
from mmairl.study.spec import Row, Study
from mmairl.study.statistics.tuning import best_of, curve, fraction_within

EDGE = 0.1  # A trial in the first or last tenth of a range counts as close to the end of the range.
# how many seconds the other ranks of a run wait until rank 0 has written the best trial
PATIENCE = 600

Trial = dict[str, Any]


def trial_counts(study: Study, configs: Configs) -> dict[str, int]:
    """Return the number of trials of each trained row in one search.

    The number is limited by the budget of FLOPs, and by the number of different settings if all dimensions list values.
    """
    rows = {row.name: row for row in study.rows if row.trains}
    costs = flops({name: configs[name] for name in rows})
    counts = {}
    for name, count in trials_for(study.search.budget, costs).items():
        counts[name] = min(count, setting_count(study.search, rows[name], configs[name]))
    return counts


def runs_of_each(study: Study, configs: Configs) -> dict[str, int]:
    """Return the number of runs per seed of each row, except untrained rows and rows with external checkpoints.

    In a study with a search, the runs include the trials and the run of the row as published.
    """
    trials = trial_counts(study, configs) if study.search else {}
    rows = [row.name for row in study.rows if not (row.untrained or row.weights)]
    return {name: trials.get(name, 0) + 1 + bool(study.search) for name in rows}


def criterion_score(trial: Path, criterion: str) -> float:
    """Return the score by which a search compares a trial; minus infinity if the trial diverged."""
    result = read_json(trial / 'result.json', RunResult)
    if result.diverged:
        return -math.inf
    if criterion not in result.scores:
        raise UserError(
            f'{trial}: the trial has no score of {criterion} yet; run the study again',
            code='trial-not-measured',
        )
    return result.scores[criterion]


def best_trial(chosen: Chosen) -> Choice:
    """Return the best trial with its options and its score. If several trials have the best score, return the first."""
    scores = {trial: criterion_score(Path(trial), chosen.criterion) for trial in chosen.trials}
    trial = max(scores, key=scores.__getitem__)
    if scores[trial] == -math.inf:
        raise UserError(
            f'{Path(trial).parent}: all {len(scores)} trials of the search have diverged; set other ranges in '
            'search.dimensions',
            code='all-trials-diverged',
        )
    return Choice(trial, read_json(Path(trial) / 'asked.json', Asked).trial, scores[trial])


def take_best(folder: Path, chosen: Chosen) -> dict[str, Any]:
    """Write the best trial to chosen.json, and return its options.

    If the run was trained earlier with the options of another trial, its files are moved to a new folder next to its folder.
    """
    choice = best_trial(chosen)
    path = folder / CHOICE
    if path.is_file() and read_json(path, Choice).options != choice.options:
        earlier = set_aside(folder, keep=REQUEST_AND_LOGS, last=CHOICE)
        print(
            f'{choice.trial} is now the best trial; the run with the options of the earlier best trial was moved to {earlier}'
        )
    write_json(path, choice)
    return choice.options


def wait_for_choice(folder: Path, chosen: Chosen) -> dict[str, Any]:
    """Wait until rank 0 of the run has written the best trial to chosen.json, and return the trial's options."""
    choice = best_trial(chosen)
    path = folder / CHOICE
    for _ in range(PATIENCE):
        if path.is_file() and read_json(path, Choice).options == choice.options:
            return choice.options
        time.sleep(1)
    raise UserError(
        f'{folder}: rank 0 of this run did not write {CHOICE}; start the run again',
        code='no-choice',
    )


def search_record(
    study: Study,
    configs: Configs,
    seeds: Sequence[int],
    trials: Mapping[str, Sequence[Trial]],
) -> dict[str, Any]:
    """Return the part of study.json that the study page uses to describe the searches.

    Args:
        study: The study.
        configs: The config of each row.
        seeds: The indices of the searches.
        trials: The records of each row's trials, as `collect.describe` returns them.
    """
    search = study.search
    counts = trial_counts(study, configs)
    costs = flops({name: configs[name] for name in counts})
    budgets = [trials_for(budget, costs) for budget in range(1, int(search.budget) + 1)]
    rows = {}
    curves = {}
    near_best = {}
    edges: list[dict[str, Any]] = []
    for row in study.rows:
        name = row.name
        if not row.trains:
            continue
        rows[name] = _described_trials(search, row, configs[name], trials[name])
        ended = _ended(rows[name], seeds, counts[name])
        for best in map(best_of_search, ended):
            best['chosen'] = best['score'] is not None
        scores = [[trial['score'] or 0.0 for trial in one_search] for one_search in ended]
        tried = [min(budget[name], counts[name]) - 1 for budget in budgets]
        if scores:
            curves[name] = curve([best_of(one[0], one[1:])[tried] for one in scores])
            edges += _edges(search, row, configs[name], ended)
        near_best[name] = [fraction_within(one, study.equivalence) for one in scores]
    return dict(
        criterion=search.criterion,
        budget=search.budget,
        margin=study.equivalence,
        searches=len(seeds),
        dimensions={name: dimension.key for name, dimension in search.dimensions.items()},
        counts=counts,
        rows=rows,
        curves=curves,
        forgiving=near_best,
        edges=edges,
    )


def _described_trials(
    search: Search, row: Row, cfg: Config, runs: Sequence[Trial]
) -> list[dict[str, Any]]:
    """Return the record of each trial of a row: its value of each dimension, its score if it has one, and its state."""
    dimensions = dimensions_of(search, row, cfg)
    own = own_values(dimensions, cfg)
    trials = []
    for run in runs:
        options = own | run['trial']
        trial = dict(
            search=run['seed'] - FIRST,
            trial=int(Path(run['folder']).name),
            folder=run['folder'],
            state=run['state'],
            seconds=run.get('seconds'),
            values={name: options[dimension.key] for name, dimension in dimensions.items()},
            score=run.get('scores', {}).get(search.criterion),
            diverged=run.get('diverged', ''),
            chosen=False,  # `search_record` marks the best trial once all trials of the search have ended.
        )
        trials.append(trial)
    return trials


def _ended(trials: Sequence[Trial], seeds: Sequence[int], count: int) -> list[list[Trial]]:
    """Return the trials of each complete search: a search whose trials have all been measured or have diverged."""
    searches: dict[int, list[Trial]] = {number: [] for number in seeds}
    for trial in trials:
        has_score = trial['diverged'] or trial['score'] is not None
        if trial['state'] == 'done' and has_score and trial['search'] in searches:
            searches[trial['search']].append(trial)
    return [ended for ended in searches.values() if len(ended) == count]


def best_of_search(trials: Sequence[Trial]) -> Trial:
    """Return the trial that a search chooses: the one with the best score, or the first of several equal ones."""
    return max(trials, key=lambda trial: -math.inf if trial['score'] is None else trial['score'])


def _edges(
    search: Search, row: Row, cfg: Config, searches: Sequence[Sequence[Trial]]
) -> Iterator[dict[str, Any]]:
    """Yield, for each end of a dimension's range, a record of how many searches have their best trial close to this end.

    Ends without such a trial are skipped. If many searches have their best trial close to an end, better values may lie
    outside the range.
    """
    best = list(map(best_of_search, searches))
    for name, dimension in dimensions_of(search, row, cfg).items():
        own = own_value(cfg, dimension.key)
        places = [dimension.place(trial['values'][name], own) for trial in best]
        at_start = sum(place <= EDGE for place in places)
        at_end = sum(place >= 1 - EDGE for place in places)
        # With `complement`, factors multiply 1 - value. The lowest factor then gives the highest value, so the range starts
        # at the highest value.
        ends = ('high', 'low') if dimension.complement else ('low', 'high')
        for end, count in zip(ends, (at_start, at_end)):
            if count:
                yield dict(row=row.name, dimension=name, end=end, searches=count, of=len(best))
