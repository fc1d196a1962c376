"""The page of a study: what was measured here beside what was published, and every number a click from its run."""

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

from mmairl.configs import flat
from mmairl.report.charts import chart
from mmairl.report.compare_page import differences
from mmairl.report.figures import Point, forest, study_bars, study_lines, study_scatter
from mmairl.report.page import write_page
from mmairl.report.search_section import search_section
from mmairl.report.sections import CURVES, percent
from mmairl.report.study_tables import LEGEND, WORDS, Column, Line, columns, effects_of_factors, signed, table_lines
from mmairl.report.svg import svg
from mmairl.report.table import html_table

POINTS = 240  # of a curve, which stands on the pages of two rows
SHOWN = 2  # published panels in sight; the others are folded away


def write_study_page(study: Mapping, out: str | Path) -> Path:
    """Write the study as one file; its links to folders and checkpoints are relative to where its study.json lies.

    >>> write_study_page(json.loads(Path('ladder/study.json').read_text()), 'ladder/page.html')  # doctest: +SKIP
    """
    found, table, factors = columns(study), table_lines(study), effects_of_factors(study)
    panels = [panel for place, column in enumerate(found) if (panel := _panel(study, column, table, place))]
    published = [panel for panel in panels if panel['column'].kind == 'published']
    runs = [run for row in study['rows'] for run in row['runs']]
    return write_page(
        out,
        'study.html',
        title=study['title'],
        lead=study['question'],
        study=study,
        labels={metric['key']: metric['label'] for metric in study['metrics']},
        progress=progress(study),
        unfinished=Counter(run['state'] for run in runs if run['state'] != 'done').most_common(),
        timed=[run for run in runs if run.get('seconds') is not None],
        words=WORDS,
        legend=LEGEND,
        kinds=[(kind, len(list(of))) for kind, of in groupby(column.kind for column in found)],
        columns=found,
        rows=[_row(study, line) for line in table],
        panels=[panel for panel in panels if panel not in published] + published[:SHOWN],
        folded=published[SHOWN:],
        effects={} if factors else _forests(study['comparisons'], 'effects on {}', study),
        factors=factors,
        factor_figures=_forests(factors, 'effects of factors on {}', study),
        searches=search_section(study) if study.get('search') else None,
        cost=_cost(study),
        duration=duration,
        signed=signed,
        verdict_words=verdict_words,
        with_prefix=lambda flops: EngFormatter('FLOP')(float(f'{flops:.4g}')),
    )


def progress(study: Mapping) -> tuple[int, int]:
    """How many runs are finished, of how many."""
    seeds = 0 if study.get('sequential') else len(study['seeds'])  # rows that are decided got no more of them
    asked = sum(max(len(row['runs']), seeds) for row in study['rows'])
    finished = sum(run['state'] == 'done' for row in study['rows'] for run in row['runs'])
    return finished, asked


