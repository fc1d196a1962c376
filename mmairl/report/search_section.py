"""The searches on a study's page: what each trial scored, what the best of a budget is worth, and who is ahead from when on."""

from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

from mmairl.report.figures import DOT, _axes, _label, _legend_below, _look, _shape, short
from mmairl.report.page import COLOURS
from mmairl.report.svg import INK, Drawing, styled, svg


def search_section(study: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures, tables and sentences of a study's searches, from its record."""
    search = study['search']
    tried = {name: trials for name, trials in search['rows'].items() if any(t['score'] is not None for t in trials)}
    drawn = {
        name: [svg(response(trials, dimension, key), f'response-{place}-{number}', f'{name}: {dimension}')
               for number, (dimension, key) in enumerate(_dimensions(search, trials))]
        for place, (name, trials) in enumerate(tried.items())
    }  # fmt: skip
    curves = {name: points for name, points in search['curves'].items() if points}
    diverged = [
        dict(trial, row=name) for name, trials in search['rows'].items() for trial in trials if trial['diverged']
    ]
    return dict(
        search,
        responses=drawn,
        tracks={metric['key']: _tracks(study, metric['key']) for metric in study['metrics']},
        best=svg(best_of(curves), 'best-of', 'the best of a budget') if curves else '',
        ahead=[of for of in search['ahead'] if of['budget']],
        unknown=[
            of for of, back in zip(search['ahead'][::2], search['ahead'][1::2]) if not (of['budget'] or back['budget'])
        ],
        forgiving={name: mean(shares) for name, shares in search['forgiving'].items() if shares},
        diverged=diverged,
        ended={name: sum(trial['state'] == 'done' for trial in trials) for name, trials in search['rows'].items()},
    )


def _tracks(study: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """Each row with its score and its effect, as published and with equal chances."""
    lines = []
    for row, published in zip(study['rows'], study['as_published']['rows']):
        tracks = []
        for track, own in ((study['as_published'], published), (study, row)):
            values = [run['scores'][metric] for run in own['runs'] if metric in run.get('scores', ())]
            spread = f' ± {stdev(values):.1f}' if len(values) > 1 else ''
            effect = next((c for c in track['comparisons'].get(metric, ()) if c['row'] == row['name']), None)
            tracks.append(dict(score=f'{mean(values):.1f}{spread}' if values else '—', effect=effect))
        lines.append(dict(row=row['name'], on=row['on'], tracks=tracks))
    return lines


def _dimensions(search: Mapping[str, Any], trials: list[Mapping]) -> list[tuple[str, str]]:
    """The dimensions of a row's trials, with their keys where they are the study's."""
    return [(name, search['dimensions'].get(name, name)) for name in trials[0]['values']]


@styled()
def response(trials: list[Mapping], dimension: str, key: str) -> Drawing:
    """Draw the score of each trial over one dimension, a colour a search, with a ring around each search's best."""
    axes = _axes(4.6, 2.6)
    values = [trial['values'][dimension] for trial in trials]
    numbers = all(isinstance(value, int | float) for value in values)
    places = dict(zip(sorted(set(values), key=str), range(len(values))))  # of what is no number: in a row
    for number in sorted({trial['search'] for trial in trials}):
        own = [trial for trial in trials if trial['search'] == number and trial['score'] is not None]
        best = max(own, key=lambda trial: (trial['score'], -trial['trial']), default=None)
        for trial in own:
            x = trial['values'][dimension] if numbers else places[trial['values'][dimension]]
            look = {**DOT, 'color': COLOURS[number % len(COLOURS)], 'marker': _shape(number)}
            (dot,) = axes.plot(
                x, trial['score'], **look, label=_label(f'search {number + 1}') if trial is own[0] else None
            )
            said = f'{trial["score"]:.1f} at {short(str(trial["values"][dimension]))}' + ', as published' * (
                not trial['trial']
            )
            axes.figure.mark(dot, f'search {number + 1}, trial {trial["trial"]}', said)
            if trial is best:
                axes.plot(x, trial['score'], marker='o', markersize=11, markerfacecolor='none', color=INK, linestyle='')
    if numbers and min(values) > 0 and max(values) > 4 * min(values):
        axes.set_xscale('log')
    elif not numbers:
        axes.set_xticks(list(places.values()), [short(str(value), 12) for value in places])
    axes.set(xlabel=short(f'{dimension} ({key})' if key != dimension else dimension), ylabel='held-out score')
    _legend_below(axes, -0.28)
    return axes.figure


@styled()
def best_of(curves: Mapping[str, list[Mapping[str, float]]]) -> Drawing:
    """Draw the expected best trial of each budget, a line a row, with the 95 % interval over searches."""
    axes = _axes(7.6, 3.5)
    for number, (name, points) in enumerate(curves.items()):
        budgets, look = range(1, len(points) + 1), _look(number, name)
        axes.plot(budgets, [point['estimate'] for point in points], **look, markersize=4)
        if 'low' in points[0]:
            ends = ([point[end] for point in points] for end in ('low', 'high'))
            axes.fill_between(budgets, *ends, color=look['color'], alpha=0.12, linewidth=0)
    scores = [point['estimate'] for points in curves.values() for point in points]
    room = max(max(scores) - min(scores), 1.0)
    axes.set_ylim(min(scores) - room, max(scores) + room)
    axes.set(
        xlabel='budget, in runs of the cheapest row',
        ylabel='best held-out score',
        ylim=(min(scores) - room, max(scores) + room),
    )
    axes.locator_params(axis='x', integer=True)
    axes.legend()
    return axes.figure
