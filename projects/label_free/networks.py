"""A study's networks by the measures that need no label, and what choosing by them would cost.

Regret wants the test score of networks that a study does not test: the trials of its searches. They are tested here alone,
when the choice among them is made and noted, into files of their own that no choice reads.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from mmairl.analysis.measures import MEASURES, Measure, with_clid
from mmairl.config import load_config, walk
from mmairl.evaluation.protocol import (
    default_device,
    default_workers,
    evaluate,
    is_protocol,
    protocol_class,
    settings_for,
)
from mmairl.io import read_json, write_json
from mmairl.registry import MODELS
from mmairl.study.runs import Run
from mmairl.study.schema import Result
from mmairl.study.search import FIRST
from mmairl.study.spec import Study
from mmairl.study.trials import take_best
from mmairl.study.trusted import EPOCHS, METHODS, SETTINGS
from mmairl.study.unlabelled import FILE, unlabelled
from projects.label_free.regret import judge

AT_RANDOM, HELD_OUT = 'a pick at random', 'held-out labels'  # beside the measures, what no and what labels would cost


@dataclass(frozen=True, eq=False)
class Network:
    """A network of a study that can be chosen; one along a run is of the row that it is along, after so many steps."""

    row: str
    part: str  # trial, published, compared
    seed: int  # of a trial, the number of its search
    trial: int | None
    along: int | None
    score: float
    values: Mapping[str, float]  # NaN where it has none


def measured_networks(
    study: Study, configs: Mapping[str, Config], runs: Sequence[Run], tasks: Sequence[str], say: Callable[[str], None]
) -> tuple[str, list[Network]]:
    """Measure the networks of a study's runs that have ended, and return the task that tests them and all of them."""
    on_features = (task for task in tasks if is_protocol(task) and not protocol_class(task).trains)
    task = next(on_features, 'knn')
    chosen = set(_choose(runs))
    usual = [run for run in runs if (run.row.trains or run.row.along) and run.result and run.result.checkpoint]
    ready = [run for run in usual if run.part != 'trial' or run.folder in chosen]
    if len(ready) < len(usual):
        say(
            f'{len(usual) - len(ready)} trials wait for the others of their search, before which no test image is looked at'
        )
    found = []
    for place, run in enumerate(ready):
        say(f'[{place + 1}/{len(ready)}] measures of {run.name}')
        found.append(_network(run, configs[run.row.name], task))
    return task, found


def _choose(runs: Sequence[Run]) -> Iterator[Path]:
    """Make and note the choice of every search whose trials have all ended, and yield their folders."""
    for run in runs:
        ended = run.asked.chosen and all((folder / 'result.json').is_file() for folder in run.needs)
        # Where all have diverged there is no choice, and no checkpoint.
        if ended and not all(read_json(folder / 'result.json', Result).diverged for folder in run.needs):
            take_best(run.folder, run.asked.chosen)
            yield from run.needs


def _network(run: Run, row: Config, task: str) -> Network:
    known, scores = unlabelled(run.folder), run.result.scores
    if run.part != 'trial' and task in scores:
        known.scores[task] = scores[task]
    elif task not in known.scores:
        cfg = load_config(str(run.folder / 'asked' / 'config.yaml'))
        cfg.evaluation = row.evaluation
        settings = settings_for(task, device=default_device(), workers=default_workers())
        tested = evaluate(cfg, task, run.folder / run.result.checkpoint, settings=settings)
        known.scores[task] = next(iter(tested.scores.values()))
        write_json(run.folder / FILE, known)
    same = dict(part=run.part, score=known.scores[task])
    if run.part == 'trial':
        values = {HELD_OUT: scores.get(task, math.nan), **known.numbers}
        return Network(
            run.row.name, seed=run.seed - FIRST, trial=int(run.folder.name), along=None, values=values, **same
        )
    row, steps = (run.row.along.of, run.result.steps) if run.row.along else (run.row.name, None)
    return Network(row, seed=run.seed, trial=None, along=steps, values=known.numbers, **same)


def _told(choice: Iterable[Network]) -> list[tuple]:
    return sorted((network.along or math.inf, network.score, str(network.values)) for network in choice)


def choices_among(networks: Iterable[Network]) -> dict[str, list[list[Network]]]:
    """Return the choices of each situation: the settings of each row, of any row, between rows, and when to stop."""
    networks, choices = list(networks), defaultdict(lambda: defaultdict(list))
    kept_along = {(network.row, network.part, network.seed) for network in networks if network.along}
    for network in networks:
        if network.trial is not None:
            choices[network.row][network.seed].append(network)
            choices[SETTINGS][network.row, network.seed].append(network)
        if network.trial is None and (network.row, network.part, network.seed) in kept_along:
            choices[EPOCHS][network.row, network.part, network.seed].append(network)
        if network.along is None:
            choices[METHODS][network.part, network.seed, network.trial].append(network)
    for row, part, seed in [*choices[EPOCHS]]:  # a winner that is the run as published is the same choice
        told = [_told(choices[EPOCHS].get((row, track, seed), ())) for track in ('compared', 'published')]
        if part == 'compared' and told[0] == told[1]:
            del choices[EPOCHS][row, part, seed]
    real = {name: [choice for choice in by_key.values() if len(choice) > 1] for name, by_key in choices.items()}
    order = dict.fromkeys([SETTINGS, METHODS, EPOCHS, *real])
    return {name: real[name] for name in order if real.get(name)}


def regret_record(
    study: Study, configs: Mapping[str, Config], task: str, networks: Sequence[Network]
) -> dict[str, Any]:
    """Return what the page and study.json say of the measures: each network's, and each situation's regret and words."""
    return dict(
        task=task,
        margin=study.equivalence,
        networks=[
            dict(asdict(net), values={name: _plain(value) for name, value in net.values.items()}) for net in networks
        ],
        rewarded={name: sorted(set(_rewarded(cfg))) for name, cfg in configs.items()},
        situations=situations(choices_among(networks), study.equivalence),
    )


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no NaN


def situations(choices: Mapping[str, Sequence[Sequence[Network]]], margin: float) -> dict[str, dict[str, Any]]:
    """Return regret and words of each measure in each situation."""
    judged = {}
    for situation, group in choices.items():
        names = [name for name in (AT_RANDOM, HELD_OUT, *MEASURES) if situation != METHODS or _is_across(name)]
        seen = {name: list(_seen(name, group)) for name in names}
        judged[situation] = judge({name: kept for name, kept in seen.items() if kept}, margin)
    return judged


def _rewarded(cfg: Config) -> Iterator[str]:
    """Yield the measures that a row's own loss improves, as its head and the terms of it say."""
    for keys, value in walk(cfg.model.get('head', {})):
        if keys[-1:] == ('type',):
            yield from getattr(MODELS.get(value), 'rewards', ())


def _is_across(name: str) -> bool:
    return name not in MEASURES or MEASURES[name].across


def _seen(measure: str, choices: Iterable[Sequence[Network]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield scores and goodness of the choices in which a measure has a value."""
    known = MEASURES.get(measure, Measure(measure, math.inf, ''))
    for choice in choices:
        beside = with_clid({network: network.values for network in choice}).values()
        values = [{AT_RANDOM: 0.0, **numbers}.get(measure, math.nan) for numbers in beside]
        if any(map(math.isfinite, values)):
            yield np.array([network.score for network in choice]), np.array(list(map(known.goodness, values)))
