"""The page of a study: what was measured here beside what was published, and every number a click from its run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import isfinite, log10
from pathlib import Path
from statistics import mean
from typing import Any

from markupsafe import Markup

from mmairl.errors import UserError
from mmairl.report.compare_page import write_compare_page
from mmairl.report.figures import Point, forest, lines, study_bars, study_lines, study_scatter, svg
from mmairl.report.page import write_page
from mmairl.report.sections import CURVES, percent
from mmairl.report.study_tables import (
    BLANK,
    LEGEND,
    WORDS,
    Column,
    Line,
    columns,
    latex,
    markdown,
    signed,
    table_lines,
)
from mmairl.report.table import html_table

EFFECTS = ('effect', '95 % interval', 'verdict', 'cannot be told from')
SHARES = ('share of the gain', '95 % interval')
NOISE = ('pre-training seeds', "classifier's seeds", 'test images', 'effect, by seeds', 'effect, by test images')
SPENT = ('images seen', 'FLOPs', 'FLOPs, of the first row', 'device time')
AT_EQUAL_COST = ('compared with', 'both at', 'score', 'the other', 'effect', '95 % interval')
SHOWN = 2  # published panels in sight; the others are folded away


def write_study_page(study: Mapping, out: str | Path) -> Path:
    """The study as one file beside its study.json, whose folders the links are relative to.

    >>> write_study_page(json.loads(Path('ladder/study.json').read_text()), 'ladder/page.html')  # doctest: +SKIP
    """
    found, rows = columns(study), table_lines(study)
    panels = [panel for place, column in enumerate(found) if (panel := _panel(study, column, rows, place))]
    published = [panel for panel in panels if panel['column'].kind == 'published']
    timed = [run for row in study['rows'] for run in row['runs'] if run.get('seconds') is not None]
    trained = duration(sum(run['seconds'] for run in timed)) if timed else BLANK
    return write_page(
        out,
        'study.html',
        title=study['title'],
        lead=study['question'],
        study=study,
        tiles=_tiles(study, trained, len(timed)),
        words=WORDS,
        legend=LEGEND,
        kinds=[(kind, len(list(of))) for kind, of in groupby(column.kind for column in found)],
        columns=found,
        rows=[
            dict(line=line, beside=_beside(study, line.row, number, Path(out)), **_runs(study, line.row, number))
            for number, line in enumerate(rows)
        ],
        panels=[panel for panel in panels if panel not in published] + published[:SHOWN],
        folded=published[SHOWN:],
        effects=[] if study.get('attribution') else _effects(study),  # crossed rows answer together
        attribution=_attribution(study),
        noise=_noise(study),
        cost=_cost(study),
        reading=[part for part in study['reading'].split('\n\n') if part.strip()],
        trained=f'{trained} of training in {len(timed)} runs' if timed else '',
        hardware=', '.join(dict.fromkeys(run['hardware'] for run in timed if run.get('hardware'))),
        copies={'Markdown': markdown(study), 'LaTeX (booktabs)': latex(study)},
    )


def _tiles(study: Mapping, trained: str, timed: int) -> dict[str, str]:
    """How much work it was and whether it was fair, before any result."""
    finished, asked = progress(study)
    unfinished = Counter(run['state'] for row in study['rows'] for run in row['runs'] if run['state'] != 'done')
    others = ''.join(f', {count} {state}' for state, count in unfinished.most_common())
    before = study['fairness'].get('before', [])
    return {
        'rows, each a config': f'{len(study["rows"])}',
        f'runs finished{others}': f'{finished} of {asked}',
        f'training in all, {timed} runs': trained,
        'undeclared differences between rows': f'{sum(len(of["undeclared"]) for of in before)}' if before else BLANK,
    }


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
        points.append(Point(line.row, cell.numbers, f'{cell.value} {cell.spread}'.strip(), cluster))
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


def _effects(study: Mapping) -> list[dict[str, Any]]:
    """For each score what its comparisons found, as text, and the figure of those that have an interval."""
    found = []
    for number, metric in enumerate(study['metrics']):
        family = [{**of, 'words': _words(of)} for of in study['comparisons'].get(metric['key'], ())]
        drawn = [of for of in family if of['low'] is not None]
        texts = [of['words']['estimate'] for of in drawn]
        figure = svg(forest(drawn, texts), f'forest-{number}', f'effects on {metric["label"]}') if drawn else ''
        if family:
            found.append(dict(label=metric['label'], figure=figure, comparisons=family))
    return found


def _attribution(study: Mapping) -> list[dict[str, Any]]:
    """For each score the effects of a design's factors as figure and table, their shares, and what is to be said of them."""
    labels, found = {metric['key']: metric['label'] for metric in study['metrics']}, []
    for number, (key, of) in enumerate(study.get('attribution', {}).items()):
        effects = [{**effect, 'row': effect['name'], 'margin': of['margin']} for effect in of['effects']]
        drawn = [effect for effect in effects if effect['low'] is not None]
        texts = [signed(effect['estimate'], 1) for effect in drawn]
        figure = svg(forest(drawn, texts), f'factors-{number}', f'effects of factors on {labels[key]}') if drawn else ''
        shown = EFFECTS if any(effect['aliases'] for effect in effects) else EFFECTS[:-1]
        lines = []
        for effect in effects:
            cells = (*_estimate(effect), verdict_words(effect), ', '.join(effect['aliases']) or 'nothing')
            lines.append((effect['row'], cells[: len(shown)]))
        shares = [(share['factor'], _estimate(share)) for share in (*of['shares'], of['gain'])]
        found.append(
            dict(
                label=labels[key],
                figure=figure,
                table=html_table(shown, lines),
                shares=html_table(SHARES, shares),
                caption=_said(of),
            )
        )
    return found


