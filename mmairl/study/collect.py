"""Collect the record of a study, study.json, from the folders of its runs. The page and the tables are made from it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from mmengine.config import Config
from msgspec import to_builtins

from mmairl.io import read_json, read_text, write_json
from mmairl.study.analyses import analysis_records
from mmairl.study.claims import StudyRuns, judge
from mmairl.study.cost import flops_per_image
from mmairl.study.external import training_factors
from mmairl.study.fairness import after, changed, compare_configs, hidden
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
ON_IMAGENET = {
    'in1k': 'linear',
    'top1': 'linear',
    'top5': 'linear top-5',
}  # the task of each published score

Record = dict[str, Any]


def collect(
    study: Study,
    configs: dict[str, Config],
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
        rows_left_out: Sentences on rows that the scale leaves out.
        command: The command line of the study, which the page suggests with more seeds.
    """
    described = Described.of(study, scale, runs, out)
    record = {key: to_builtins(getattr(study, key)) for key in COPIED}
    record |= described.scores(scale)
    record['command'] = list(command)
    record |= dict(
        looks=sequential.finished_runs(
            out / 'study.json', sum(map(len, described.trained.values()))
        ),
        published_metrics=[dict(key=task, label=key) for key, task in described.printed.items()],
    )
    compared = compare_configs(study, configs)
    record |= dict(
        rows=described.rows(configs, {entry['row']: entry['found'] for entry in compared}),
        rows_left_out=[
            *rows_left_out,
            *external_comparisons(compared),
            *unknown_identities(described.runs.values()),
        ],
        fairness=dict(
            before=compared,
            after=after(described.trained),
            hidden=hidden(described.with_stated_factors(configs)),
        ),
        reading=study.reading.get(scale.name, ''),
        assumptions=assumptions(
            {row.name: configs[row.name] for row in study.rows if not row.weights},
            sorted({task for run in runs for task in run.tasks}),
        ),
    )
    if study.search:
        record |= described.searches(record['rows'], configs)
    record |= analysis_records(study, configs, runs)
    add_numbers(record, study, out)
    if study.claims:
        record['claims'] = judge_claims(record, study, configs, scale)
    write_json(out / 'study.json', record)
    return record


