"""The section of a study page about tuning: scores with published and with tuned settings, and the trials of the searches.

A row of a study is one configuration, and its base row is the row with which it is compared. If the page has this section,
each row that is trained in the study is tuned by one or more searches. A search runs several trials, which differ in the
values of some settings. These settings are the dimensions of the search.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from mmairl.report.figures import chart
from mmairl.study.pages.findings import Finding
from mmairl.study.pages.study_tables import Column, column_cells, labels_of

Trial = Mapping[str, Any]
Study = Mapping[str, Any]


def search_values(study: Study) -> dict[str, Any]:
    """Return the values of `part_tuning.html`, the template of this section."""
    search = study['search']
    curves = {name: points for name, points in search['curves'].items() if points}
    ended = {}
    for name, trials in search['rows'].items():
        ended[name] = sum(trial['state'] == 'done' for trial in trials)
    return dict(
        search=search,
        labels=labels_of(study),
        tracks={metric['label']: _tracks(study, metric['key']) for metric in study['metrics']},
        ended=ended,
        best=best_chart(curves) if curves else '',
        charted=list(_charted_trials(search)),
    )


def search_runs(study: Study) -> list[Mapping[str, Any]]:
    """Return the runs of a search that are not in `study['rows']`: those with the published settings, and all trials."""
    if 'search' not in study:
        return []
    runs: list[Mapping[str, Any]] = []
    for row in study['as_published']['rows']:
        if not row['untrained'] and not row.get('given'):
            runs += row['runs']
    for trials in study['search']['rows'].values():
        runs += trials
    return runs


def _tracks(study: Study, metric: str) -> list[tuple[str, list[str]]]:
    """Return the name of each row with its cells in the table that compares published and tuned settings.

    The first cell is the base row. The next three cells are score, effect and verdict with the published settings, and the
    last three cells are score, effect and verdict with the tuned settings.
    """
    column = Column('measured', metric, '')
    tracks = [study['as_published'], study]
    scores = [column_cells(dict(study, **track), column) for track in tracks]
    rows = []
    for row, *cells_of_tracks in zip(study['rows'], *scores):
        cells = [row['on'] or '']
        for track, cell in zip(tracks, cells_of_tracks):
            cells += [f'{cell.value} {cell.spread}', *_effect(track, row['name'], metric)]
        rows.append((row['name'], cells))
    return rows


def _effect(track: Study, row: str, metric: str) -> list[str]:
    for pair in track['comparisons'].get(metric, ()):
        if pair['row'] == row:
            effect = Finding(row, pair['on'], dict(low=None, high=None) | pair).effect()
            size = f'{effect.size} ({effect.range})' if effect.range else effect.size
            return [size, effect.verdict]
    return ['', '']


def _charted_trials(search: Study) -> Iterator[tuple[str, Sequence[Trial], list[Markup]]]:
    """Yield the name of each row that has a scored trial, with its trials and a chart for each dimension of the search."""
    keys = search['dimensions']
    for name, trials in search['rows'].items():
        scored = [trial for trial in trials if trial['score'] is not None]
        if scored:
            dimensions = trials[0]['values']
            yield name, trials, [response(scored, key, keys.get(key, key)) for key in dimensions]


def response(trials: Sequence[Trial], dimension: str, key: str) -> Markup:
    """Chart the score of each trial over one dimension of the search.

    The chart has a series of points for each search, and another series for the chosen trials.

    Args:
        trials: The trials.
        dimension: The name of the dimension.
        key: The config key of the dimension.
    """
    values = {repr(trial['values'][dimension]): trial['values'][dimension] for trial in trials}
    ordered = sorted(values.values(), key=_order)
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


def _order(value: Any) -> tuple[str, Any]:
    """Return the key by which the values of a dimension are sorted. A value may also be a list or a dictionary."""
    return str(type(value)), value if isinstance(value, int | float) else str(value)


def best_chart(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> Markup:
    """Chart the expected best score for each budget, with a line for each row and its 95 % interval over searches."""
    series = {}
    for name, points in curves.items():
        parts = ('estimate', 'low', 'high') if 'low' in points[0] else ('estimate',)
        lines = [[point[part] for point in points] for part in parts]
        series[name] = (range(1, len(points) + 1), *lines)
    return chart(series, 'best held-out score', 'budget, in runs of the cheapest row')
