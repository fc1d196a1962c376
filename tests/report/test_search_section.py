"""The searches on a study's page: both tracks, who is ahead, what lies at an edge, what has diverged."""

import math

from outline import charts

from mmairl.report.search_section import search_section, worth_section


def trial(search: int, number: int, rate: float, score: float | None, diverged: str = '') -> dict:
    own = dict(search=search, trial=number, folder=f'trials/{search}/{number}', state='done')
    return dict(own, values=dict(rate=rate, norm='a'), score=score, diverged=diverged)


def row(name: str, on: str | None, *scores: float) -> dict:
    return dict(name=name, on=on, runs=[dict(state='done', scores=dict(knn=score)) for score in scores])


def effect(row: str, estimate: float) -> dict:
    return dict(row=row, on='one', estimate=estimate, verdict='undecided', collapsed=(0, 0))


def test_the_section_has_both_tracks_the_trials_and_who_is_ahead():
    tried = [trial(0, 0, 0.1, 40.0), trial(0, 1, 0.8, 50.0), trial(1, 0, 0.1, 42.0), trial(1, 1, 2.0, None, 'NaN')]
    outdated = row('two', 'one', 77.0)
    outdated['runs'][0]['state'] = 'replaced'
    study = dict(
        metrics=[dict(key='knn', label='k-NN')],
        rows=[row('one', None, 41.0, 43.0), row('two', 'one', 51.0, math.nan)],
        comparisons=dict(knn=[effect('two', 9.0)]),
        as_published=dict(  # of which a run was measured before something changed
            rows=[row('one', None, 40.0), outdated], comparisons=dict(knn=[effect('two', -1.0)])
        ),
        search=dict(
            dimensions=dict(rate='lr'),
            rows=dict(one=tried, two=[]),
            curves=dict(one=[dict(estimate=41.0, low=40.0, high=42.0)] * 2, two=[]),
            ahead=[dict(row='two', on='one', budget=None), dict(row='one', on='two', budget=None)],
            forgiving=dict(one=[0.5, 1.0], two=[]),
        ),
    )
    section = search_section(study)
    first, second = section['tracks']['knn']
    assert [track['score'] for track in first['tracks']] == ['40.0', '42.0 ± 1.4'] and first['tracks'][0][
        'effect'
    ] is None
    assert [track['score'] for track in second['tracks']] == ['—', '51.0']
    assert [track['effect']['estimate'] for track in second['tracks']] == [-1.0, 9.0]
    assert list(section['responses']) == ['one'] and len(section['responses']['one']) == 2  # of rate and of norm
    drawn = charts(''.join(section['responses']['one']))
    searches = {line['name']: (line['x']['rate'], line['y']) for line in drawn[0]['series']}
    assert searches == {'search 1': ([0.1, 0.8], [40, 50]), 'search 2': ([0.1], [42])} and drawn[1]['ticks'] == ['a']
    best = charts(section['best'])[0]['series'][0]
    assert (best['y'], best['low'], best['high']) == ([41, 41], [40, 40], [42, 42])
    assert section['ahead'] == [] and [pair['row'] for pair in section['unknown']] == ['two']
    assert section['forgiving'] == dict(one=0.75) and section['diverged'][0]['row'] == 'one'
    assert section['ended'] == dict(one=4, two=0) and section['best']
    study['search']['ahead'][0]['budget'] = 3
    assert [pair['budget'] for pair in search_section(study)['ahead']] == [3] and not search_section(study)['unknown']
    study['comparisons']['knn'][0]['collapsed'] = (0, 2)
    assert search_section(study)['ahead']  # one row learned, so that trials tell the two apart
    study['comparisons']['knn'][0]['collapsed'] = (1, 2)
    assert not search_section(study)['ahead']


def test_the_worth_of_rescaling_has_all_rows_in_one_picture():
    study = dict(
        worth=dict(finetune=dict(pairs=[dict(row='b')], lines=dict(a=[[0.01, 30.0], [0.1, 40.0]], b=[[0.01, 5]])))
    )
    section = worth_section(study)['finetune']
    (drawn,) = charts(section['chart'])
    assert {line['name']: (line['x']['rate'], line['y']) for line in drawn['series']} == dict(
        a=([0.01, 0.1], [30, 40]), b=([0.01], [5])
    )
    assert section['pairs'] == [dict(row='b')] and drawn['log'] == 'x' and worth_section({}) == {}
