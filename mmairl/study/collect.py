"""Collect the record of a study, study.json, from the folders of its runs. Pages and tables are made from the record."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec import to_builtins

from mmairl.config import flat
from mmairl.evaluation.protocol import protocol_class, watched_test_images
from mmairl.io import read_json, read_text, write_json
from mmairl.registry import PROTOCOLS
from mmairl.study.analyses import analysis_records
from mmairl.study.claims import StudyRuns, judge
from mmairl.study.cost import flops_per_image
from mmairl.study.external import training_factors
from mmairl.study.factors import Configs, changed
from mmairl.study.fairness import after, compare_configs, hidden
from mmairl.study.fork_rows import fork_epoch
from mmairl.study.runs import Run, status
from mmairl.study.scale import Scale
from mmairl.study.schema import CHOICE, Choice, RunResult
from mmairl.study.spec import Row, Study
from mmairl.study.stale import unverified
from mmairl.study.statistics import sequential
from mmairl.study.statistics.attribution import attribute
from mmairl.study.statistics.compare_rows import compare_scores, mean_intervals
from mmairl.study.statistics.equal_cost import at_equal_cost, costs
from mmairl.study.statistics.noise import noise
from mmairl.study.task_names import recipe, unit_of
from mmairl.study.trials import search_record

# Keys that a record and its rows copy from the study.
COPIED = ('name', 'title', 'question', 'paper', 'figure', 'analyses')
COPIED_OF_ROWS = ('name', 'config', 'factor', 'group', 'x', 'untrained', 'trained')
LISTED = 6  # unknown factors that are listed by name

Record = dict[str, Any]
RunsByRow = dict[str, list[Record]]


def collect(
    study: Study,
    configs: Configs,
    scale: Scale,
    runs: Sequence[Run],
    out: Path,
    rows_left_out: Sequence[str] = (),
    command: Sequence[str] = (),
) -> Record:
    """Write the record of everything that is finished to study.json, and return it.

    Args:
        study: The study.
        configs: The config of each row, as it runs.
        scale: The scale of the study.
        runs: All runs that the study asks for.
        out: The study's folder.
        rows_left_out: A sentence for each row that the scale leaves out.
        command: The command line of the study, which the page repeats with more seeds.
    """
    columns = published_columns(study, scale)
    described = {run: describe(run, out, columns.values()) for run in runs}
    compared = runs_by_row(study, described, 'compared')
    trained = {}
    for row in study.rows:
        finished = [run for run in compared[row.name] if run['state'] == 'done']
        if finished and not row.untrained:
            trained[row.name] = finished
    differences = compare_configs(study, configs)
    differing = {entry['row']: entry['found'] for entry in differences}

    record = {key: to_builtins(getattr(study, key)) for key in COPIED}
    record |= describe_scores(study, scale, runs, compared)
    record['command'] = list(command)
    record['looks'] = sequential.finished_runs(
        out / 'study.json', sum(len(of_row) for of_row in trained.values())
    )
    record['published_metrics'] = [dict(key=task, label=key) for key, task in columns.items()]
    record['rows'] = []
    for row in study.rows:
        entry = describe_row(row, study, configs, columns)
        entry['changed'] = differing.get(row.name, [])
        if row.name in trained and not row.weights:
            entry['flops_per_image'] = flops_per_image(configs[row.name])
        record['rows'].append(dict(entry, runs=compared[row.name]))
    ours = {row.name: configs[row.name] for row in study.rows if not row.weights}
    record['rows_left_out'] = [
        *rows_left_out,
        *external_comparisons(differences),
        *unknown_identities(described.values()),
        *watched_tests(ours),
    ]
    record['fairness'] = dict(
        before=differences,
        after=after(trained),
        hidden=hidden(with_training_factors(study, configs, trained)),
    )
    record['reading'] = study.reading.get(scale.name, '')
    record['assumptions'] = assumptions(ours, sorted({task for run in runs for task in run.tasks}))
    if study.search:
        record |= describe_searches(study, configs, described, record['rows'])
    record |= analysis_records(study, configs, runs)
    add_statistics(record, study, out)
    if study.claims:
        record['claims'] = judge_claims(record, study, configs, scale)
    write_json(out / 'study.json', record)
    return record


def published_columns(study: Study, scale: Scale) -> dict[str, str]:
    """Return the task, or TASK SCORE, to show next to each published number, by the name of the number."""
    # Scores at smaller scales are not comparable with published numbers.
    tasks = published_tasks(study) if scale.name == 'in1k' else {}
    columns = {}
    for row in study.rows:
        columns |= {key: tasks.get(key, key) for key in study.published_numbers(row)}
    return columns


def published_tasks(study: Study) -> dict[str, str]:
    """Return the task, or TASK SCORE, that measures a published number at the papers' size."""
    tasks = {}
    for task in PROTOCOLS.names():
        for key, score in protocol_class(task).published.items():
            tasks[key] = f'{task} {score}'.strip()
    return tasks | study.measured