def _estimate(of: Mapping) -> tuple[str, str]:
    return (BLANK, BLANK) if of['estimate'] is None else (signed(of['estimate'], 1), _interval(of))


def _said(of: Mapping) -> str:
    """What a reader must know of an attribution beside its numbers."""
    said = [f'{of["runs"]} runs{", with seeds as blocks" if of["blocks"] else ""}.']
    said.append(f'Equivalent: shown to be less than ±{of["margin"]:g} points.')
    said.append(
        'Main effects and declared interactions are corrected together (Holm), other interactions among themselves.'
    )
    if not of['exact']:
        said.append(
            'The design does not measure all combinations: shares leave out interactions of three factors and more.'
        )
    if of['missing']:
        said.append(f'Missing, and not imputed: {"; ".join(of["missing"])}.')
    if of['wanted']:
        said.append(f'{of["wanted"]} more runs would find a main effect of {of["margin"]:g} four times in five.')
    return ' '.join(said)


def _words(of: Mapping) -> dict[str, str]:
    """A comparison's numbers as the page prints them."""
    estimate = BLANK if of['estimate'] is None else signed(of['estimate'], 1)
    interval, better = _interval(of), BLANK
    if of['low'] is not None:
        certain = '< 0.001' if of['better'] < 0.5 else '> 0.999'
        better = f'{of["better"]:.3f}' if 0.0005 < of['better'] < 0.9995 else certain
    return dict(estimate=estimate, interval=interval, better=better, verdict=verdict_words(of))


def verdict_words(of: Mapping) -> str:
    return f'equivalent within ±{of["margin"]:g}' if of['verdict'] == 'equivalent' else of['verdict']


def _interval(of: Mapping) -> str:
    return BLANK if of['low'] is None else f'{signed(of["low"], 1)} to {signed(of["high"], 1)}'


def _noise(study: Mapping) -> list[tuple[str, Markup]]:
    """For each score the table of what its noise comes from, where anything is known of it."""
    labels, tables = {metric['key']: metric['label'] for metric in study['metrics']}, []
    for key, family in study.get('noise', {}).items():
        lines = []
        for of in family:
            images = f'{"≤ " if of["bound"] else ""}{of["images"]:.2f}' if of['images'] else BLANK
            numbers = (of[part] for part in ('seeds', 'probes', 'effect_seeds', 'effect_images'))
            seeds, probes, *effect = (BLANK if value is None else f'{value:.2f}' for value in numbers)
            lines.append((of['row'], (seeds, 'none' if of['probes'] == 0 else probes, images, *effect)))
        if any(of['seeds'] or of['images'] for of in family):
            tables.append((labels[key], html_table(NOISE, lines)))
    return tables


