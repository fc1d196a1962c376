"""Run the trials that tune the rows of a study, and choose the best trial of each row in each search."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from mmairl.evaluation.sets import held_out, require_apart
from mmairl.io import read_json, write_json
from mmairl.study.cost import run_flops
from mmairl.study.fairness import Prepared
from mmairl.study.runs import Measured, lay_out, plan_runs
from mmairl.study.study import Row, Study
from mmairl.study.tasks import metric_of
from mmairl.study.tune import FIRST_SEED, best_trial, trial_counts, trial_options


def trial_study(prepared: Prepared, search: int) -> Prepared:
    """Return the study of all trials of one search. Its rows are 'ROW, trial NUMBER', and its test images are held out."""
    tune = prepared.study.tune
    trained = [row for row in prepared.study.rows if row.trains]
    counts = trial_counts(
        tune.budget, {row.name: run_flops(prepared.configs[row.name]) for row in trained}
    )
    rows, configs = [], {}
    for row in trained:
        cfg = prepared.configs[row.name]
        for number, options in enumerate(trial_options(tune, cfg, search, counts[row.name])):
            trial = Row(f'{row.name}, trial {number}', row.config, options)
            changed = copy.deepcopy(cfg)
            changed.merge_from_dict(options)
            train, test = held_out(cfg.evaluation)
            changed.evaluation.pop('val', None)
            changed.evaluation.update(train=train, test=test)
            rows.append(trial)
            configs[trial.name] = changed
    study = Study(f'Search {search}', rows=tuple(rows), seeds=(FIRST_SEED + search,))
    return Prepared(study, configs, (tune.criterion,), prepared.out / 'trials' / f'search_{search}')


def prepare_trials(prepared: Prepared) -> list[Prepared]:
    """Lay out the runs of all searches. The held-out images must not contain test images."""
    described = {str(cfg.get('evaluation')): cfg for cfg in prepared.configs.values()}
    for cfg in described.values():
        require_apart(cfg.evaluation)
    searches = [trial_study(prepared, search) for search in prepared.study.seeds]
    for trials in searches:
        lay_out(trials)
    return searches


def with_chosen_options(prepared: Prepared) -> Prepared:
    """Return the study with the options of the best trials, and with the seeds of the searches that have ended.

    A search has ended if each of its trials has a score or has failed.
    """
    tuned: dict[str, dict[int, Mapping[str, Any]]] = {}
    ended = []
    for search in prepared.study.seeds:
        trials = trial_study(prepared, search)
        runs = plan_runs(trials)
        if all(run.state()[0] in ('done', 'failed') for run in runs):
            ended.append(search)
            for name, options in _choose(prepared, runs).items():
                tuned.setdefault(name, {})[search] = options
    write_json(prepared.out / 'tuned.json', tuned)
    study = structs.replace(prepared.study, seeds=tuple(ended))
    return replace(prepared, study=study, tuned=tuned)


def _choose(prepared: Prepared, runs: list) -> dict[str, Mapping[str, Any]]:
    """Return the options of the best trial of each row."""
    task = prepared.study.tune.criterion
    higher_is_better = not metric_of(task, task)['lower_is_better']
    by_row: dict[str, dict] = {}
    for run in runs:
        by_row.setdefault(run.row.name.rpartition(', trial ')[0], {})[run] = None
        if run.done:
            scores = read_json(run.folder / f'{task}.json', Measured).scores
            by_row[run.row.name.rpartition(', trial ')[0]][run] = next(iter(scores.values()))
    chosen = {}
    for name, scores in by_row.items():
        trials = list(scores)
        best = best_trial(dict(enumerate(scores.values())), higher_is_better)
        chosen[name] = trials[best].row.options
    return chosen
