"""The record of a study, from the folders of its runs: the form that the page and the tables are made from."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from mmengine.config import Config
from msgspec import to_builtins

from mmairl.io import read_json, read_text, write_json
from mmairl.study.analyses import analysis_records
from mmairl.study.cost import flops_per_image
from mmairl.study.external import SAME, factors
from mmairl.study.fairness import after, compare, hidden
from mmairl.study.measure import recipe, unverified
from mmairl.study.runs import Run, status
from mmairl.study.scale import Scale
from mmairl.study.schema import Choice
from mmairl.study.spec import Study
from mmairl.study.statistics import sequential
from mmairl.study.statistics.attribution import attribute
from mmairl.study.statistics.compare_rows import compare as compare_scores
from mmairl.study.statistics.compare_rows import mean_intervals
from mmairl.study.statistics.equal_cost import at_equal_cost, costs
from mmairl.study.statistics.noise import noise
from mmairl.study.trials import search_record

# What a record has as the study and its rows say it.
COPIED = ('name', 'title', 'question', 'paper', 'figure', 'analyses')
COPIED_OF_ROWS = ('name', 'config', 'factor', 'group', 'x', 'untrained', 'trained')


def collect(
    study: Study,
    configs: dict[str, Config],
    scale: Scale,
    runs: Sequence[Run],
    out: Path,
    rows_left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the record of everything that is there to study.json, and return it."""
    compared = compare(study, configs)
    changed = {entry['row']: entry['found'] for entry in compared}
    numbers = {row.name: study.printed(row) for row in study.rows}
    printed = {key: _measured_as(key, study, scale) for of_row in numbers.values() for key in of_row}
    described = {run: describe(run, out, printed.values()) for run in runs}

    def by_row(part: str) -> dict[str, list[dict[str, Any]]]:
        return {row.name: [described[run] for run in runs if run.row is row and run.part == part] for row in study.rows}

    compared_runs = by_row('compared')
    finished = {name: [run for run in planned if run['state'] == 'done'] for name, planned in compared_runs.items()}
    trained = {row.name: finished[row.name] for row in study.rows if not row.untrained and finished[row.name]}
    ours = {row.name: configs[row.name] for row in study.rows if not row.weights}
    beside = ours if len(ours) < len(study.rows) else {}
    known = {name: factors(cfg) for name, cfg in beside.items()}  # beside what is stated of the others
    stated = {
        row: [dict(run, hidden=known.get(row, {}) | run.get('hidden', {})) for run in trained[row]] for row in trained
    }
    labels = {key: run['labels'].get(key, key) for done in finished.values() for run in done for key in run['scores']}
    asked = [task.partition('#')[0] for run in runs if run.part == 'compared' for task in run.tasks]
    primary = study.primary.get(scale.name) or next(iter(asked), '')
    record = dict(
        {key: to_builtins(getattr(study, key)) for key in COPIED},
        scale=dict(name=scale.name, text=scale.text),
        seeds=sorted({run.seed for run in runs if run.part == 'compared' and not run.row.weights}),
        primary=primary,
        metrics=[dict(key=key, label=labels[key], unit='%') for key in sorted(labels, key=lambda key: key != primary)],
        looks=sequential.taken(out / 'study.json', sum(map(len, trained.values()))),
        published_metrics=[dict(key=task, label=key) for key, task in printed.items()],
        rows=[
            dict(
                {key: getattr(row, key) for key in COPIED_OF_ROWS},
                on=row.against,
                changed=changed.get(row.name, []),
                given=bool(row.weights),
                of=row.others.get('of'),
                along=row.along is not None,
                flops_per_image=flops_per_image(configs[row.name]) if row.name in trained and not row.weights else None,
                published={printed[key]: value for key, value in numbers[row.name].items()},
                runs=compared_runs[row.name],
            )
            for row in study.rows
        ],
        rows_left_out=[*rows_left_out, *networks(compared), *unknown_identities(described.values())],
        fairness=dict(before=compared, after=after(trained), hidden=hidden(stated)),
        reading=study.reading.get(scale.name, ''),
        assumptions=assumptions(ours, sorted({task for run in runs for task in run.tasks})),
    )
    if study.search:
        floor = {row.name: compared_runs[row.name] for row in study.rows if row.untrained or row.weights}
        published = by_row('published') | floor  # what is searched by nobody belongs to both tracks
        record['as_published'] = dict(rows=[dict(row, runs=published[row['name']]) for row in record['rows']])
        searches = sorted({run.seed for run in runs if run.part == 'published'})
        record['search'] = search_record(study, configs, searches, by_row('trial'))
    record |= analysis_records(study, configs, runs)
    add_numbers(record, study, out)
    write_json(out / 'study.json', record)
    return record