def _cost(study: Mapping) -> dict[str, Any]:
    """What each row has cost, as a table; the comparisons at equal cost, as one for each score; and what has none, in words."""
    rows, equal = (study.get('cost', {}).get(part, {}) for part in ('rows', 'equal'))
    if not any(of['images'] for of in rows.values()):
        return {}
    first = next((of['flops'] for of in rows.values() if of['flops']), None)
    spent = []
    for name, of in rows.items():
        images = BLANK if of['images'] is None else f'{of["images"]:,.0f}'
        flops, ratio = (with_prefix(of['flops']), f'{of["flops"] / first:.2f} ×') if of['flops'] else (BLANK, BLANK)
        seconds = BLANK if of['device_seconds'] is None else duration(of['device_seconds'])
        spent.append((name, (images, flops, ratio, seconds)))
    labels, tables = {metric['key']: metric['label'] for metric in study['metrics']}, []
    for key, family in equal.items():
        lines = []
        for of in family:
            if 'estimate' in of:
                numbers = (*(f'{score:.1f}' for score in of['scores']), signed(of['estimate'], 1), _interval(of))
                lines.append((of['row'], (of['on'], with_prefix(of['flops']), *numbers)))
        if lines:
            tables.append((labels[key], html_table(AT_EQUAL_COST, lines)))
    without = {(of['row'], of['on']): of for family in equal.values() for of in family if 'estimate' not in of}
    said = [f'{row} costs {of["ratio"]:.2f} × what {on} does.' for (row, on), of in without.items()]
    flops = [of['flops'] for of in rows.values()]
    same = all(flops) and max(flops) <= 1.01 * min(flops)
    return dict(table=html_table(SPENT, spent), tables=tables, without=said, same=same)


def with_prefix(flops: float) -> str:
    """
    >>> with_prefix(2.191e15)
    '2.191 PFLOP'
    """
    power = min(7, max(0, int(log10(flops)) // 3))
    return f'{flops / 1000**power:.4g} {" kMGTPEZ"[power].strip()}FLOP'


def _runs(study: Mapping, row: Mapping, number: int) -> dict[str, Any]:
    """What the list of runs shows of a row: its curves, a line a seed, and its runs."""
    names = dict.fromkeys(name for run in row['runs'] for name in run.get('curves') or ())
    figures = []
    for place, name in enumerate(names):
        runs = [run for run in row['runs'] if name in (run.get('curves') or ())]
        series = {f'seed {run["seed"]}': percent(name, run['curves'][name]) for run in runs}
        title = CURVES.get(name, name.replace('_', ' '))
        figures.append(svg(lines(series, title, 'step'), f'curves-{number}-{place}'))
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    shown = []
    for place, run in enumerate(row['runs']):
        scores = {labels.get(key, key): value for key, value in run.get('scores', {}).items() if isfinite(value)}
        shown.append(dict(anchor=f'run-{number}-{place}', run=run, scores=scores, facts=_facts(run)))
    return dict(figures=figures, runs=shown)


def _beside(study: Mapping, row: Mapping, number: int, out: Path) -> str:
    """A page of the row's runs beside those of the row that it builds on, as far as they are on this disk."""
    rows = [of for of in study['rows'] if of['name'] in (row['on'], row['name'])]
    folders = dict.fromkeys(out.parent / run['folder'].strip('/') for of in rows for run in of['runs'])
    there = [
        folder for folder in folders if any(file.stat().st_size for file in folder.glob('*/vis_data/scalars.json'))
    ]
    path, title = Path('compare') / f'row-{number}.html', ' and '.join(of['name'] for of in rows)
    try:
        write_compare_page(there, out.parent / path, CURVES, title)
    except UserError:  # fewer than two have come to a line of their log
        return ''
    return path.as_posix()


def _facts(run: Mapping) -> dict[str, str]:
    """What is known of a run beside its scores and files; what is not known is left out."""
    facts = {
        'last words': ' '.join((run.get('error') or '').split()),
        'training': f'{run["seconds"]:,.1f} s' if run.get('seconds') is not None else '',
        'images seen': f'{run["images_seen"]:,}' if run.get('images_seen') is not None else '',
        'hardware': run.get('hardware'),
        'SHA-256': run.get('sha256'),
        'code': run.get('git'),
        'versions': ', '.join(f'{name} {version}' for name, version in run.get('versions', {}).items()),
    }
    return {name: value for name, value in facts.items() if value}
