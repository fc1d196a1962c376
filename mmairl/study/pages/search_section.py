"""The searches on a study's page: the score of each trial, the chosen ones, and the best of each budget."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup

from mmairl.report.charts import chart
from mmairl.study.pages.study_tables import BLANK, Column
from mmairl.study.statistics.summary import fresh_run_summary, search_summary

Trial = Mapping[str, Any]


def search_section(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures, tables and numbers of a study's searches, from its record."""
    search = study['search']
    curves = {name: points for name, points in search['curves'].items() if points}
    return dict(
        search,
        responses=_responses(search),
        tracks={metric['key']: _tracks(study, metric['key']) for metric in study['metrics']},
        best=best_chart(curves) if curves else '',
        **fresh_run_summary(study),
        **search_summary(search),
    )


def search_runs(study: Mapping[str, Any]) -> list[Mapping[str, Any]]:
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


def _tracks(study: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """Return each row with its score and its effect, as published and with equal chances."""
    published = study['as_published']
    lines = []
    for row, published_row in zip(study['rows'], published['rows']):
        tracks = [_track(published, published_row, metric), _track(study, row, metric)]
        lines.append(dict(row=row['name'], on=row['on'], tracks=tracks))
    return lines


def _track(track: Mapping[str, Any], row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    comparisons = track['comparisons'].get(metric, ())
    effect = next(
        (comparison for comparison in comparisons if comparison['row'] == row['name']), None
    )
    values = Column('measured', metric, '').numbers(row)
    if not values:
        return dict(score=BLANK, effect=effect)
    spread = f' ± {stdev(values):.1f}' if len(values) > 1 else ''
    return dict(score=f'{mean(values):.1f}{spread}', effect=effect)


def _responses(search: Mapping[str, Any]) -> dict[str, list[Markup]]:
    """Return the charts of each row with a scored trial, one for each dimension."""
    charts = {}
    for name, trials in search['rows'].items():
        scored = [trial for trial in trials if trial['score'] is not None]
        if scored:
            keys = search['dimensions']
            dimensions = trials[0]['values']
            charts[name] = [
                response(scored, dimension, keys.get(dimension, dimension))
                for dimension in dimensions
            ]
    return charts


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
