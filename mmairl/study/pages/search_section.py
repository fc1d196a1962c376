"""The searches on a study's page: both tracks, the trials, and the best of each budget."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from mmairl.report.charts import chart
from mmairl.report.page import fill
from mmairl.report.table import html_table
from mmairl.study.pages.findings import Finding
from mmairl.study.pages.study_tables import BLANK, Column, column_cells
from mmairl.study.statistics.summary import fresh_run_summary, search_summary

Trial = Mapping[str, Any]
Study = Mapping[str, Any]
TRACK_HEADS = ('score', 'effect', '95 % interval', 'verdict')


def search_section(study: Study) -> Markup:
    """Return what the page shows of a study's searches."""
    search = study['search']
    curves = {name: points for name, points in search['curves'].items() if points}
    section = dict(
        intro=_intro(study),
        tracks=[_tracks(study, metric) for metric in study['metrics']],
        remarks=list(_remarks(study)),
        best=best_chart(curves) if curves else '',
        trials=list(_trials(search)),
    )
    return fill('search.html', searches=section)


def search_runs(study: Study) -> list[Mapping[str, Any]]:
    """Return the runs of a study's searches that are not compared: as published, and the trials."""
    if 'search' not in study:
        return []
    runs: list[Mapping[str, Any]] = []
    for row in study['as_published']['rows']:
        if not row['untrained'] and not row.get('given'):
            runs += row['runs']
    for trials in study['search']['rows'].values():
        runs += trials
    return runs


def labels_of(study: Study) -> dict[str, str]:
    return {metric['key']: metric['label'] for metric in study['metrics']}


def _intro(study: Study) -> str:
    search = study['search']
    criterion = labels_of(study).get(search['criterion'], search['criterion'])
    return (
        f'{search["searches"]} searches of each row, each with the training FLOPs of {search["budget"]:g} runs of the '
        'cheapest row. All rows share the same points around their own values; the first trial is the row as published. '
        f'Trials are chosen by {criterion} on images that are held out of the training labels. Each winner is trained '
        'again from a new seed, and only these runs are compared above.'
    )


def _tracks(study: Study, metric: Mapping[str, str]) -> Markup:
    """Return a table of each row's score and effect, as published and with equal budgets."""
    column = Column('measured', metric['key'], '')
    tracks = [study['as_published'], study]
    scores = [column_cells(dict(study, **track), column) for track in tracks]
    rows = []
    for number, row in enumerate(study['rows']):
        cells = [row['on'] or '']
        for track, column_of_track in zip(tracks, scores):
            cell = column_of_track[number]
            cells += [f'{cell.value} {cell.spread}', *_effect(track, row['name'], metric['key'])]
        rows.append((row['name'], cells))
    heads = [f'{name}: {head}' for name in ('as published', 'tuned') for head in TRACK_HEADS]
    return html_table(['compared with', *heads], rows, words=True, head=metric['label'])


def _effect(track: Study, row: str, metric: str) -> list[str]:
    for pair in track['comparisons'].get(metric, ()):
        if pair['row'] == row:
            effect = Finding(row, pair['on'], dict(dict.fromkeys(('low', 'high')), **pair)).effect()
            return [effect.size, effect.range, effect.verdict]
    return [''] * 3


def _remarks(study: Study) -> Iterator[str]:
    """Yield sentences on trials, winners, ranges and divergence."""
    search = study['search']
    fresh = fresh_run_summary(study)
    summary = search_summary(search)
    label = labels_of(study).get(fresh['primary'], '')
    for name, count in search['counts'].items():
        asked = count * search['searches']
        ended = summary['ended'][name]
        unfinished = f'; {ended} of {asked} have ended' if ended < asked else ''
        yield f'{name}: {count} trials in each search{unfinished}.'
    for pair in fresh['ahead']:
        yield (
            f'Fresh runs of the winners, {label}: {pair["row"]} is ahead of {pair["on"]} by {pair["by"]:.1f} points.'
        )
    for pair in fresh['unknown']:
        yield (
            f'Fresh runs of the winners, {label}: inconclusive for {pair["row"]} and {pair["on"]}.'
        )
    for name, share in summary['near_best'].items():
        yield f'{name}: {100 * share:.0f} % of the trials are within {search["margin"]:g} points of the best.'
    for edge in search['edges']:
        yield (
            f'{edge["row"]}: the best value of {edge["dimension"]} is at the {edge["end"]} end of its range in '
            f'{edge["searches"]} of {edge["of"]} searches; widen the range there.'
        )
    for trial in summary['diverged']:
        yield (
            f'{trial["row"]}, search {trial["search"] + 1}, trial {trial["trial"]} did not finish and counts as the '
            f'worst: {trial["diverged"]}'
        )


def _trials(search: Mapping[str, Any]) -> Iterator[tuple[str, list[Markup], Markup]]:
    """Yield each row with the charts of its dimensions and the table of its trials."""
    for name, trials in search['rows'].items():
        scored = [trial for trial in trials if trial['score'] is not None]
        if not scored:
            continue
        keys = search['dimensions']
        dimensions = list(trials[0]['values'])
        figures = [response(scored, key, keys.get(key, key)) for key in dimensions]
        columns = ['trial', 'score', '', *dimensions]
        rows = [(str(trial['search'] + 1), _trial_cells(trial)) for trial in trials]
        yield name, figures, html_table(columns, rows, head='search')


def _trial_cells(trial: Trial) -> list[str]:
    score = BLANK if trial['score'] is None else f'{trial["score"]:.2f}'
    remarks = ['as published'] if trial['trial'] == 0 else []
    remarks += ['✓ chosen'] if trial.get('chosen') else []
    values = [
        f'{value:.4g}' if isinstance(value, int | float) else str(value)
        for value in trial['values'].values()
    ]
    shown = 'not finished' if trial['diverged'] else score
    return [str(trial['trial']), shown, ', '.join(remarks), *values]


def response(trials: Sequence[Trial], dimension: str, key: str) -> Markup:
    """Chart the score of each trial over one dimension, a series per search, and one of the chosen trials."""
    values = {trial['values'][dimension] for trial in trials}
    ordered = sorted(values, key=lambda value: (str(type(value)), value))
    numeric = all(isinstance(value, int | float) for value in ordered)
    groups = {}
    for search in sorted({trial['search'] for trial in trials}):
        groups[f'search {search + 1}'] = [trial for trial in trials if trial['search'] == search]
    groups['chosen'] = [trial for trial in trials if trial.get('chosen')]
    series = {}
    for name, group in groups.items():
        points = []
        for trial in group:
            value = trial['values'][dimension]
            points.append((value if numeric else ordered.index(value), trial['score']))
        if points:
            series[name] = tuple(zip(*sorted(points)))
    wide_range = numeric and min(ordered) > 0 and max(ordered) > 4 * min(ordered)
    name = f'{dimension} ({key})' if key != dimension else dimension
    return chart(
        series,
        f'held-out score by {name}',
        dimension,
        log='x' if wide_range else '',
        ticks=() if numeric else [str(value) for value in ordered],
        dots=True,
    )


def best_chart(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> Markup:
    """Chart the expected best trial of each budget, a line per row, with the 95 % interval over searches."""
    series = {}
    for name, points in curves.items():
        parts = ('estimate', 'low', 'high') if 'low' in points[0] else ('estimate',)
        lines = [[point[part] for point in points] for part in parts]
        series[name] = (range(1, len(points) + 1), *lines)
    return chart(series, 'best held-out score', 'budget, in runs of the cheapest row', wide=True)