def add_numbers(record: dict[str, Any], study: Study, out: Path) -> None:
    """Add what the scores say: intervals, verdicts, effects of factors, noise and costs."""
    scores, margin, plan = [metric['key'] for metric in record['metrics']], study.equivalence, sequential.read(out)
    family = partial(sequential.compare_by_looks, plan=plan) if plan else compare_scores
    families = {key: family(record, key, margin) for key in scores}
    record['intervals'] = {key: mean_intervals(record, key) for key in scores}
    record['comparisons'] = {key: list(map(asdict, found)) for key, found in families.items()}
    if track := record.get('as_published'):
        before = {**record, **track}
        track['comparisons'] = {key: list(map(asdict, family(before, key, margin))) for key in scores}
    if plan and scores:
        record['sequential'] = dict(
            words=plan.words, looks=sequential.told(families[scores[0]], plan, len(record['seeds']))
        )
    if study.design:
        record['design'] = dict(asdict(study.design), words=study.design.words)
        record['attribution'] = {key: attribute(record, key, margin) for key in scores}
    record['noise'] = {key: noise(record, key, out) for key in scores}
    record['cost'] = dict(rows=costs(record), equal={key: at_equal_cost(record, key) for key in scores})


def networks(compared: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each comparison with networks from elsewhere of which not every factor is stated."""
    for entry in compared:
        if unknown := entry['unknown']:
            more = f' and {len(unknown) - 6} more' if len(unknown) > 6 else ''
            yield f"'{entry['row']}' less '{entry['on']}' is {SAME}: not stated are {', '.join(unknown[:6])}{more}"


def unknown_identities(described: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence if runs were made by an earlier version, which did not record their source code."""
    if unknown := sum(bool(run.get('unverified')) for run in described):
        yield (
            f'identity unknown of {unknown} runs: an earlier version did not record the source of their protocols and '
            'modules; --remeasure measures them again'
        )


def assumptions(configs: dict[str, Config], tasks: Sequence[str] = ()) -> dict[str, list[str]]:
    """List what the configs of rows and tasks assume because the papers do not say it, each with its rows."""
    assumed: dict[str, list[str]] = {}
    for name, cfg in configs.items():
        noted = [part.get('assumptions') or {} for part in (cfg, *(recipe(cfg, task) for task in tasks))]
        for said in filter(None, chain.from_iterable(notes.values() for notes in noted)):
            rows = assumed.setdefault(said, [])
            rows += [name] if name not in rows else []
    return assumed


def describe(run: Run, out: Path, printed: Collection[str] = ()) -> dict[str, Any]:
    """A run as the page shows it, with further scores that papers have `printed`; one that is not done has its last words."""
    found: dict[str, Any] = dict(seed=run.seed, folder=str(run.folder.relative_to(out)))
    if result := run.result:
        found.update(dict(scores={}, labels={}), **to_builtins(result), state='done')
        if differs := run.outdated:
            found.update(state='replaced', error=differs)
        if parts := unverified(result, run.asked):
            found['unverified'] = parts
        for name, value in found.pop('further', {}).items():
            if name in printed:
                task, _, score = name.partition(' ')
                found['scores'][name], found['labels'][name] = value, f'{score} {task.partition("@")[2]}'.strip()
        fold_probes(found)
        if run.asked.given:
            found.update(hidden=run.asked.stated, given=run.row.weights[run.seed])
    else:
        state, said = status(run)
        found.update(state='missing' if state == 'not begun' else state, error=said.removeprefix('error: '))
    if run.part == 'trial':
        found['trial'] = run.asked.trial
    elif (run.folder / 'chosen.json').is_file():
        found['chosen'] = to_builtins(read_json(run.folder / 'chosen.json', Choice))
    if (run.folder / 'asked' / 'config.yaml').is_file():
        found['config_text'] = read_text(run.folder / 'asked' / 'config.yaml')
    return found


def fold_probes(run: dict[str, Any]) -> None:
    """The scores of TASK, TASK#1, TASK#2, from several seeds of the classifier, become their mean; `probes` has each."""
    probes: dict[str, list[float]] = {}
    for name in list(run['scores']):
        task, _, seed = name.partition('#')
        probes.setdefault(task, []).append(run['scores'].pop(name))
        label = run['labels'].pop(name, task)
        run['labels'].setdefault(task, label.removesuffix(f'#{seed}'))
    run['scores'] = {task: mean(scores) for task, scores in probes.items()}
    run['probes'] = {task: scores for task, scores in probes.items() if len(scores) > 1}


def _measured_as(key: str, study: Study, scale: Scale) -> str:
    """The task whose score stands beside a published number, or TASK SCORE; on ImageNet, that of linear evaluation."""
    linear = {'in1k': 'linear', 'top1': 'linear', 'top5': 'linear top-5'}
    by = {**linear, **study.measured} if scale.name == 'in1k' else {}
    return by.get(key, key)
