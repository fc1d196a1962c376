"""The page of a study: what was measured here beside what was published, and every number a click from its run."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import quote

from mmairl.report.figures import Point, forest, lines, study_bars, study_lines, svg
from mmairl.report.page import write_page
from mmairl.report.sections import CURVES, percent
from mmairl.report.study_tables import (
    BLANK,
    LEGEND,
    WORDS,
    Column,
    Line,
    columns,
    done,
    latex,
    markdown,
    published_metrics,
    scores,
    signed,
    table_lines,
)

SHOWN = 2  # published panels in sight; the others are folded away


def write_study_page(study: Mapping, out: str | Path) -> Path:
    """The study as one file beside its study.json, whose folders the links are relative to.

    >>> write_study_page(json.loads(Path('ladder/study.json').read_text()), 'ladder/page.html')  # doctest: +SKIP
    """
    found, rows = columns(study), table_lines(study)
    drawn = [panel for place, column in enumerate(found) if (panel := _panel(study, column, rows, place))]
    published = [panel for panel in drawn if panel['kind'] == 'published']
    runs = [run for row in study['rows'] for run in row['runs'] if run.get('seconds') is not None]
    return write_page(
        out,
        'study.html',
        title=study['title'],
        lead=study.get('question', ''),
        study=study,
        published=published_metrics(study),
        tiles=_tiles(study),
        words=WORDS,
        legend=LEGEND,
        kinds=[(kind, len(list(of))) for kind, of in groupby(column.kind for column in found)],
        columns=found,
        rows=[
            dict(line=line, **_row(study, row, number)) for number, (line, row) in enumerate(zip(rows, study['rows']))
        ],
        panels=[panel for panel in drawn if panel['kind'] == 'measured'] + published[:SHOWN],
        folded=published[SHOWN:],
        effects=_effects(study),
        reading=[part for part in (study.get('reading') or '').split('\n\n') if part.strip()],
        before=(study.get('fairness') or {}).get('before', []),
        after=[_check(check) for check in (study.get('fairness') or {}).get('after', [])],
        trained=f'{duration(sum(run["seconds"] for run in runs))} of training in {len(runs)} runs' if runs else '',
        hardware=', '.join(dict.fromkeys(run['hardware'] for run in runs if run.get('hardware'))),
        copies={'Markdown': markdown(study), 'LaTeX (booktabs)': latex(study)},
    )


def _tiles(study: Mapping) -> dict[str, str]:
    """How much work it was and whether it was fair, before any result."""
    runs = [run for row in study['rows'] for run in row['runs']]
    asked = sum(max(len(row['runs']), len(study.get('seeds', ()))) for row in study['rows'])
    finished = sum(len(done(row)) for row in study['rows'])
    seconds = [run['seconds'] for run in runs if run.get('seconds') is not None]
    before = (study.get('fairness') or {}).get('before', [])
    undeclared = sum(len(entry['undeclared']) for entry in before)
    return {
        'rows, each a config': f'{len(study["rows"])}',
        'runs finished' if finished == asked else 'runs finished; the others are named below': f'{finished} of {asked}',
        f'training in all, {len(seconds)} runs': duration(sum(seconds)) if seconds else BLANK,
        'undeclared differences between rows': f'{undeclared}' if before else BLANK,
    }


def duration(seconds: float) -> str:
    """In the unit that a person would take."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def _panel(study: Mapping, column: Column, rows: Sequence[Line], place: int) -> dict[str, Any] | None:
    """A figure of one column, where two rows or more have a number; measured and published ones have scales of their own."""
    figure, published = study.get('figure', {}), column.kind == 'published'
    kind = figure.get('kind', 'bars')
    points = []
    for row, line in zip(study['rows'], rows):
        cell, printed = line.cells[place], row.get('published', {}).get(column.key)
        values = scores(row, column.key) if column.kind == 'measured' else () if printed is None else (printed,)
        cluster = _cluster(study, row) if kind == 'grouped' else None
        text = f'{cell.value} {cell.spread}'.strip()
        points.append(Point(row['name'], values, text, row.get('group'), row.get('x'), cluster))
    if column.kind == 'gap' or sum(bool(point.values) for point in points) < 2:
        return None
    if kind == 'lines':
        drawn = study_lines(points, figure.get('x', ''), published)
    elif kind == 'grouped':
        order = list(dict.fromkeys(point.cluster for point in points))
        drawn = study_bars(sorted(points, key=lambda point: order.index(point.cluster)), published)
    else:
        first = next(point for point in points if point.values)
        drawn = study_bars(points, published, mean(first.values))
    return dict(kind=column.kind, column=column, svg=svg(drawn, f'panel-{place}'))