class Described:
    """The runs of a study as its record has them.

    Args:
        study: The study.
        planned: All runs that the study asks for.
        printed: The task, or TASK SCORE, whose score is shown next to each published number, by its name.
        runs: The description of each run.
    """

    def __init__(
        self,
        study: Study,
        planned: Sequence[Run],
        printed: Mapping[str, str],
        runs: Mapping[Run, Record],
    ):
        self.study = study
        self.planned = planned
        self.printed = printed
        self.runs = runs
        self.compared = self.by_row('compared')
        self.finished = {}
        for name, described in self.compared.items():
            self.finished[name] = [run for run in described if run['state'] == 'done']
        self.trained = {}
        for row in study.rows:
            if self.finished[row.name] and not row.untrained:
                self.trained[row.name] = self.finished[row.name]

    @classmethod
    def of(cls, study: Study, scale: Scale, runs: Sequence[Run], out: Path) -> 'Described':
        printed = {}
        for row in study.rows:
            printed |= {key: measured_as(key, study, scale) for key in study.printed(row)}
        return cls(
            study, runs, printed, {run: describe(run, out, printed.values()) for run in runs}
        )

    def by_row(self, part: str) -> dict[str, list[Record]]:
        rows = {}
        for row in self.study.rows:
            rows[row.name] = [
                self.runs[run] for run in self.planned if run.row is row and run.part == part
            ]
        return rows

    def scores(self, scale: Scale) -> Record:
        """Return the scores of the study, the primary one first, and the seeds that are compared."""
        labels = {}
        for runs in self.finished.values():
            for run in runs:
                labels |= {key: run['labels'].get(key, key) for key in run['scores']}
        compared = [run for run in self.planned if run.part == 'compared']
        first = next((task.partition('#')[0] for run in compared for task in run.tasks), '')
        primary = self.study.primary.get(scale.name) or first
        keys = sorted(labels, key=lambda key: key != primary)
        return dict(
            scale=dict(name=scale.name, text=scale.text),
            seeds=sorted({run.seed for run in compared if not run.row.weights}),
            primary=primary,
            metrics=[dict(key=key, label=labels[key], unit=unit_of(key)) for key in keys],
        )

    def rows(
        self, configs: Mapping[str, Config], changed: Mapping[str, Sequence[str]]
    ) -> list[Record]:
        """Return the rows with their runs; `changed` has the keys in which a row differs from its base row."""
        return [
            self._row(row, configs[row.name], changed.get(row.name, [])) for row in self.study.rows
        ]

    def _row(self, row: Row, cfg: Config, changed: Sequence[str]) -> Record:
        counts_flops = row.name in self.trained and not row.weights
        return dict(
            {key: getattr(row, key) for key in COPIED_OF_ROWS},
            on=row.against,
            changed=changed,
            given=bool(row.weights),
            of=row.others.get('of'),
            along=row.along is not None,
            flops_per_image=flops_per_image(cfg) if counts_flops else None,
            published={self.printed[key]: value for key, value in self.study.printed(row).items()},
            runs=self.compared[row.name],
        )

    def with_stated_factors(self, configs: Mapping[str, Config]) -> dict[str, list[Record]]:
        """Return the trained runs; next to external rows, ours have all factors that these could state."""
        has_external = any(row.weights for row in self.study.rows)
        trained = {}
        for row in self.study.rows:
            if row.name not in self.trained:
                continue
            known = training_factors(configs[row.name]) if has_external and not row.weights else {}
            runs = self.trained[row.name]
            trained[row.name] = [dict(run, hidden=known | run.get('hidden', {})) for run in runs]
        return trained

    def searches(self, rows: Sequence[Record], configs: Mapping[str, Config]) -> Record:
        """Return the record of a search, and the rows as published. Rows that are not searched belong to both tracks."""
        published = self.by_row('published')
        for row in self.study.rows:
            if row.untrained or row.weights:
                published[row.name] = self.compared[row.name]
        searches = sorted({run.seed for run in self.planned if run.part == 'published'})
        return dict(
            as_published=dict(rows=[dict(row, runs=published[row['name']]) for row in rows]),
            search=search_record(self.study, configs, searches, self.by_row('trial')),
        )


def add_numbers(record: Record, study: Study, out: Path) -> None:
    """Add what follows from the scores: intervals, verdicts, effects of factors, noise and costs."""
    scores = [metric['key'] for metric in record['metrics']]
    margin = study.equivalence
    plan = sequential.read(out)
    compare_family = partial(sequential.compare_sequentially, plan=plan) if plan else compare_scores
    families = {key: compare_family(record, key, margin) for key in scores}
    record['intervals'] = {key: mean_intervals(record, key) for key in scores}
    record['comparisons'] = {key: list(map(asdict, family)) for key, family in families.items()}
    if 'as_published' in record:
        add_published_comparisons(record, compare_family, scores, margin)
    if plan and scores:
        lines = sequential.format_analyses(families[scores[0]], plan, len(record['seeds']))
        record['sequential'] = dict(words=plan.words, looks=lines)
    if study.design:
        record['design'] = dict(asdict(study.design), words=study.design.words)
        record['attribution'] = {key: attribute(record, key, margin) for key in scores}
    record['noise'] = {key: noise(record, key, out) for key in scores}
    record['cost'] = dict(
        rows=costs(record), equal={key: at_equal_cost(record, key) for key in scores}
    )


def judge_claims(
    record: Record, study: Study, configs: Mapping[str, Config], scale: Scale
) -> list[Record]:
    """Return the verdict on each claim of the study, with published and measured effects."""
    runs = StudyRuns(record, scale.name, lambda one, other: changed(configs[one], configs[other]))
    return judge(study.claims, runs, printed_numbers(study))


