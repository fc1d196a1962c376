"""Collect the results of a study's runs in study.json, the record from which statistics, pages and claims are computed.

The record has the keys of the study and the following keys:

- `metrics`: the scores, the primary score first, each with its `key`, `label`, `unit` and direction (`lower_is_better`).
- `rows`: the rows, each with its base row (`on`), published scores by key, and `runs`. A run has its `seed`, `state`, `scores`
  by key, the digests of its `start`, whether it has `collapsed`, and facts about its training.
- `effects`: the effects on each score (`statistics.contrasts.Effect`).
- `fairness`: comparisons of the rows' configs before the first run, and of the runs' properties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import to_builtins

from mmairl.io import read_json, write_json
from mmairl.study.cost import flops_per_image
from mmairl.study.fairness import Prepared, compare_configs, compare_runs
from mmairl.study.runs import COLLAPSE, SOURCE, Health, Run, equal_rows
from mmairl.study.statistics.compare import factor_effects, level_of, row_effects
from mmairl.study.study import Row
from mmairl.study.tasks import is_local, metric_of, protocol_of

Record = dict[str, Any]


def collect(prepared: Prepared, runs: Sequence[Run]) -> Record:
    """Write the record of a study and its runs to study.json, and return the record."""
    study = prepared.study
    labels: dict[str, str] = {}
    rows = []
    finished = {}
    for row in study.rows:
        own = [describe_run(run, prepared, labels) for run in runs if run.row is row]
        entry = to_builtins(row) | dict(on=row.against, external=bool(row.files), flops=None)
        entry['runs'] = own
        if row.trains:
            entry['flops'] = flops_per_image(prepared.configs[row.name])
            finished[row.name] = [run for run in own if run['state'] == 'done']
        rows.append(entry)
    record = to_builtins(study) | dict(
        command=list(prepared.command),
        scale=dict(zip(('name', 'text'), prepared.scale)),
        tuned=to_builtins(study.tune) if study.tune else {},
        metrics=compared_scores(labels, study.rows),
        rows=rows,
        notes=equal_rows(runs),
        fairness=dict(before=compare_configs(prepared), after=compare_runs(finished)),
        design=study.cross and asdict(study.cross.design),
    )
    add_statistics(record)
    write_json(prepared.out / 'study.json', record)
    return record


def describe_run(run: Run, prepared: Prepared, labels: dict[str, str]) -> Record:
    """Return the record of a run, and add the labels of its scores to `labels`.

    The key of a task's main score is the name of the task. The other scores have the key 'TASK NAME'.
    """
    state, message = run.state()
    folder = str(run.folder.relative_to(prepared.out))
    record: Record = dict(seed=run.seed, folder=folder, state=state, scores={}, sources={})
    if state != 'done':
        return record | dict(error=message.removeprefix('error: '))
    for task in run.request.tasks:
        measured = run.measured(task)
        for number, (name, score) in enumerate(measured.scores.items()):
            key = name
            if is_local(task):
                # A published key, such as 'linear top-5', states the protocol once.
                own = name.removeprefix(f'{protocol_of(task)}, ')
                key = f'{task} {own}' if number else task
            record['scores'][key] = score
            labels.setdefault(key, f'{name} {task.partition("@")[2]}'.strip())
        if measured.left_out:
            record.setdefault('left_out', {})[task] = measured.left_out
        record.setdefault('details', {})[task] = measured.details
    if trained := run.trained:
        record |= to_builtins(trained)
        fingerprint = record.pop('fingerprint')
        record['sources'] = {key: fingerprint[key] for key in fingerprint if key.startswith(SOURCE)}
    if (run.folder / COLLAPSE).is_file():
        health = read_json(run.folder / COLLAPSE, Health)
        record |= dict(to_builtins(health), collapsed=health.collapsed)
    return record


def compared_scores(labels: Mapping[str, str], rows: Sequence[Row]) -> list[Record]:
    """Return the descriptions of the scores by which rows are compared.

    They are the main scores of all tasks. A further score of a task, such as the top-5 accuracy, is compared only if a row has
    a published number for it.
    """
    published = {key for row in rows for key in row.published}
    return [
        metric_of(key, label) for key, label in labels.items() if ' ' not in key or key in published
    ]


def add_statistics(record: Record) -> None:
    """Add the effects on each score with their verdicts."""
    level = level_of(record)
    record['effects'] = {}
    compare = factor_effects if record['design'] else row_effects
    for metric in record['metrics']:
        key, margin = metric['key'], record['margin']
        # A margin that is not given for single scores applies to scores in percent.
        if not isinstance(margin, dict):
            margin = {key: margin} if metric['unit'] == '%' else {}
        effects = compare(record, key, margin.get(key), level)
        record['effects'][key] = list(map(asdict, effects))