def _cluster(study: Mapping, row: Mapping) -> object:
    """Bars stand together at one place of the x axis, or around the row that they all build on in the end."""
    if row.get('x') is not None:
        return row['x']
    rows, seen = {row['name']: row for row in study['rows']}, set()
    while row.get('on') in rows and row['name'] not in seen:
        seen.add(row['name'])
        row = rows[row['on']]
    return row['name']


def _effects(study: Mapping) -> list[dict[str, Any]]:
    """For each score what its comparisons found, as text, and the figure of those that have an interval."""
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    found = []
    for number, (key, family) in enumerate(study.get('comparisons', {}).items()):
        drawn = [of for of in family if of['low'] is not None]
        figure = svg(forest(drawn), f'forest-{number}') if drawn else ''
        shown = [{**of, 'words': _words(of)} for of in family]
        margin = f'{family[0]["margin"]:g}' if family else ''
        found.append(dict(label=labels.get(key, key), figure=figure, comparisons=shown, margin=margin))
    return [of for of in found if of['comparisons']]


def _words(of: Mapping) -> dict[str, str]:
    """A comparison's numbers as the page prints them."""
    estimate = BLANK if of['estimate'] is None else signed(of['estimate'], 1)
    interval = BLANK if of['low'] is None else f'{signed(of["low"], 1)} to {signed(of["high"], 1)}'
    better = (
        BLANK if of['better'] is None else f'{of["better"]:.3f}' if 0.0005 < of['better'] < 0.9995 else _extreme(of)
    )
    verdict = f'equivalent within ±{of["margin"]:g}' if of['verdict'] == 'equivalent' else of['verdict']
    return dict(estimate=estimate, interval=interval, better=better, verdict=verdict)


def _extreme(of: Mapping) -> str:
    return '< 0.001' if of['better'] < 0.5 else '> 0.999'


def _check(check: Mapping) -> dict[str, Any]:
    """A check of the finished runs with its values as text; the template says nothing of fewer than two rows."""
    return {**check, 'values': {row: _thousands(value) for row, value in (check.get('values') or {}).items()}}


def _thousands(value: object) -> str:
    return f'{int(value):,}' if str(value).isdigit() else str(value)


def _row(study: Mapping, row: Mapping, number: int) -> dict[str, Any]:
    """What the list of runs shows of a row: its curves, a line a seed, and its runs."""
    names = dict.fromkeys(name for run in row['runs'] for name in run.get('curves') or ())
    figures = []
    for place, name in enumerate(names):
        runs = [run for run in row['runs'] if name in (run.get('curves') or ())]
        series = {f'seed {run["seed"]}': percent(name, run['curves'][name]) for run in runs}
        title = CURVES.get(name, name.replace('_', ' '))
        figures.append(svg(lines(series, title, 'step'), f'curves-{number}-{place}'))
    runs = [
        dict(anchor=f'run-{number}-{place}', run=run, scores=_finite(study, run), facts=_facts(run))
        for place, run in enumerate(row['runs'])
    ]
    return dict(row=row, figures=figures, runs=runs)


def _facts(run: Mapping) -> dict[str, Any]:
    """All that is known of a run; what is not known is left out. A pair is a link."""
    seen = run.get('images_seen')
    facts = {
        'what went wrong': ' '.join((run.get('error') or '').split()),
        'training': f'{run["seconds"]:,.1f} s' if run.get('seconds') is not None else '',
        'images seen': f'{seen:,}' if seen is not None else '',
        'hardware': run.get('hardware'),
        'checkpoint': _link(run['folder'], run['checkpoint']) if run.get('checkpoint') else '',
        'SHA-256': run.get('sha256'),
        'code': run.get('git'),
        'versions': ', '.join(f'{name} {version}' for name, version in (run.get('versions') or {}).items()),
        'folder': _link(run['folder'], '') if run.get('folder') else '',
    }
    return {name: value for name, value in facts.items() if value}


def _link(folder: str, file: str) -> tuple[str, str]:
    """Address and text of something beside the page, whatever its name."""
    path = '/'.join(part for part in (folder.strip('/'), file) if part)
    return f'./{quote(path)}', file or folder


def _finite(study: Mapping, run: Mapping) -> dict[str, float]:
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    return {labels.get(key, key): value for key, value in run.get('scores', {}).items() if isfinite(value)}
