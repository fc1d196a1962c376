"""The trials of a search: how many a row has, the choice among them, and what they say of tuning."""

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.errors import UserError
from mmairl.io import read_json, write_json
from mmairl.study.cost import flops
from mmairl.study.schema import Asked, Choice, Chosen, Result
from mmairl.study.search import FIRST, Search, dimensions_of, own_value, settings_of, trials_for
from mmairl.study.spec import Row, Study
from mmairl.study.statistics.tuning import best_of, curve, forgiving

EDGE = 0.1  # of a range, at each end
NOTED = 'chosen.json'
PATIENCE = 600  # seconds for the first process of a run to set an earlier choice aside
# Of a run's folder: what belongs to its place in the study, and not to what was trained.
OF_THE_FOLDER = ('asked*', 'log.txt', 'failed*.txt', 'job.*', 'begun.txt', '.lock*')


def trial_counts(study: Study, configs: Mapping[str, Config]) -> dict[str, int]:
    """Return how many trials each row that trains has: by the FLOPs of its training, and no more than there are values."""
    rows = {row.name: row for row in study.rows if row.trains}
    counts = trials_for(study.search.budget, flops({name: configs[name] for name in rows}))
    return {name: min(count, settings_of(study.search, rows[name], configs[name])) for name, count in counts.items()}


def runs_of_each(study: Study, configs: Mapping[str, Config]) -> dict[str, int]:
    """Return the runs that a seed takes of each row that is not measured once; a search takes its trials, too."""
    trials = trial_counts(study, configs) if study.search else {}
    rows = [row.name for row in study.rows if not row.untrained]
    return {name: trials.get(name, 0) + 1 + bool(study.search) for name in rows}


def scores_of(folders: Mapping[Any, Path] | tuple[Path, ...], criterion: str) -> list[float]:
    """Return the criterion of each trial; one that diverged is below all others."""
    results = {Path(folder): read_json(Path(folder) / 'result.json', Result) for folder in folders}
    if lacking := [folder for folder, result in results.items() if not (result.diverged or criterion in result.scores)]:
        raise UserError(f'{lacking[0]} is not measured by {criterion} yet; run the study again')
    return [-math.inf if result.diverged else result.scores[criterion] for result in results.values()]


def best_trial(chosen: Chosen) -> Choice:
    """Return the best trial and the keys that it changed; the first of equals is nearest to the published."""
    scores = scores_of(tuple(map(Path, chosen.trials)), chosen.criterion)
    if (best := max(scores)) == -math.inf:
        folder = Path(chosen.trials[0]).parent
        raise UserError(f'all {len(scores)} trials in {folder} have diverged; give its dimensions other ranges')
    trial = chosen.trials[scores.index(best)]
    return Choice(trial, read_json(Path(trial) / 'asked.json', Asked).trial, best)


def take_best(folder: Path, chosen: Chosen) -> dict[str, Any]:
    """Return the keys that the best trial changed, and note the choice; what an earlier choice has left is set aside."""
    choice, noted = best_trial(chosen), folder / NOTED
    if noted.is_file() and read_json(noted, Choice).options != choice.options:
        print(f'{choice.trial} is the best trial now; what the earlier choice has left is in {set_aside(folder)}')
    write_json(noted, choice)
    return choice.options


def wait_for_choice(folder: Path, chosen: Chosen) -> dict[str, Any]:
    """Return the same in a process that waits for the first one of its run to note the choice."""
    choice = best_trial(chosen)
    for _ in range(PATIENCE):
        if (folder / NOTED).is_file() and read_json(folder / NOTED, Choice).options == choice.options:
            return choice.options
        time.sleep(1)
    raise UserError(f'{folder}: the first process of this run has noted no choice; start it again', code='no-choice')


def set_aside(folder: Path) -> Path:
    """Move what a run has left into a folder next to its own, and return that; what was asked of it and its logs stay."""
    names = (folder.with_name(f'{folder.name}.replaced_{number}') for number in itertools.count(1))
    place = next(path for path in names if not path.exists())
    place.mkdir()
    left = [path for path in folder.iterdir() if not any(fnmatch(path.name, stays) for stays in OF_THE_FOLDER)]
    for path in sorted(left, key=lambda path: path.name == NOTED):  # the note last: an interrupted move is made again
        path.rename(place / path.name)
    return place


