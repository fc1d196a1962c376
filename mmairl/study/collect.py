"""What a study's runs have left, as one record: the form that the page and the tables are made from."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.files import write_json
from mmairl.study.attribution import attribute
from mmairl.study.guard import after, compare, hidden
from mmairl.study.runs import Run
from mmairl.study.scale import Scale
from mmairl.study.spec import Study
from mmairl.study.statistics import compare as compare_scores
from mmairl.study.worker import outdated


def collect(study: Study, configs: dict[str, Config], scale: Scale, runs: Sequence[Run], out: Path) -> dict[str, Any]:
    """The record of everything that is there, written to study.json."""
    compared = compare(study, configs)
    changed = {entry['row']: entry['found'] for entry in compared}
    printed = {key: _measured_as(key, study, scale) for row in study.rows for key in row.published}
    by_row = {row.name: [describe(run, out, printed.values()) for run in runs if run.row is row] for row in study.rows}
    finished = {name: [run for run in found if run['state'] == 'done'] for name, found in by_row.items()}
    labels = {key: run['labels'].get(key, key) for of in finished.values() for run in of for key in run['scores']}
    record = dict(
        name=study.name,
        title=study.title,
        question=study.question,
        paper=study.paper,
        scale=dict(name=scale.name, text=scale.text),
        seeds=sorted({run.seed for run in runs}),
        metrics=[dict(key=key, label=label, unit='%') for key, label in labels.items()],
        published_metrics=[dict(key=task, label=key) for key, task in printed.items()],
        figure=study.figure,
        rows=[
            dict(
                name=row.name,
                config=row.config,
                on=row.against,
                factor=row.factor,
                changed=changed.get(row.name, []),
                group=row.group,
                x=row.x,
                published={_measured_as(key, study, scale): value for key, value in row.published.items()},
                runs=by_row[row.name],
            )
            for row in study.rows
        ],
        fairness=dict(before=compared, after=after(finished), hidden=hidden(finished)),
        reading=study.reading.get(scale.name, ''),
        assumptions=assumptions(configs),
    )
    scores = [metric['key'] for metric in record['metrics']]
    record['comparisons'] = {key: list(map(asdict, compare_scores(record, key, study.equivalence))) for key in scores}
    if study.design:
        record['design'] = dict(asdict(study.design), words=study.design.words)
        found = [attribute(record, key, study.equivalence) for key in scores]
        record['attribution'] = {of.metric: asdict(of) for of in found}
    write_json(out / 'study.json', record)
    return record


def assumptions(configs: dict[str, Config]) -> dict[str, list[str]]:
    """What the papers do not say and the rows' configs assume, each with the rows that do."""
    found: dict[str, list[str]] = {}
    for name, cfg in configs.items():
        for said in filter(None, (cfg.get('assumptions') or {}).values()):
            found.setdefault(said, []).append(name)
    return found


def describe(run: Run, out: Path, printed: Collection[str] = ()) -> dict[str, Any]:
    """A run as the page shows it, with the further scores that papers have `printed`; what it has not done yet is missing."""
    failed = run.folder / 'failed.txt'
    found: dict[str, Any] = dict(seed=run.seed, folder=str(run.folder.relative_to(out)), state='missing')
    if run.result:
        found.update(run.result, state='done')
        if differs := outdated(run.folder, found):
            found.update(state='replaced', error=differs)
        for name, value in found.pop('further', {}).items():
            if name in printed:
                task, _, score = name.partition(' ')
                found['scores'][name], found['labels'][name] = value, f'{score} {task.partition("@")[2]}'.strip()
    elif failed.is_file():
        found.update(state='failed', error=failed.read_text().removeprefix('error: '))
    elif (run.folder / 'last_checkpoint').is_file():
        found.update(state='running')
    if (run.folder / 'asked' / 'config.yaml').is_file():
        found['config_text'] = (run.folder / 'asked' / 'config.yaml').read_text()
    return found


def _measured_as(key: str, study: Study, scale: Scale) -> str:
    """The task whose score stands beside a published number, or TASK SCORE; on ImageNet, that of linear evaluation."""
    linear = {'in1k': 'linear', 'top1': 'linear', 'top5': 'linear top-5'}
    by = {**linear, **study.measured} if scale.name == 'in1k' else {}
    return by.get(key, key)
