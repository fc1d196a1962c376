"""The searches on a study's page: what each trial scored, which was chosen, and what the best of a budget is worth."""

from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup

from mmairl.report.charts import chart
from mmairl.study.pages.study_tables import Column
from mmairl.study.statistics.summary import fresh_run_summary, search_summary


def search_section(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures, tables and sentences of a study's searches, from its record."""
    search = study['search']
    tried = {name: trials for name, trials in search['rows'].items() if any(t['score'] is not None for t in trials)}
    drawn = {
        name: [
            response(trials, dimension, search['dimensions'].get(dimension, dimension))
            for dimension in trials[0]['values']
        ]
        for name, trials in tried.items()
    }
    curves = {name: points for name, points in search['curves'].items() if points}
    return dict(
        search,
        responses=drawn,
        tracks={metric['key']: _tracks(study, metric['key']) for metric in study['metrics']},
        best=best_of(curves) if curves else '',
        **fresh_run_summary(study),
        **search_summary(search),
    )


def search_runs(study: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the runs of a study's searches beside those that are compared: as published, and the trials."""
    if 'search' not in study:
        return []
    published = [
        run
        for row in study['as_published']['rows']
        if not (row['untrained'] or row.get('given'))
        for run in row['runs']
    ]
    return published + [trial for trials in study['search']['rows'].values() for trial in trials]


def _tracks(study: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """Each row with its score and its effect, as published and with equal chances."""
    lines = []
    for row, published in zip(study['rows'], study['as_published']['rows']):
        tracks = []
        for track, own in ((study['as_published'], published), (study, row)):
            values = Column('measured', metric, '').numbers(own)
            spread = f' ± {stdev(values):.1f}' if len(values) > 1 else ''
            effect = next((c for c in track['comparisons'].get(metric, ()) if c['row'] == row['name']), None)
            tracks.append(dict(score=f'{mean(values):.1f}{spread}' if values else '—', effect=effect))
        lines.append(dict(row=row['name'], on=row['on'], tracks=tracks))
    return lines


def response(trials: list[Mapping], dimension: str, key: str) -> Markup:
    """Chart the score of each trial over one dimension, a color per search, and the chosen trials in one of their own."""
    trials = [trial for trial in trials if trial['score'] is not None]
    values = sorted({trial['values'][dimension] for trial in trials}, key=lambda value: (str(type(value)), value))
    numbers = all(isinstance(value, int | float) for value in values)
    groups = {
        f'search {search + 1}': [trial for trial in trials if trial['search'] == search]
        for search in sorted({trial['search'] for trial in trials})
    }
    groups['chosen'] = [trial for trial in trials if trial.get('chosen')]
    series = {}
    for name, own in groups.items():
        points = [(trial['values'][dimension], trial['score']) for trial in own]
        places = sorted((value if numbers else values.index(value), score) for value, score in points)
        if places:
            series[name] = tuple(zip(*places))
    log = 'x' if numbers and min(values) > 0 and max(values) > 4 * min(values) else ''
    ticks = () if numbers else [str(value) for value in values]
    name = f'{dimension} ({key})' if key != dimension else dimension
    return chart(series, f'held-out score by {name}', dimension, log=log, ticks=ticks, dots=True)


def best_of(curves: Mapping[str, list[Mapping[str, float]]]) -> Markup:
    """Chart the expected best trial of each budget, a line a row, with the 95 % interval over searches."""
    series = {}
    for name, points in curves.items():
        ends = ('low', 'high') if 'low' in points[0] else ()
        lines = ([point[part] for point in points] for part in ('estimate', *ends))
        series[name] = (range(1, len(points) + 1), *lines)
    return chart(series, 'best held-out score', 'budget, in runs of the cheapest row', wide=True)
