"""Test the section on hyperparameter searches in a study's page: published and tuned rows, chosen trials, and diverged
trials.
"""

import math

import pytest
from harness.outline import charts
from study.pages.planted import trial
from study.pages.test_study_page import text_of

from mmairl.report.page import fill
from mmairl.study.pages.search_section import response, search_values


def row(name: str, on: str | None, *scores: float, state: str = 'done') -> dict:
    runs = [dict(seed=seed, state=state, scores=dict(knn=score)) for seed, score in enumerate(scores)]
    return dict(name=name, on=on, runs=runs)


def effect(estimate: float) -> dict:
    return dict(row='two', on='one', estimate=estimate, verdict='undecided', collapsed=(0, 0), margin=1.0)


@pytest.fixture(scope='module')
def section() -> str:
    """Return the section on searches for a study of two rows.

    The second row was not searched, and its run with the published settings has the state 'replaced'.
    """
    tried = [
        trial(0, 0, 0.1, 40.0),
        trial(0, 1, 0.8, 50.0) | dict(chosen=True),
        trial(1, 0, 0.1, 42.0),
        trial(1, 1, 2.0, None, 'NaN'),
    ]
    for one in tried:
        one['values']['norm'] = 'a'
    search = dict(
        criterion='knn',
        budget=4.0,
        margin=1.0,
        searches=2,
        edges=[],
        dimensions=dict(rate='lr'),
        rows=dict(one=tried, two=[]),
        counts=dict(one=2, two=0),
        curves=dict(one=[dict(estimate=41.0, low=40.0, high=42.0)] * 2, two=[]),
        forgiving=dict(one=[0.5, 1.0], two=[]),
    )
    published = [row('one', None, 40.0), row('two', 'one', 77.0, state='replaced')]
    study = dict(
        metrics=[dict(key='knn', label='k-NN')],
        primary='knn',
        rows=[row('one', None, 41.0, 43.0), row('two', 'one', 51.0, math.nan)],
        comparisons=dict(knn=[effect(9.0)]),
        as_published=dict(rows=published, comparisons=dict(knn=[effect(-1.0)])),
        search=search,
    )
    return fill('part_tuning.html', **search_values(study))


@pytest.mark.parametrize(
    'text',
    [
        'two one — −1.0 inconclusive 51.0 +9.0 inconclusive',
        'one: 75 % of the trials are within 1 points of the best trial.',
        'one, search 2, trial 1 did not finish and counts as the worst: NaN',
        '1 1 50.00 ✓ chosen 0.8',
        '2 1 not finished',
        'These scores are optimistic, because the best trial is chosen by the same scores.',
    ],
)
def test_section_states_scores_and_failed_trials(section, text):
    assert text in text_of(section)


def test_first_row_has_no_effect(section):
    assert 'one 40.0 — 42.0 ± 1.4' not in text_of(section)


def test_section_charts_trials_over_each_dimension(section):
    best, rate, norm = charts(section)
    searches = {line['name']: (line['x']['rate'], line['y']) for line in rate['series']}
    assert searches == {'search 1': ([0.1, 0.8], [40, 50]), 'search 2': ([0.1], [42]), 'chosen': ([0.8], [50])}
    assert norm['ticks'] == ['a']
    line = best['series'][0]
    assert (line['y'], line['low'], line['high']) == ([41, 41], [40, 40], [42, 42])


def test_values_of_a_dimension_may_be_lists():
    trials = [dict(search=0, score=score, values=dict(betas=[0.9, score])) for score in (0.99, 0.95)]
    assert '[0.9, 0.95]' in response(trials, 'betas', 'betas')
