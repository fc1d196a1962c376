"""The searches on a study's page: both tracks, the chosen trials, and trials that diverged."""

import math

from harness.outline import charts
from study.pages.test_study_page import text_of

from mmairl.report.page import fill
from mmairl.study.pages.search_section import search_values


def search_section(study: dict) -> str:
    return fill('part_tuning.html', **search_values(study))


def trial(search: int, number: int, rate: float, score: float | None, diverged: str = '') -> dict:
    own = dict(search=search, trial=number, folder=f'trials/{search}/{number}', state='done')
    return dict(own, values=dict(rate=rate, norm='a'), score=score, diverged=diverged)


def row(name: str, on: str | None, *scores: float) -> dict:
    runs = [dict(seed=seed, state='done', scores=dict(knn=score)) for seed, score in enumerate(scores)]
    return dict(name=name, on=on, runs=runs)


def effect(row: str, estimate: float) -> dict:
    return dict(row=row, on='one', estimate=estimate, verdict='undecided', collapsed=(0, 0), margin=1.0)


def with_trials() -> dict:
    tried = [trial(0, 0, 0.1, 40.0), trial(0, 1, 0.8, 50.0), trial(1, 0, 0.1, 42.0), trial(1, 1, 2.0, None, 'NaN')]
    outdated = row('two', 'one', 77.0)
    outdated['runs'][0]['state'] = 'replaced'
    study = with_winners([row('one', None, 41.0, 43.0), row('two', 'one', 51.0, math.nan)], [effect('two', 9.0)])
    # A run as published was measured before something changed.
    study['as_published'] = dict(rows=[row('one', None, 40.0), outdated], comparisons=dict(knn=[effect('two', -1.0)]))
    study['search'] |= dict(
        dimensions=dict(rate='lr'),
        rows=dict(one=tried, two=[]),
        counts=dict(one=2, two=0),
        curves=dict(one=[dict(estimate=41.0, low=40.0, high=42.0)] * 2, two=[]),
        forgiving=dict(one=[0.5, 1.0], two=[]),
    )
    return study


def test_section_has_both_tracks_and_remarks():
    text = text_of(search_section(with_trials()))
    assert 'one 40.0 — 42.0 ± 1.4' not in text  # no effect of the first row
    assert 'two one — −1.0 inconclusive 51.0 +9.0 inconclusive' in text
    assert 'one: 75 % of the trials are within 1 points of the best trial.' in text
    assert 'one, search 2, trial 1 did not finish and counts as the worst: NaN' in text


def test_section_charts_trials_over_each_dimension():
    rate, norm, best = charts(search_section(with_trials()))[1:] + charts(search_section(with_trials()))[:1]
    searches = {line['name']: (line['x']['rate'], line['y']) for line in rate['series']}
    assert searches == {'search 1': ([0.1, 0.8], [40, 50]), 'search 2': ([0.1], [42])}
    assert norm['ticks'] == ['a']
    line = best['series'][0]
    assert (line['y'], line['low'], line['high']) == ([41, 41], [40, 40], [42, 42])


def with_winners(rows: list[dict], comparisons: list[dict]) -> dict:
    names = [row['name'] for row in rows]
    search = dict(
        dimensions={},
        rows={name: [] for name in names},
        counts=dict.fromkeys(names, 0),
        curves={},
        forgiving={},
        edges=[],
        searches=2,
        budget=4.0,
        margin=1.0,
        criterion='knn',
    )
    return dict(
        metrics=[dict(key='knn', label='k-NN')],
        primary='knn',
        rows=rows,
        comparisons=dict(knn=comparisons),
        as_published=dict(rows=rows, comparisons={}),
        search=search,
    )


def test_chart_marks_the_chosen_trials():
    tried = [trial(0, 0, 0.1, 40.0), trial(0, 1, 0.8, 50.0), trial(0, 2, 2.0, None, 'failed twice: out of memory')]
    tried[1]['chosen'] = True
    study = with_winners([row('one', None, 41.0), row('two', 'one', 51.0)], [effect('two', 1.0)])
    study['search']['rows'] = dict(one=tried, two=[])
    drawn = charts(search_section(study))
    assert [line['name'] for line in drawn[0]['series']] == ['search 1', 'chosen']
    assert drawn[0]['series'][1]['x'] == {'rate': [0.8]} and drawn[0]['series'][1]['y'] == [50]
