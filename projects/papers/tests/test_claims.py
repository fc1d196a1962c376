"""Claims have the verdicts that their parts deserve, with error rates at or below the nominal ones."""

import re

import numpy as np
import pytest

from mmairl.io import write_json
from mmairl.study.statistics.contrasts import LEVEL
from projects.papers.claims import (
    CONTRADICTED,
    INCONCLUSIVE,
    NOT_RUN,
    SUPPORTED,
    UNTRAINED,
    Claim,
    Contrasts,
    Level,
    Regression,
    Runs,
    effects_of,
    evidence_of,
    judge,
    papers,
)
from projects.papers.claims import (
    Test as ClaimTest,
)
from projects.papers.claims_page import study_of, write_claims_page
from projects.papers.published import tables

RNG = np.random.default_rng(0)


def claim(*contrasts, name='claim', **test) -> Claim:
    return Claim(
        name=name, quote='words', where=('Sec. 1',), test=ClaimTest(contrasts=contrasts, **test)
    )


def runs(means: dict[str, dict[str, float]], seeds: int = 3, spread: float = 0.1, **more) -> Runs:
    scores = {}
    for row, by_score in means.items():
        scores[row] = {}
        for score, mean in by_score.items():
            scores[row][score] = dict(enumerate(mean + spread * RNG.standard_normal(seeds)))
    return Runs(scores, **more)


def verdict(one: Claim, data: Runs) -> str:
    return judge([one], data)[0]['verdict']


TWO = dict(a=dict(linear=72.0, knn=60.0), b=dict(linear=70.0, knn=60.0))


@pytest.mark.parametrize(
    'contrasts, expected',
    [
        (dict(gain=('a', 'b'), scores=('linear',)), SUPPORTED),
        (dict(gain=('b', 'a'), scores=('linear',)), CONTRADICTED),
        (dict(gain=('a', 'b'), scores=('linear',), by=1.0), SUPPORTED),
        (dict(gain=('a', 'b'), scores=('linear',), by=3.0), CONTRADICTED),
        (dict(gain=('a', 'b'), scores=('linear',), relation='similar'), CONTRADICTED),
        (dict(gain=('a', 'b'), scores=('knn',), relation='similar', by=2.0), SUPPORTED),
        (dict(gain=('b', 'a'), scores=('linear',), relation='not_less'), CONTRADICTED),
        (dict(gain=('a', 'b'), scores=('linear',), relation='not_less'), SUPPORTED),
        (dict(gain=('a', 'b'), scores=('linear',), minus_scores=('knn',)), SUPPORTED),
        (dict(sum={'a': 1, 'b': -1}, scores=('linear',)), SUPPORTED),
        (dict(gain=('a', 'c'), scores=('linear',)), NOT_RUN),
    ],
)
def test_contrast_decides_a_claim(contrasts, expected):
    assert verdict(claim(Contrasts(**contrasts)), runs(TWO, seeds=5, spread=0.05)) == expected


def test_lower_scores_are_better_for_errors():
    data = runs(dict(a=dict(uniformity=-3.0), b=dict(uniformity=-2.0)), spread=0.01)
    assert verdict(claim(Contrasts(gain=('a', 'b'), scores=('uniformity',))), data) == SUPPORTED
    raw = claim(Contrasts(gain=('a', 'b'), scores=('uniformity',), raw=True))
    assert verdict(raw, data) == CONTRADICTED


def test_steps_compare_each_row_with_the_previous_row():
    data = runs(dict(a=dict(linear=1.0), b=dict(linear=3.0), c=dict(linear=2.0)), spread=0.01)
    rises = Contrasts(steps=('a', 'b', 'c'), scores=('linear',))
    assert verdict(claim(rises), data) == CONTRADICTED
    assert verdict(claim(Contrasts(steps=('a', 'c', 'b'), scores=('linear',))), data) == SUPPORTED


def test_fraction_of_the_parts_never_supports_a_claim():
    scores = ('linear', 'voc07_ap50')
    assert verdict(claim(Contrasts(gain=('a', 'b'), scores=scores)), runs(TWO)) == INCONCLUSIVE
    against = claim(Contrasts(gain=('b', 'a'), scores=scores))
    assert verdict(against, runs(TWO, seeds=5)) == CONTRADICTED


