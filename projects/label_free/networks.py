"""Compute the regret of choosing among a study's networks without labels: `analyses: [projects.label_free.networks]`.

Regret is the test score that is lost if a measure chooses a network. To compute regret, this module measures the test scores of
all trials of a search, which a study does not measure. This happens only after the search has recorded its choice, and the
scores are stored in files that no choice reads.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from mmengine.config import Config

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
from mmairl.report.page import ENVIRONMENT, fill
from mmairl.study.analyses import ANALYSES, Analysis
from mmairl.study.runs import Run
from mmairl.study.schema import RunResult
from mmairl.study.search import FIRST
from mmairl.study.spec import Study
from mmairl.study.trials import take_best
from projects.label_free.extra_measures import MEASURES, ONE_METHOD, REWARDED, goodness, with_clid
from projects.label_free.regret import judge
from projects.label_free.trusted import EPOCHS, METHODS, SETTINGS
from projects.label_free.unlabelled import FILE, measured_run

AT_RANDOM = 'a pick at random'
HELD_OUT = 'held-out labels'


@dataclass(frozen=True, eq=False)
class Network:
    """A network of a study that can be chosen: the end of a run, or an intermediate checkpoint.

    Args:
        row: The row of the study; for an intermediate checkpoint, the row of its run.
        part: 'trial' (of a search), 'published' (a run with the published settings) or 'compared' (a run that the study's
            page compares).
        seed: The seed; for a trial, the index of its search.
        trial: For a trial, its index in the search.
        along: For an intermediate checkpoint, the number of steps after which it was saved.
        score: The score on test images.
        values: The measures. NaN means that a measure has no value.
    """

    row: str
    part: str
    seed: int
    trial: int | None
    along: int | None
    score: float
    values: Mapping[str, float]


def measured_networks(
    study: Study, configs: Mapping[str, Config], runs: Sequence[Run]
) -> tuple[str, list[Network]]:
    """Measure the networks of all finished runs. Return the task whose test scores count, and the networks."""
    tasks = [task for run in runs if run.part != 'trial' for task in run.tasks if is_protocol(task)]
    task = next((task for task in tasks if not protocol_class(task).trains), 'knn')
    chosen_folders = set(_choose(runs))
    finished = [
        run
        for run in runs
        if (run.row.trains or run.row.along) and run.result and run.result.checkpoint
    ]
    ready = [run for run in finished if run.part != 'trial' or run.folder in chosen_folders]
    if waiting := len(finished) - len(ready):
        print(f'{waiting} trials are not tested yet: their searches have not finished')
    networks = []
    for number, run in enumerate(ready, 1):
        print(f'[{number}/{len(ready)}] measures of {run.name}')
        networks.append(_network(run, configs[run.row.name], task))
    return task, networks


def _choose(runs: Sequence[Run]) -> Iterator[Path]:
    """Record which trial every finished search chose, and yield the folders of its trials."""
    for run in runs:
        if not run.asked.chosen or not all(
            (folder / 'result.json').is_file() for folder in run.needs
        ):
            continue
        if all(read_json(folder / 'result.json', RunResult).diverged for folder in run.needs):
            continue  # all trials diverged, so there is nothing to choose
        take_best(run.folder, run.asked.chosen)
        yield from run.needs


def _network(run: Run, row: Config, task: str) -> Network:
    measures = measured_run(run.folder)
    scores = run.result.scores
    if run.part != 'trial' and task in scores:
        measures.scores[task] = scores[task]
    elif task not in measures.scores:
        measures.scores[task] = _test(run, row, task)
        write_json(run.folder / FILE, measures)
    score = measures.scores[task]
    if run.part == 'trial':
        values = {HELD_OUT: scores.get(task, math.nan), **measures.numbers}
        return Network(
            run.row.name, 'trial', run.seed - FIRST, int(run.folder.name), None, score, values
        )
    if run.row.along:
        return Network(
            run.row.along.of, run.part, run.seed, None, run.result.steps, score, measures.numbers
        )
    return Network(run.row.name, run.part, run.seed, None, None, score, measures.numbers)


def _test(run: Run, row: Config, task: str) -> float:
    """Return the score of a run on the test images of its row."""
    cfg = load_config(str(run.folder / 'asked' / 'config.yaml'))
    cfg.evaluation = row.evaluation
    settings = settings_for(task, device=default_device(), workers=default_workers())
    result = evaluate(cfg, task, run.folder / run.result.checkpoint, settings=settings)
    return next(iter(result.scores.values()))


def choices_among(networks: Iterable[Network]) -> dict[str, list[list[Network]]]:
    """Return, for each situation, the sets of networks from which one is to be chosen.

    The situation states what is chosen: settings of a method (for each row, and for all rows together), a method, or an
    epoch of a run.
    """
    choices: dict[str, dict[tuple, list[Network]]] = defaultdict(lambda: defaultdict(list))
    networks = list(networks)
    runs_along = {
        (network.row, network.part, network.seed) for network in networks if network.along
    }
    for network in networks:
        run = (network.row, network.part, network.seed)
        if network.trial is not None:
            choices[network.row][run].append(network)
            choices[SETTINGS][run].append(network)
        elif run in runs_along:
            choices[EPOCHS][run].append(network)
        if network.along is None:
            choices[METHODS][network.part, network.seed, network.trial].append(network)
    _drop_repeated(choices[EPOCHS])
    real = {
        name: [choice for choice in group.values() if len(choice) > 1]
        for name, group in choices.items()
    }
    order = dict.fromkeys([SETTINGS, METHODS, EPOCHS, *real])
    return {name: real[name] for name in order if real.get(name)}


def _drop_repeated(by_run: dict[tuple, list[Network]]) -> None:
    """Drop the epochs of a compared run that equals the published run, because the same choice must not count twice.

    The runs are equal if the search chose the published settings.
    """
    for row, part, seed in list(by_run):
        compared = by_run.get((row, 'compared', seed), ())
        published = by_run.get((row, 'published', seed), ())
        if part == 'compared' and _content(compared) == _content(published):
            del by_run[row, part, seed]


def _content(choice: Iterable[Network]) -> list[tuple]:
    return sorted(
        (network.along or math.inf, network.score, str(network.values)) for network in choice
    )


def regret_record(
    study: Study, configs: Mapping[str, Config], runs: Sequence[Run]
) -> dict[str, Any]:
    """Measure the networks of a study, and return the value of `measures` in its study.json."""
    task, networks = measured_networks(study, configs, runs)
    return dict(
        task=task,
        margin=study.equivalence,
        networks=[_plain(network) for network in networks],
        rewarded={name: sorted(_rewarded(cfg)) for name, cfg in configs.items()},
        situations=situations(choices_among(networks), study.equivalence),
    )


def _plain(network: Network) -> dict[str, Any]:
    """Return a network as plain values, with None for NaN, which JSON cannot store."""
    values = {
        name: value if math.isfinite(value) else None for name, value in network.values.items()
    }
    return dict(asdict(network), values=values)


def _rewarded(cfg: Config) -> set[str]:
    """Return the measures that the loss of a config, with its additional terms, improves directly."""
    rewarded: set[str] = set()
    for keys, value in walk(cfg.model.get('head', {})):
        if keys[-1:] == ('type',):
            rewarded.update(REWARDED.get(str(value).removeprefix('mmairl.'), ()))
    return rewarded


def situations(
    choices: Mapping[str, Sequence[Sequence[Network]]], margin: float
) -> dict[str, dict[str, Any]]:
    """Return the regret and the verdict of each measure in each situation."""
    verdicts = {}
    for situation, group in choices.items():
        names = [AT_RANDOM, HELD_OUT, *MEASURES]
        if situation == METHODS:
            names = [name for name in names if name not in ONE_METHOD]
        evidence = {name: _scores_and_goodness(name, group) for name in names}
        evidence = {name: pairs for name, pairs in evidence.items() if pairs}
        # A choice between methods belongs to no single row, so the sign test counts each of these choices once.
        rows = {
            name: [place if situation == METHODS else group[place][0].row for place in pairs]
            for name, pairs in evidence.items()
        }
        pairs_of = {name: list(pairs.values()) for name, pairs in evidence.items()}
        verdicts[situation] = judge(pairs_of, margin, rows)
    return verdicts


def _scores_and_goodness(
    measure: str, choices: Iterable[Sequence[Network]]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return the test scores and the goodness of the networks of each choice, by the index of the choice.

    Choices in which the measure has no value are left out.
    """
    evidence = {}
    for place, choice in enumerate(choices):
        network_numbers = with_clid({network: network.values for network in choice}).values()
        values = [{AT_RANDOM: 0.0, **numbers}.get(measure, math.nan) for numbers in network_numbers]
        if any(map(math.isfinite, values)):
            scores = np.array([network.score for network in choice])
            evidence[place] = scores, np.array([goodness(measure, value) for value in values])
    return evidence


def regret_section(study: Mapping[str, Any]) -> Markup:
    """Return a section for the study's page: a table with a row for each measure and a column for each situation."""
    record = study['measures']
    if not record['situations']:
        return Markup()
    every = sorted(set().union(*record['rewarded'].values()))
    return fill(
        'regret.html',
        regret=record,
        labels={metric['key']: metric['label'] for metric in study['metrics']},
        names=list(
            dict.fromkeys(name for cells in record['situations'].values() for name in cells)
        ),
        by_loss={
            situation: record['rewarded'].get(situation, every)
            for situation in record['situations']
        },
    )


ENVIRONMENT.loader.searchpath.append(str(Path(__file__).with_name('templates')))
ANALYSES[__name__] = Analysis('measures', regret_record, regret_section)