def describe(run: Run, out: Path, columns: Collection[str] = ()) -> Record:
    """Return a run as pages show it. An unfinished run has its last message.

    Args:
        run: The run.
        out: The study's folder.
        columns: Further scores to show, in addition to the main score of each task.
    """
    described: Record = dict(seed=run.seed, folder=str(run.folder.relative_to(out)))
    result = run.result
    if result:
        described |= describe_result(run, result, columns)
    else:
        state, message = status(run)
        described['state'] = 'missing' if state == 'not begun' else state
        described['error'] = message.removeprefix('error: ')
    if run.part == 'trial':
        described['trial'] = run.asked.trial
    elif (run.folder / CHOICE).is_file():
        described['chosen'] = to_builtins(read_json(run.folder / CHOICE, Choice))
    config = run.folder / 'asked' / 'config.yaml'
    if config.is_file():
        described['config_text'] = read_text(config)
    return described


def describe_result(run: Run, result: RunResult, columns: Collection[str]) -> Record:
    described = {'scores': {}, 'labels': {}, **to_builtins(result), 'state': 'done'}
    if result.excluded:
        described |= dict(state='excluded', error=result.excluded)
    if reason := run.stale_reason:
        described |= dict(state='replaced', error=reason)
    if parts := unverified(result, run.asked):
        described['unverified'] = parts
    for name, value in described.pop('further', {}).items():
        if name in columns:
            task, _, score = name.partition(' ')
            described['scores'][name] = value
            described['labels'][name] = f'{score} {task.partition("@")[2]}'.strip()
    fold_probes(described)
    if run.asked.external:
        described |= dict(hidden=run.asked.stated, given=run.row.weights[run.seed])
    return described


def fold_probes(run: Record) -> None:
    """Replace the scores of TASK, TASK#1, TASK#2 (several classifier seeds) by their mean. `probes` has each score."""
    probes: dict[str, list[float]] = {}
    for name, score in list(run['scores'].items()):
        task, _, seed = name.partition('#')
        probes.setdefault(task, []).append(score)
        label = run['labels'].pop(name, task)
        run['labels'].setdefault(task, label.removesuffix(f'#{seed}'))
    run['scores'] = {task: mean(scores) for task, scores in probes.items()}
    run['probes'] = {task: scores for task, scores in probes.items() if len(scores) > 1}


def runs_by_row(study: Study, described: Mapping[Run, Record], part: str) -> RunsByRow:
    rows: RunsByRow = {row.name: [] for row in study.rows}
    for run, description in described.items():
        if run.part == part and run.row.name in rows:
            rows[run.row.name].append(description)
    return rows


def describe_row(row: Row, study: Study, configs: Configs, columns: Mapping[str, str]) -> Record:
    published = study.published_numbers(row)
    return dict(
        {key: getattr(row, key) for key in COPIED_OF_ROWS},
        on=row.against,
        given=bool(row.weights),
        of=None if row.fork else row.others.get('of'),
        along=row.along is not None,
        fork=row.fork and dict(to_builtins(row.fork), epoch=fork_epoch(row, configs)),
        flops_per_image=None,
        published={columns[key]: value for key, value in published.items()},
    )


