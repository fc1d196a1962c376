"""The page of a study: measured next to published scores, with a link from every number to its run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
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
from mmairl.study.statistics.verdict_words import (
    DECISIONS,
    EQUIVALENT,
    INCONCLUSIVE,
    current_verdict,
    decision_of,
)

POINTS = 240  # of a curve, which is on the pages of two rows
MARGIN = 0.1  # of the range of a column's numbers, at both ends of its scale
FLOPS = EngFormatter('FLOP')


def write_study_page(study: Mapping, out: str | Path) -> Path:
    """Write the page of a study as one file.

    Args:
        study: The record of the study, the content of its study.json.
        out: The page. Its links to folders and checkpoints are relative to the folder of study.json.

    Returns:
        The path of the page.
    """
    return write_page(out, 'study.html', **page_data(study))


def page_data(study: Mapping) -> dict[str, Any]:
    """Return what the template shows."""
    heads = columns(study)
    table = table_lines(study)
    runs = [run for row in study['rows'] for run in row['runs']]
    rescaled_key = 'of'
    trained = [
        run for run in [*runs, *search_runs(study)] if rescaled_key not in run.get('made', ())
    ]
    charts = [_chart(study, column, table, number) for number, column in enumerate(heads)]
    groups = dict.fromkeys(row['group'] for row in study['rows'] if row['group'])
    return dict(
        title=study['title'],
        lead=study['question'],
        study=study,
        labels=_labels(study),
        progress=progress(study),
        unfinished=Counter(run['state'] for run in runs if run['state'] != 'done').most_common(),
        timed=[run for run in trained if run.get('seconds')],
        words=WORDS,
        legend=LEGEND,
        kinds=[(kind, len(list(part))) for kind, part in groupby(column.kind for column in heads)],
        columns=heads,
        rows=[_row(study, line) for line in table],
        scales=[_scale(table, number) for number in range(len(heads))],
        colours={group: COLORS[number % len(COLORS)] for number, group in enumerate(groups)},
        charts=list(filter(None, charts)),
        factors=effects_of_factors(study),
        searches=search_section(study) if study.get('search') else None,
        analyses=analysis_sections(study),
        cost=cost_summary(study),
        duration=duration,
        signed=signed,
        reach=effect_range,
        verdict_words=verdict_words,
        verdict_class=verdict_class,
        with_prefix=with_prefix,
    )


def _labels(study: Mapping) -> dict[str, str]:
    return {metric['key']: metric['label'] for metric in study['metrics']}


def with_prefix(flops: float) -> str:
    """Return FLOPs with four digits and a prefix, e.g. '2.5 PFLOP'."""
    return FLOPS(float(f'{flops:.4g}'))


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours, e.g. '2.0 h'."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def verdict_words(effect: Mapping) -> str:
    """Return the verdict of a comparison or effect in the words of a page."""
    verdict = current_verdict(effect)
    return f'equivalent within ±{effect["margin"]:g}' if verdict == EQUIVALENT else verdict


def verdict_class(effect: Mapping) -> str:
    """Return the CSS class of a verdict: differs, equivalent, undecided or untested."""
    verdict = current_verdict(effect)
    decision = decision_of(verdict)
    return decision if decision in DECISIONS or verdict == INCONCLUSIVE else 'untested'


def _chart(study: Mapping, column: Column, lines: Sequence[Line], number: int) -> Markup | None:
    """Return the chart of a column, if the study asks for one and two rows or more have a number."""
    figure = study['figure']
    published = column.kind == 'published'
    intervals = {} if published else study.get('intervals', {}).get(column.key, {})
    points = [
        (line.row, line.cells[number].numbers, intervals.get(line.row['name'])) for line in lines
    ]
    if column.kind == 'gap' or sum(bool(values) for _, values, _ in points) < 2:
        return None
    title = f'{column.label}, {column.kind}'
    if figure.get('kind') == 'lines':
        return study_lines(points, title, figure.get('x', ''))
    if figure.get('kind') != 'scatter' or published:
        return None
    labels = _labels(study)
    x = figure.get('x') if figure.get('x') in labels else next(iter(labels), None)
    if column.key == x:
        return None
    across = []
    for line in lines:
        scores = Column('measured', x, '').numbers(line.row)
        across.append(mean(scores) if scores else None)
    return study_scatter(points, across, title, labels[x])


def _scale(lines: Sequence[Line], number: int) -> tuple[float, float]:
    """Return the ends of a column's scale: the range of its numbers, with a margin."""
    numbers = [0.0]
    if any(line.cells[number].numbers for line in lines):
        numbers = [value for line in lines for value in line.cells[number].numbers]
    margin = MARGIN * (max(numbers) - min(numbers)) or 1.0
    return min(numbers) - margin, max(numbers) + margin


def _row(study: Mapping, line: Line) -> dict[str, Any]:
    """Return a row of the table and of the list of runs, with its curves and settings next to those of its base row."""
    runs = line.row['runs']
    base = next((row['runs'] for row in study['rows'] if row['name'] == line.row['on']), [])
    scores = []
    for run in runs:
        scores.append(
            {key: value for key, value in run.get('scores', {}).items() if isfinite(value)}
        )
    return dict(
        line=line,
        beside=_setting_table(base, runs),
        figures=_curve_charts(runs, base),
        runs=list(zip(runs, scores)),
    )


def _curve_charts(runs: Sequence[Mapping], base: Sequence[Mapping]) -> list[Markup]:
    """Return a chart for each curve of a row's runs, a line per seed."""
    curves = {f'seed {run["seed"]}': run.get('curves', {}) for run in runs}
    curves |= {f'base, seed {run["seed"]}': run.get('curves', {}) for run in base}
    names = dict.fromkeys(name for run in runs for name in run.get('curves') or ())
    charts = []
    for name in names:
        series = {key: percent(name, own[name]) for key, own in curves.items() if name in own}
        charts.append(
            chart(series, CURVES.get(name, name.replace('_', ' ')), 'step', points=POINTS)
        )
    return charts


def _setting_table(base: Sequence[Mapping], runs: Sequence[Mapping]) -> Markup | str:
    """Return a table of the settings in which a row differs from its base row."""
    if not base:
        return ''
    heads, lines = differences({'base': _settings(base), 'this row': _settings(runs)})
    return html_table(heads, lines, words=True) if lines else ''


def _settings(runs: Sequence[Mapping]) -> dict[str, str]:
    """Return the config of a row by dotted keys, from the first run that has its text, if it is valid."""
    text = next((run['config_text'] for run in runs if run.get('config_text')), '')
    try:
        return {key: str(value) for key, value in flat(parse_yaml(text) or {}).items()}
    except (ValueError, yaml.YAMLError, RecursionError, OverflowError):
        return {}
