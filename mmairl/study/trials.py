"""Run the trials that tune the rows of a study, and choose the best trial of each row in each search."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from mmairl.evaluation.sets import held_out, require_apart
from mmairl.io import read_json, write_json
from mmairl.study.cost import run_flops
from mmairl.study.fairness import Prepared
from mmairl.study.runs import Measured, Run, lay_out, plan_runs
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
        runs = plan_runs(trial_study(prepared, search))
        if any(run.state()[0] not in ('done', 'failed') for run in runs):
            continue
        ended.append(search)
        trials: dict[str, list[Run]] = {}
        for run in runs:
            trials.setdefault(run.row.name.rpartition(', trial ')[0], []).append(run)
        for name, tried in trials.items():
            tuned.setdefault(name, {})[search] = _best(tried, prepared.study.tune.criterion)
    write_json(prepared.out / 'tuned.json', tuned)
    return replace(prepared, study=structs.replace(prepared.study, seeds=tuple(ended)), tuned=tuned)


def _best(trials: Sequence[Run], task: str) -> Mapping[str, Any]:
    """Return the options of the best trial of a row."""
    scores: dict[int, float | None] = {}
    for number, run in enumerate(trials):
        path = run.folder / f'{task}.json'
        scores[number] = next(iter(read_json(path, Measured).scores.values())) if run.done else None
    return trials[best_trial(scores, not metric_of(task, task)['lower_is_better'])].row.options
