"""Collect the results of a study's runs in study.json, the record from which pages and tables are written.

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with different options. A scale is a set of changes that make all configs of a study smaller.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec import to_builtins

from mmairl.config import flat
from mmairl.evaluation.protocol import protocol_class, watched_test_images
from mmairl.io import read_json, read_text, write_json
from mmairl.registry import PROTOCOLS
from mmairl.study.analyses import analysis_records
from mmairl.study.claims import FULL_SCALE, StudyRuns, judge
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
from mmairl.study.statistics.compare_rows import Comparison, compare_scores, mean_intervals
from mmairl.study.statistics.equal_cost import at_equal_cost, costs
from mmairl.study.statistics.noise import noise
from mmairl.study.task_names import recipe, unit_of
from mmairl.study.trials import search_record

# The keys of a study and of its rows that are copied to the record.
COPIED = ('name', 'title', 'question', 'paper', 'figure', 'analyses')
COPIED_OF_ROWS = ('name', 'config', 'factor', 'group', 'x', 'untrained', 'trained')
LISTED = 6  # A sentence about unknown factors lists at most this many of them.

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
    """Write the record of a study and its runs to study.json, and return the record.

    Args:
        study: The study.
        configs: The config of each row at the scale.
        scale: The scale of the study.
        runs: All planned runs.
        out: The study's folder.
        rows_left_out: A sentence about each row or factor that is left out at this scale.
        command: The command line of the study. The study page shows this command with further options, such as more
            seeds.
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

    rows = []
    for row in study.rows:
        entry = describe_row(row, study, configs, columns)
        if row.name in trained and not row.weights:
            entry['flops_per_image'] = flops_per_image(configs[row.name])
        rows.append(dict(entry, changed=differing.get(row.name, []), runs=compared[row.name]))
    ours = {row.name: configs[row.name] for row in study.rows if not row.weights}
    left_out = [
        *rows_left_out,
        *external_comparisons(differences),
        *unknown_identities(described.values()),
        *watched_tests({row.name: configs[row.name] for row in study.rows if row.trains}),
    ]
    fairness = dict(
        before=differences,
        after=after(trained),
        hidden=hidden(with_training_factors(study, configs, trained)),
    )
    finished_runs = sum(map(len, trained.values()))

    record = {key: to_builtins(getattr(study, key)) for key in COPIED}
    record |= describe_scores(study, scale, runs, compared)
    record |= dict(
        command=list(command),
        looks=sequential.finished_runs(out / 'study.json', finished_runs),
        published_metrics=[dict(key=task, label=key) for key, task in columns.items()],
        rows=rows,
        rows_left_out=left_out,
        fairness=fairness,
        reading=study.reading.get(scale.name, ''),
        assumptions=assumptions(ours, sorted({task for run in runs for task in run.tasks})),
    )
    if study.search:
        record |= describe_searches(study, configs, described, rows)
    record |= analysis_records(study, configs, runs)
    add_statistics(record, study, out)
    if study.claims:
        claim_runs = StudyRuns(record, scale.name, partial(row_differences, configs))
        record['claims'] = judge(study.claims, claim_runs, printed_numbers(study))
    write_json(out / 'study.json', record)
    return record


def published_columns(study: Study, scale: Scale) -> dict[str, str]:
    """Return the column of the study's table for each published number.

    At full size, a published number is in the column of the score that measures the same quantity. A task's main score has
    the column TASK, and its other scores have columns TASK SCORE. At smaller scales, measured scores are not comparable
    with published numbers, so published numbers have columns of their own.
    """
    tasks = published_tasks(study) if scale.name == FULL_SCALE else {}
    columns = {}
    for row in study.rows:
        columns |= {key: tasks.get(key, key) for key in study.published_numbers(row)}
    return columns


def published_tasks(study: Study) -> dict[str, str]:
    """Return, for each published number, the score (TASK or TASK SCORE) that measures the same quantity at full size."""
    tasks = {}
    for task in PROTOCOLS.names():
        for key, score in protocol_class(task).published.items():
            tasks[key] = f'{task} {score}'.strip()
    return tasks | study.measured


def describe(run: Run, out: Path, columns: Collection[str] = ()) -> Record:
    """Return the record of a run for study.json. If the run is not finished, the record has the run's last message.

    Args:
        run: The run.
        out: The study's folder.
        columns: The names of scores to show in addition to the main score of each task.
    """
    described: Record = dict(seed=run.seed, folder=str(run.folder.relative_to(out)))
    if result := run.result:
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
    """Replace the scores of one task from several classifier seeds (TASK, TASK#1, TASK#2) by their mean.

    The single scores are kept in `probes`.
    """
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
    """Yield a sentence about each comparison with external checkpoints whose authors do not state all training factors."""
    for entry in differences:
        if unknown := entry['unknown']:
            more = f' and {len(unknown) - LISTED} more' if len(unknown) > LISTED else ''
            yield (
                f"the difference between '{entry['row']}' and '{entry['on']}' cannot be attributed to one factor, because the "
                f'authors do not state {", ".join(unknown[:LISTED])}{more}'
            )