def test_one_stand_in_counts_once():
    scores = ('voc07_ap50', 'voc0712_ap50', 'coco_fpn_box')
    test = claim(Contrasts(gain=('a', 'b'), scores=scores, need='most')).test
    assert len(effects_of(test, Runs({}, scale='demo'))) == 2
    two = Contrasts(gain=('a', 'b'), scores=('voc07_ap50',), minus_scores=('voc0712_ap50',))
    assert judge([claim(two)], Runs({}, scale='demo'))[0]['verdict'] == NOT_RUN


def test_published_number_is_not_compared_with_a_small_scale():
    rival = claim(Contrasts(row='a', numbers={'knn': 50.0}))
    assert verdict(rival, runs(TWO, seeds=5)) == SUPPORTED
    assert verdict(rival, runs(TWO, seeds=5, scale='demo')) in (INCONCLUSIVE, NOT_RUN)


def test_level_decides_whether_a_row_collapsed():
    means = {'random initialisation': dict(linear=4.0), 'good': dict(linear=70.0)}
    means |= dict(bad=dict(linear=3.9), weak=dict(linear=30.0))
    data = runs(means, spread=0.3)
    level = Level(rows=('bad',), healthy='good', scores=('linear',))
    assert verdict(claim(levels=(level,)), data) == SUPPORTED
    learned = Level(rows=('weak', 'good'), healthy='good', scores=('linear',), relation='learned')
    assert verdict(claim(levels=(learned,)), data) == SUPPORTED


def test_row_with_some_collapsed_runs_is_not_tested():
    data = runs(TWO, collapsed={'b': {0}})
    assert verdict(claim(Contrasts(gain=('a', 'b'), scores=('linear',))), data) == INCONCLUSIVE
    all_collapsed = runs(TWO, collapsed={'b': {0, 1, 2}})
    assert (
        verdict(claim(Contrasts(gain=('a', 'b'), scores=('linear',))), all_collapsed) == SUPPORTED
    )


def test_needed_seeds_decide_the_claim():
    data = runs(dict(a=dict(linear=70.5), b=dict(linear=70.0)), seeds=2, spread=0.0)
    for row in data.scores.values():
        row['linear'] = {0: row['linear'][0] - 0.4, 1: row['linear'][1] + 0.4}
    judged = judge([claim(Contrasts(gain=('a', 'b'), scores=('linear',)))], data)[0]
    assert judged['verdict'] == INCONCLUSIVE and 10 < judged['seeds_needed'] < 40


def error(one: Claim, data: Runs) -> str:
    """Return the verdict on a single claim, without the search for the number of seeds that would decide it."""
    evidence = evidence_of(one.test, data)
    if evidence.p >= LEVEL:
        return INCONCLUSIVE
    return SUPPORTED if evidence.support < evidence.against else CONTRADICTED