def printed_numbers(study: Study) -> Callable[[str, str], float | None]:
    """Return the papers' numbers by row and by the score that measures the same."""
    scores = {**ON_IMAGENET, **study.measured}
    printed = {}
    for row in study.rows:
        for key, value in study.printed(row).items():
            printed[row.name, scores.get(key, key)] = value
    return lambda row, score: printed.get((row, score))


def add_published_comparisons(
    record: Record, compare_family: Callable, scores: Sequence[str], margin: float
) -> None:
    published = record['as_published']
    track = {**record, **published}
    published['comparisons'] = {
        key: list(map(asdict, compare_family(track, key, margin))) for key in scores
    }


def external_comparisons(compared: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each comparison with external checkpoints whose factors are not all stated."""
    for entry in compared:
        unknown = entry['unknown']
        if not unknown:
            continue
        more = f' and {len(unknown) - LISTED} more' if len(unknown) > LISTED else ''
        yield (
            f"'{entry['row']}' less '{entry['on']}' is of these networks, not of one factor: not stated are "
            f'{", ".join(unknown[:LISTED])}{more}'
        )


def unknown_identities(described: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence if an earlier version, which did not record source code, made some of the runs."""
    if unknown := sum(bool(run.get('unverified')) for run in described):
        yield (
            f'identity unknown of {unknown} runs: an earlier version did not record the source of their protocols and '
            'modules; --remeasure measures them again'
        )


def assumptions(configs: dict[str, Config], tasks: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return what the configs of rows and tasks assume because the papers do not say it, each with its rows."""
    assumed: dict[str, list[str]] = {}
    for name, cfg in configs.items():
        for part in (cfg, *(recipe(cfg, task) for task in tasks)):
            for assumption in (part.get('assumptions') or {}).values():
                rows = assumed.setdefault(assumption, []) if assumption else []
                if name not in rows:
                    rows.append(name)
    return assumed


def describe(run: Run, out: Path, printed: Collection[str] = ()) -> Record:
    """Return a run as the page shows it, with further scores that papers print; an unfinished one has its last message."""
    described: Record = dict(seed=run.seed, folder=str(run.folder.relative_to(out)))
    result = run.result
    if result:
        described |= describe_result(run, result, printed)
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


def describe_result(run: Run, result: RunResult, printed: Collection[str]) -> Record:
    described = dict(dict(scores={}, labels={}), **to_builtins(result), state='done')
    if reason := run.stale_reason:
        described |= dict(state='replaced', error=reason)
    if parts := unverified(result, run.asked):
        described['unverified'] = parts
    for name, value in described.pop('further', {}).items():
        if name in printed:
            task, _, score = name.partition(' ')
            described['scores'][name] = value
            described['labels'][name] = f'{score} {task.partition("@")[2]}'.strip()
    fold_probes(described)
    if run.asked.external:
        described |= dict(hidden=run.asked.stated, given=run.row.weights[run.seed])
    return described


def fold_probes(run: Record) -> None:
    """Replace the scores of TASK, TASK#1, TASK#2 (several classifier seeds) by their mean; `probes` has each."""
    probes: dict[str, list[float]] = {}
    for name, score in list(run['scores'].items()):
        task, _, seed = name.partition('#')
        probes.setdefault(task, []).append(score)
        label = run['labels'].pop(name, task)
        run['labels'].setdefault(task, label.removesuffix(f'#{seed}'))
    run['scores'] = {task: mean(scores) for task, scores in probes.items()}
    run['probes'] = {task: scores for task, scores in probes.items() if len(scores) > 1}


def measured_as(key: str, study: Study, scale: Scale) -> str:
    """Return the task, or TASK SCORE, whose score is shown next to a published number."""
    if scale.name != 'in1k':
        return key
    return {**ON_IMAGENET, **study.measured}.get(key, key)