def unknown_identities(described: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence if the source code of some runs was not recorded."""
    if unknown := sum(bool(run.get('unverified')) for run in described):
        yield (
            f'the source code of {unknown} runs is not fully known, because an earlier version of mmairl did not record it; '
            '--remeasure measures their tasks again'
        )


def watched_tests(configs: Configs) -> Iterator[str]:
    """Yield a sentence about each row whose hooks measured the model on the test images during training."""
    for name, cfg in configs.items():
        if watched_test_images(flat(cfg.to_dict())):
            yield f"the runs of '{name}' were measured on the test images during training"


def with_training_factors(study: Study, configs: Configs, trained: RunsByRow) -> RunsByRow:
    """If the study has external checkpoints, add factors of training to the runs that were trained by mmairl.

    The added factors are those that authors of external checkpoints can state. Without them, the runs could not be compared
    with the checkpoints.
    """
    external = {row.name for row in study.rows if row.weights}
    if not external:
        return trained
    extended = {}
    for name, runs in trained.items():
        factors = {} if name in external else training_factors(configs[name])
        extended[name] = [dict(run, hidden=factors | run.get('hidden', {})) for run in runs]
    return extended


def describe_scores(study: Study, scale: Scale, runs: Sequence[Run], compared: RunsByRow) -> Record:
    """Return the record's entries about the scale, the seeds of compared runs, and the scores, the primary score first."""
    labels = {}
    for run in chain.from_iterable(compared.values()):
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
    """Return the assumptions that configs make about settings which the papers do not state.

    Returns:
        For each assumption, the names of the rows that make it in their configs or in the recipes of their tasks.
    """
    assumed: dict[str, dict[str, None]] = {}
    for name, cfg in configs.items():
        for part in (cfg, *(recipe(cfg, task) for task in tasks)):
            for assumption in filter(None, (part.get('assumptions') or {}).values()):
                assumed.setdefault(assumption, {})[name] = None
    return {assumption: list(rows) for assumption, rows in assumed.items()}


def describe_searches(
    study: Study,
    configs: Configs,
    described: Mapping[Run, Record],
    rows: Sequence[Record],
) -> Record:
    """Return the record's entries about the search, and the table of the rows with their own options ("as published").

    Untrained rows and rows with external checkpoints cannot be tuned. Therefore, their runs are both in the table of tuned
    rows and in the table of rows as published.
    """
    published = runs_by_row(study, described, 'published')
    as_published = []
    for row, entry in zip(study.rows, rows):
        in_both = row.untrained or row.weights
        as_published.append(entry if in_both else dict(entry, runs=published[row.name]))
    searches = sorted({run.seed for run in described if run.part == 'published'})
    trials = runs_by_row(study, described, 'trial')
    return dict(
        as_published=dict(rows=as_published),
        search=search_record(study, configs, searches, trials),
    )


def add_statistics(record: Record, study: Study, out: Path) -> None:
    """Add the statistics of the scores to the record: intervals, verdicts, effects of factors, noise and costs."""
    scores = [metric['key'] for metric in record['metrics']]
    margin = study.equivalence
    plan = sequential.read(out)
    compare_family = partial(sequential.compare_sequentially, plan=plan) if plan else compare_scores

    def compare(rows: Record) -> dict[str, list[Comparison]]:
        return {key: compare_family(rows, key, margin) for key in scores}

    families = compare(record)
    record['intervals'] = {key: mean_intervals(record, key) for key in scores}
    record['comparisons'] = as_records(families)
    if published := record.get('as_published'):
        published['comparisons'] = as_records(compare({**record, **published}))
    if plan and scores:
        lines = sequential.format_analyses(families[scores[0]], plan, len(record['seeds']))
        record['sequential'] = dict(words=plan.words, looks=lines)
    if study.design:
        record['design'] = dict(asdict(study.design), words=study.design.words)
        record['attribution'] = {key: attribute(record, key, margin) for key in scores}
    record['noise'] = {key: noise(record, key, out) for key in scores}
    equal = {key: at_equal_cost(record, key) for key in scores}
    record['cost'] = dict(rows=costs(record), equal=equal)


def row_differences(configs: Configs, one: str, other: str) -> list[str] | None:
    """Return the config keys in which two rows differ; None if one of the rows is left out at this scale."""
    if not {one, other} <= configs.keys():
        return None
    return changed(configs[one], configs[other])


def as_records(families: Mapping[str, Sequence[Comparison]]) -> dict[str, list[Record]]:
    return {key: list(map(asdict, family)) for key, family in families.items()}


def printed_numbers(study: Study) -> Callable[[str, str], float | None]:
    """Return a function that gets a row and a score, and returns the number that the papers print, or None."""
    tasks = published_tasks(study)
    numbers = {}
    for row in study.rows:
        for key, value in study.published_numbers(row).items():
            numbers[row.name, tasks.get(key, key)] = value
    return lambda row, score: numbers.get((row, score))