def search_record(
    study: Study, configs: Mapping[str, Config], seeds: Sequence[int], trials: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return what the page says of the searches; `trials` are the runs of each row, as the page has runs."""
    search, counts = study.search, trial_counts(study, configs)
    rows = {row.name: _tried(search, row, configs[row.name], trials[row.name]) for row in study.rows if row.trains}
    ended = {name: _ended(tried, seeds, counts[name]) for name, tried in rows.items()}
    for searches in ended.values():
        for trials in searches.values():
            best_of_search(trials)['chosen'] = any(trial['score'] is not None for trial in trials)
    scores = {
        name: {number: [trial['score'] or 0.0 for trial in one] for number, one in searches.items()}
        for name, searches in ended.items()
    }
    budgets = range(1, int(search.budget) + 1)
    costs = flops({name: configs[name] for name in counts})
    spent = {name: [min(trials_for(budget, costs)[name], counts[name]) - 1 for budget in budgets] for name in counts}
    curves = {
        name: {number: best_of(one[0], one[1:])[spent[name]] for number, one in searches.items()}
        for name, searches in scores.items()
    }
    return dict(
        criterion=search.criterion,
        budget=search.budget,
        margin=study.equivalence,
        searches=len(seeds),
        dimensions={name: dimension.key for name, dimension in search.dimensions.items()},
        counts=counts,
        rows=rows,
        curves={name: curve([*searches.values()]) for name, searches in curves.items() if searches},
        forgiving={
            name: [forgiving(one, study.equivalence) for one in searches.values()] for name, searches in scores.items()
        },
        edges=[
            edge
            for row in study.rows
            if ended.get(row.name)
            for edge in _edges(search, row, configs[row.name], [*ended[row.name].values()])
        ],
    )


def _tried(search: Search, row: Row, cfg: Config, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each trial of a row: its values by dimension, and its score, which is None where it has none."""
    mine = dimensions_of(search, row, cfg)
    return [
        dict(
            search=run['seed'] - FIRST,
            trial=int(Path(run['folder']).name),
            folder=run['folder'],
            state=run['state'],
            seconds=run.get('seconds'),
            values={name: run['trial'].get(axis.key, own_value(cfg, axis.key)) for name, axis in mine.items()},
            score=run.get('scores', {}).get(search.criterion),
            diverged=run.get('diverged', ''),
            chosen=False,  # until its search has ended
        )
        for run in runs
    ]


def _ended(tried: Sequence[Mapping[str, Any]], seeds: Sequence[int], count: int) -> dict[int, list[Mapping[str, Any]]]:
    """Return the trials of each search of which all have ended, by its number; one that diverged has no score."""
    told = [trial for trial in tried if trial['state'] == 'done' and (trial['diverged'] or trial['score'] is not None)]
    searches = {number: [trial for trial in told if trial['search'] == number] for number in seeds}
    return {number: search for number, search in searches.items() if len(search) == count}


def best_of_search(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the trial that is chosen, the first of equals as in `best_trial`."""
    return max(trials, key=lambda trial: (-math.inf if trial['score'] is None else trial['score'], -trial['trial']))


def _edges(search: Search, row: Row, cfg: Config, ended: Sequence[Sequence[Mapping]]) -> Iterator[dict[str, Any]]:
    """Yield the dimensions in which the best trials of a row lie at an end of the range, with how many of them do."""
    best = [best_of_search(trials) for trials in ended]
    for name, dimension in dimensions_of(search, row, cfg).items():
        own = own_value(cfg, dimension.key)
        at = [dimension.place(trial['values'][name], own) for trial in best]
        ends = ('high', 'low') if dimension.complement else ('low', 'high')  # places run over 1 - value there
        for end, there in zip(ends, ([place <= EDGE for place in at], [place >= 1 - EDGE for place in at])):
            if any(there):
                yield dict(row=row.name, dimension=name, end=end, searches=sum(there), of=len(at))