# Each case has a claim whose true value lies on the boundary, so any verdict is an error: at most 2.5 % in each direction.
SIMULATED = {
    'difference': lambda: (claim(Contrasts(gain=('a', 'b'), scores=('s',))), dict(a=0, b=0), 1),
    'unequal spreads': lambda: (
        claim(Contrasts(gain=('a', 'b'), scores=('s',))),
        dict(a=0, b=0),
        8,
    ),
    'equivalence': lambda: (
        claim(Contrasts(gain=('a', 'b'), scores=('s',), relation='similar', by=2.0)),
        dict(a=2, b=0),
        1,
    ),
    'not less': lambda: (
        claim(Contrasts(gain=('a', 'b'), scores=('s',), relation='not_less', by=2.0)),
        dict(a=-2, b=0),
        1,
    ),
    'interaction': lambda: (
        claim(Contrasts(gain=('a', 'b'), minus=(('c', 'd'),), scores=('s',))),
        dict(a=1, b=0, c=1, d=0),
        1,
    ),
    'steps': lambda: (
        claim(Contrasts(steps=('a', 'b', 'c'), scores=('s',))),
        dict(a=0, b=9, c=9),
        1,
    ),
    'level': lambda: (
        claim(levels=(Level(rows=('a',), healthy='b', scores=('s',)),)),
        {'a': 25, 'b': 100, 'random initialisation': 0},
        1,
    ),
    'published number': lambda: (claim(Contrasts(row='a', numbers={'s': 0.0})), dict(a=0), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize('seeds', [3, 5])
@pytest.mark.parametrize('case', SIMULATED)
def test_error_rates_are_at_most_nominal(case, seeds):
    one, means, ratio = SIMULATED[case]()
    wrong, draws = {SUPPORTED: 0, CONTRADICTED: 0}, 1000
    for _ in range(draws):
        scores = {}
        for number, (row, mean) in enumerate(means.items()):
            spread = ratio if number else 1
            scores[row] = {'s': dict(enumerate(mean + spread * RNG.standard_normal(seeds)))}
        if case == 'published number':
            # The published number is one run of an equal network.
            one = claim(Contrasts(row='a', numbers={'s': float(RNG.standard_normal())}))
        found = error(one, Runs(scores))
        if found in wrong:
            wrong[found] += 1
    # 2.5 % plus three standard errors of the simulation.
    assert max(wrong.values()) <= draws * 0.025 + 3 * (draws * 0.025) ** 0.5, wrong


@pytest.mark.slow
@pytest.mark.parametrize('x_error', [0.1, 0.3])
def test_equal_lines_are_rarely_ranked(x_error):
    lines = Regression(
        x='x', y='y', groups=dict(a=tuple('abcde'), b=tuple('fghij')), ranking=('a', 'b')
    )
    one = claim(regressions=(lines,))
    wrong, draws = {SUPPORTED: 0, CONTRADICTED: 0}, 300
    for _ in range(draws):
        scores = {}
        for row in 'abcdefghij':
            x = 72 - 1.2 * (row > 'e') + RNG.standard_normal()
            y = 0.8 * x + 0.2 * RNG.standard_normal()
            scores[row] = dict(
                x=dict(enumerate(x + x_error * RNG.standard_normal(3))),
                y=dict(enumerate(y + 0.3 * RNG.standard_normal(3))),
            )
        found = error(one, Runs(scores))
        if found in wrong:
            wrong[found] += 1
    assert max(wrong.values()) <= draws * 0.025 + 3 * (draws * 0.025) ** 0.5, wrong


def test_names_of_claims_are_unique_and_links_exist():
    claims = [one for paper in papers().values() for one in paper.claims]
    names = [one.name for one in claims]
    assert len(names) == len(set(names)) > 150
    assert not {link for one in claims for link in one.see} - set(names)
    assert all(one.why for one in claims if one.test is None)


def test_rows_of_claims_are_rows_of_their_studies():
    for paper in papers().values():
        for one in paper.claims:
            if one.test is None:
                continue
            rows = {row.name for row in study_of(one.study).rows} | {UNTRAINED}
            used = {row for part in one.test.parts(lambda score: 1.0) for _, row, _ in part.terms}
            for lines in one.test.regressions:
                used |= {row for group in lines.groups.values() for row in group}
            for pair in one.test.configs:
                used |= set(pair.rows)
            assert used <= rows, one.name


def test_published_numbers_of_claims_stand_in_the_tables():
    printed = {round(value, 4) for table in tables().values() for value in numbers_in(table)}
    for paper in papers().values():
        for one in paper.claims:
            for row in study_of(one.study).rows if one.test else ():
                assert {round(value, 4) for value in row.published.values()} <= printed, row.name
            for group in one.test.contrasts if one.test else ():
                # A number may also stand in the text, which the claim quotes.
                words = re.findall(r'\d+\.\d+', ' '.join((one.quote, one.evidence, one.reading)))
                missing = {round(value, 4) for value in group.numbers.values()} - printed
                missing -= set(map(float, words))
                assert not missing, (one.name, missing)


def numbers_in(table) -> list[float]:
    if isinstance(table, dict):
        table = table.values()
    elif not isinstance(table, list):
        return [table] if isinstance(table, int | float) else []
    return [value for part in table for value in numbers_in(part)]


def test_page_shows_verdicts_of_a_record(tmp_path):
    names = ['MoCo v2', '+ symmetric loss (MoCo v2+)']
    rows = []
    for name, mean in zip(names, (50.0, 60.0)):
        done = [dict(seed=s, state='done', scores=dict(knn=mean + 0.3 * s)) for s in range(5)]
        rows.append(dict(name=name, runs=done))
    record = dict(name='ladder', scale=dict(name='demo'), seeds=[0, 1, 2, 3, 4], rows=rows)
    record['metrics'] = [dict(key='knn')]
    write_json(tmp_path / 'ladder/study.json', record)
    page = write_claims_page(tmp_path, tmp_path / 'claims.html').read_text()
    assert '<b>supported</b> at demo' in page and 'id="configurations_improve_linear"' in page
    assert page.count('class="claim ') == sum(len(paper.claims) for paper in papers().values())
    assert '<script' not in page and 'http-equiv="Content-Security-Policy"' in page