def duration(seconds: float) -> str:
    """In the unit that a person would take."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def _panel(study: Mapping, column: Column, rows: Sequence[Line], place: int) -> dict[str, Any] | None:
    """A figure of one column, where two rows or more have a number; measured and published ones have scales of their own."""
    kind, published = study['figure'].get('kind', 'bars'), column.kind == 'published'
    points = []
    for line in rows:
        cell, cluster = line.cells[place], _cluster(study, line.row) if kind == 'grouped' else None
        interval = None if published else study.get('intervals', {}).get(column.key, {}).get(line.row['name'])
        points.append(Point(line.row, cell.numbers, f'{cell.value} {cell.spread}'.strip(), interval, cluster))
    measured = [point for point in points if point.values]
    if column.kind == 'gap' or len(measured) < 2:
        return None
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    x = study['figure'].get('x') if study['figure'].get('x') in labels else next(iter(labels), None)
    if kind == 'scatter' and not published and column.key != x:
        across = [[run['scores'][x] for run in line.row['runs'] if x in run.get('scores', ())] for line in rows]
        drawn = study_scatter(points, [mean(found) if found else None for found in across], labels[x])
    elif kind == 'lines':
        drawn = study_lines(points, study['figure'].get('x', ''), published)
    elif kind == 'grouped':
        order = list(dict.fromkeys(point.cluster for point in points))
        drawn = study_bars(sorted(points, key=lambda point: order.index(point.cluster)), published)
    else:
        drawn = study_bars(points, published, mean(measured[0].values))
    return dict(column=column, svg=svg(drawn, f'panel-{place}', f'{column.label}, {column.kind}'))


def _cluster(study: Mapping, row: Mapping) -> object:
    """Bars stand together at one place of the x axis, or around the row that they all build on in the end."""
    if row['x'] is not None:
        return row['x']
    rows, seen = {row['name']: row for row in study['rows']}, set()
    while row['on'] in rows and row['name'] not in seen:
        seen.add(row['name'])
        row = rows[row['on']]
    return row['name']


def _forests(families: Mapping, label: str, study: Mapping) -> dict[str, Markup]:
    """For each score the figure of those of its effects that have an interval."""
    found = {}
    for metric in study['metrics']:
        drawn = [of for of in families.get(metric['key'], ()) if of['low'] is not None]
        if drawn:
            figure = forest(drawn, [signed(of['estimate'], 1) for of in drawn])
            found[metric['key']] = svg(figure, f'forest-{len(found)}', label.format(metric['label']))
    return found


def verdict_words(of: Mapping) -> str:
    if of['verdict'] == 'differs' and of.get('share') is not None:
        return 'differs in how many runs collapse'
    return f'equivalent within ±{of["margin"]:g}' if of['verdict'] == 'equivalent' else of['verdict']


def _cost(study: Mapping) -> dict[str, Any]:
    """What each row has cost; the comparisons at equal cost, by score; and those that have none."""
    rows, equal = (study.get('cost', {}).get(part, {}) for part in ('rows', 'equal'))
    if not any(of['images'] for of in rows.values()):
        return {}
    flops = [of['flops'] for of in rows.values()]
    return dict(
        rows=rows,
        first=next(filter(None, flops), None),
        same=all(flops) and max(flops) <= 1.01 * min(flops),
        equal={key: found for key, of in equal.items() if (found := [pair for pair in of if 'estimate' in pair])},
        without={(of['row'], of['on']): of for family in equal.values() for of in family if 'estimate' not in of},
    )


def _row(study: Mapping, line: Line) -> dict[str, Any]:
    """A row of the table and of the list of runs, beside the row that it builds on: curves, a line a seed, and settings."""
    runs, base = line.row['runs'], next((row for row in study['rows'] if row['name'] == line.row['on']), None)
    named = {f'seed {run["seed"]}': run for run in runs} | {
        f'base, seed {run["seed"]}': run for run in (base['runs'] if base else ())
    }
    figures = []
    for name in dict.fromkeys(name for run in runs for name in run.get('curves') or ()):
        series = {
            key: percent(name, run['curves'][name]) for key, run in named.items() if name in run.get('curves', ())
        }
        figures.append(chart(series, CURVES.get(name, name.replace('_', ' ')), 'step', points=POINTS))
    configs = [
        next((_settings(run) for run in of['runs'] if run.get('config_text')), {}) for of in (base, line.row) if of
    ]
    columns, differ = differences(dict(zip(('base', 'this row'), configs))) if len(configs) == 2 else ((), ())
    scores = [{key: value for key, value in run.get('scores', {}).items() if isfinite(value)} for run in runs]
    beside = html_table(columns, differ, words=True) if differ else ''
    return dict(line=line, beside=beside, figures=figures, runs=list(zip(runs, scores)))


def _settings(run: Mapping) -> dict[str, str]:
    """A run's config by dotted keys, as far as its text is one."""
    try:
        return {key: str(value) for key, value in flat(yaml.safe_load(run['config_text'])).items()}
    except yaml.YAMLError:
        return {}