def external_comparisons(differences: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each comparison with external checkpoints that have unknown factors."""
    for entry in differences:
        if unknown := entry['unknown']:
            more = f' and {len(unknown) - LISTED} more' if len(unknown) > LISTED else ''
            yield (
                f"'{entry['row']}' less '{entry['on']}' compares these models, not one factor: the authors do not state "
                f'{", ".join(unknown[:LISTED])}{more}'
            )


def unknown_identities(described: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence if runs lack a record of their source code."""
    if unknown := sum(bool(run.get('unverified')) for run in described):
        yield (
            f'{unknown} runs have an unknown identity, because an earlier version did not record the source of their '
            'protocols and modules; --remeasure measures them again'
        )


def watched_tests(configs: Configs) -> Iterator[str]:
    """Yield a sentence for each row whose runs measure the test images while they train."""
    for name, cfg in configs.items():
        if watched_test_images(flat(cfg.to_dict())):
            yield f"the runs of '{name}' watched the test images during training"


def with_training_factors(study: Study, configs: Configs, trained: RunsByRow) -> RunsByRow:
    """Return the runs with all factors that authors of external rows can state, if the study has such rows."""
    external = {row.name for row in study.rows if row.weights}
    extended = dict(trained)
    for name in trained.keys() - external if external else ():
        factors = training_factors(configs[name])
        extended[name] = [
            dict(run, hidden=factors | run.get('hidden', {})) for run in trained[name]
        ]
    return extended


def describe_scores(study: Study, scale: Scale, runs: Sequence[Run], compared: RunsByRow) -> Record:
    """Return the scale, the seeds of compared runs, and the scores, the primary one first."""
    labels = {}
    for of_row in compared.values():
        for run in of_row:
            if run['state'] == 'done':
                labels |= {key: run['labels'].get(key, key) for key in run['scores']}
    planned = [run for run in runs if run.part == 'compared']
    tasks = [task.partition('#')[0] for run in planned for task in run.tasks]
    primary = study.primary.get(scale.name) or next(iter(tasks), '')
    keys = sorted(labels, key=lambda key: key != primary)
    return dict(
        scale=dict(name=scale.name, text=scale.text),
        seeds=sorted({run.seed for run in planned if not run.row.weights}),
        primary=primary,
        metrics=[dict(key=key, label=labels[key], unit=unit_of(key)) for key in keys],
    )


def assumptions(configs: Configs, tasks: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the assumptions of rows and tasks where papers are silent, each with the names of its rows."""
    assumed: dict[str, list[str]] = {}
    for name, cfg in configs.items():
        for part in (cfg, *(recipe(cfg, task) for task in tasks)):
            for assumption in filter(None, (part.get('assumptions') or {}).values()):
                rows = assumed.setdefault(assumption, [])
                if name not in rows:
                    rows.append(name)
    return assumed


def describe_searches(
    study: Study,
    configs: Configs,
    described: Mapping[Run, Record],
    rows: Sequence[Record],
) -> Record:
    """Return the record of a search, and the rows as published. Rows without training are in both."""
    published = runs_by_row(study, described, 'published')
    published_rows = []
    for row, entry in zip(study.rows, rows):
        once = row.untrained or row.weights
        published_rows.append(entry if once else dict(entry, runs=published[row.name]))
    searches = sorted({run.seed for run in described if run.part == 'published'})
    trials = runs_by_row(study, described, 'trial')
    return dict(
        as_published=dict(rows=published_rows),
        search=search_record(study, configs, searches, trials),
    )


def add_statistics(record: Record, study: Study, out: Path) -> None:
    """Add intervals, verdicts, effects of factors, noise and costs, which depend on the scores only."""
    scores = [metric['key'] for metric in record['metrics']]
    margin = study.equivalence
    plan = sequential.read(out)
    compare_family = partial(sequential.compare_sequentially, plan=plan) if plan else compare_scores
    families = {key: compare_family(record, key, margin) for key in scores}
    record['intervals'] = {key: mean_intervals(record, key) for key in scores}
    record['comparisons'] = {key: list(map(asdict, family)) for key, family in families.items()}
    if published := record.get('as_published'):
        rows = {**record, **published}
        published['comparisons'] = {
            key: list(map(asdict, compare_family(rows, key, margin))) for key in scores
        }
    if plan and scores:
        lines = sequential.format_analyses(families[scores[0]], plan, len(record['seeds']))
        record['sequential'] = dict(words=plan.words, looks=lines)
    if study.design:
        record['design'] = dict(asdict(study.design), words=study.design.words)
        record['attribution'] = {key: attribute(record, key, margin) for key in scores}
    record['noise'] = {key: noise(record, key, out) for key in scores}
    equal = {key: at_equal_cost(record, key) for key in scores}
    record['cost'] = dict(rows=costs(record), equal=equal)


def judge_claims(record: Record, study: Study, configs: Configs, scale: Scale) -> list[Record]:
    """Return the verdict on each claim of the study, with published and measured effects."""
    runs = StudyRuns(record, scale.name, lambda one, other: changed(configs[one], configs[other]))
    return judge(study.claims, runs, printed_numbers(study))


def printed_numbers(study: Study) -> Callable[[str, str], float | None]:
    """Return a function that looks up the papers' number of a row, by the score that measures it."""
    tasks = published_tasks(study)
    numbers = {}
    for row in study.rows:
        for key, value in study.published_numbers(row).items():
            numbers[row.name, tasks.get(key, key)] = value
    return lambda row, score: numbers.get((row, score))
