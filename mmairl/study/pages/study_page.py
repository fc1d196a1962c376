"""The page of a study: what was measured here beside what was published, and every number a click from its run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from markupsafe import Markup
from matplotlib.ticker import EngFormatter

from mmairl.config import flat
from mmairl.io import parse_yaml
from mmairl.report.charts import chart
from mmairl.report.compare_page import differences
from mmairl.report.figures import study_lines, study_scatter
from mmairl.report.page import COLORS, write_page
from mmairl.report.sections import CURVES, percent
from mmairl.report.table import html_table
from mmairl.study.analyses import analysis_sections
from mmairl.study.pages.search_section import search_runs, search_section
from mmairl.study.pages.study_tables import (
    LEGEND,
    WORDS,
    Column,
    Line,
    columns,
    signed,
    table_lines,
)
from mmairl.study.statistics.summary import cost_summary, effect_range, effects_of_factors, progress
from mmairl.study.statistics.verdict_words import DECISIONS, EQUIVALENT, INCONCLUSIVE, current_verdict, decision_of

POINTS = 240  # of a curve, which stands on the pages of two rows


def write_study_page(study: Mapping, out: str | Path) -> Path:
    """Write the study as one file; its links to folders and checkpoints are relative to where its study.json lies."""
    heads, table, factors = columns(study), table_lines(study), effects_of_factors(study)
    charts = [drawn for place, column in enumerate(heads) if (drawn := _chart(study, column, table, place))]
    runs = [run for row in study['rows'] for run in row['runs']]
    trained = [run for run in chain(runs, search_runs(study)) if 'of' not in run.get('made', ())]  # and not rescaled
    groups = dict.fromkeys(row['group'] for row in study['rows'] if row['group'])
    return write_page(
        out,
        'study.html',
        title=study['title'],
        lead=study['question'],
        study=study,
        labels={metric['key']: metric['label'] for metric in study['metrics']},
        progress=progress(study),
        unfinished=Counter(run['state'] for run in runs if run['state'] != 'done').most_common(),
        timed=[run for run in trained if run.get('seconds')],
        words=WORDS,
        legend=LEGEND,
        kinds=[(kind, len(list(part))) for kind, part in groupby(column.kind for column in heads)],
        columns=heads,
        rows=[_row(study, line) for line in table],
        scales=[_ends(table, place) for place in range(len(heads))],
        colours={group: COLORS[n % len(COLORS)] for n, group in enumerate(groups)},
        charts=charts,
        factors=factors,
        searches=search_section(study) if study.get('search') else None,
        analyses=analysis_sections(study),
        cost=cost_summary(study),
        duration=duration,
        signed=signed,
        reach=effect_range,
        verdict_words=verdict_words,
        verdict_class=verdict_class,
        with_prefix=lambda flops: EngFormatter('FLOP')(float(f'{flops:.4g}')),
    )


def duration(seconds: float) -> str:
    """In the unit that a person would take."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def _chart(study: Mapping, column: Column, rows: Sequence[Line], place: int) -> Markup | None:
    """A chart of one column, where the study asks for one and two rows or more have a number."""
    kind, published = study['figure'].get('kind'), column.kind == 'published'
    intervals = {} if published else study.get('intervals', {}).get(column.key, {})
    points = [(line.row, line.cells[place].numbers, intervals.get(line.row['name'])) for line in rows]
    if column.kind == 'gap' or sum(bool(values) for _, values, _ in points) < 2:
        return None
    title = f'{column.label}, {column.kind}'
    if kind == 'lines':
        return study_lines(points, title, study['figure'].get('x', ''))
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    x = study['figure'].get('x') if study['figure'].get('x') in labels else next(iter(labels), None)
    if kind != 'scatter' or published or column.key == x:
        return None
    across = [Column('measured', x, '').numbers(line.row) for line in rows]
    return study_scatter(points, [mean(scores) if scores else None for scores in across], title, labels[x])


def _ends(rows: Sequence[Line], place: int) -> tuple[float, float]:
    """The ends of a column's scale: its numbers, with a tenth of their range beside them."""
    numbers = [number for line in rows for number in line.cells[place].numbers] or [0.0]
    room = 0.1 * (max(numbers) - min(numbers)) or 1.0
    return min(numbers) - room, max(numbers) + room


def verdict_words(effect: Mapping) -> str:
    """Return the verdict of a comparison or effect in the words of a page."""
    verdict = current_verdict(effect)
    return f'equivalent within ±{effect["margin"]:g}' if verdict == EQUIVALENT else verdict


def verdict_class(effect: Mapping) -> str:
    """Return the CSS class of a verdict: differs, equivalent, undecided or untested."""
    verdict = current_verdict(effect)
    decision = decision_of(verdict)
    return decision if decision in DECISIONS or verdict == INCONCLUSIVE else 'untested'


def _row(study: Mapping, line: Line) -> dict[str, Any]:
    """A row of the table and of the list of runs, beside the row that it builds on: curves, a line a seed, and settings."""
    runs, base = line.row['runs'], next((row['runs'] for row in study['rows'] if row['name'] == line.row['on']), [])
    named = {f'seed {run["seed"]}': run.get('curves', {}) for run in runs}
    named |= {f'base, seed {run["seed"]}': run.get('curves', {}) for run in base}
    figures = []
    for name in dict.fromkeys(name for run in runs for name in run.get('curves') or ()):
        series = {key: percent(name, curves[name]) for key, curves in named.items() if name in curves}
        figures.append(chart(series, CURVES.get(name, name.replace('_', ' ')), 'step', points=POINTS))
    columns, differ = differences({'base': _settings(base), 'this row': _settings(runs)}) if base else ((), ())
    scores = [{key: value for key, value in run.get('scores', {}).items() if isfinite(value)} for run in runs]
    beside = html_table(columns, differ, words=True) if differ else ''
    return dict(line=line, beside=beside, figures=figures, runs=list(zip(runs, scores)))


def _settings(runs: Sequence[Mapping]) -> dict[str, str]:
    """The config of a row by dotted keys, from the first run that has its text, as far as that is one."""
    text = next((run['config_text'] for run in runs if run.get('config_text')), '')
    try:
        return {key: str(value) for key, value in flat(parse_yaml(text) or {}).items()}
    except (ValueError, yaml.YAMLError, RecursionError, OverflowError):
        return {}
