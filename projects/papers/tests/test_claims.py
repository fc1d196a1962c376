"""Claims have the verdicts that their parts deserve, with error rates at or below the nominal ones."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from mmairl.evaluation.protocol import BASELINES
from mmairl.io import write_json
from mmairl.study.statistics.contrasts import LEVEL
from projects.papers import claims
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
    judge,
)
from projects.papers.claims_page import read_records, study_of, write_claims_page

TABLES = Path(claims.__file__).with_name('tables')
RNG = np.random.default_rng(0)
TWO = dict(a=dict(linear=72.0, knn=60.0), b=dict(linear=70.0, knn=60.0))


def claim(*contrasts, **test) -> Claim:
    test = claims.Test(contrasts=contrasts, **test)
    return Claim(name='claim', quote='words', where=('Sec. 1',), test=test)


def compare(better: str, worse: str, *scores: str, **more) -> Claim:
    return claim(Contrasts(gain=(better, worse), scores=scores or ('linear',), **more))


def runs(means: dict[str, dict[str, float]], seeds: int = 5, spread: float = 0.05, **more) -> Runs:
    scores = {}
    for row, by_score in means.items():
        scores[row] = {}
        for score, mean in by_score.items():
            values = mean + spread * RNG.standard_normal(seeds)
            scores[row][score] = dict(enumerate(values))
    return Runs(scores, **more)


def verdict(one: Claim, data: Runs) -> str:
    return judge([one], data)[0]['verdict']


@pytest.mark.parametrize(
    'one, expected',
    [
        (compare('a', 'b'), SUPPORTED),
        (compare('b', 'a'), CONTRADICTED),
        (compare('a', 'b', by=1.0), SUPPORTED),
        (compare('a', 'b', by=3.0), CONTRADICTED),
        (compare('a', 'b', relation='similar'), CONTRADICTED),
        (compare('a', 'b', 'knn', relation='similar', by=2.0), SUPPORTED),
        (compare('b', 'a', relation='not_less'), CONTRADICTED),
        (compare('a', 'b', relation='not_less'), SUPPORTED),
        (compare('a', 'b', minus_scores=('knn',)), SUPPORTED),
        (claim(Contrasts(sum={'a': 1, 'b': -1}, scores=('linear',))), SUPPORTED),
        (compare('a', 'c'), NOT_RUN),
        # A fraction of the parts never supports a claim, but one part can contradict it.
        (compare('a', 'b', 'linear', 'voc07_ap50'), INCONCLUSIVE),
        (compare('b', 'a', 'linear', 'voc07_ap50'), CONTRADICTED),
    ],
)
def test_contrast_decides_a_claim(one, expected):
    assert verdict(one, runs(TWO)) == expected


def test_lower_scores_are_better_for_errors():
    data = runs(dict(a=dict(uniformity=-3.0), b=dict(uniformity=-2.0)))
    assert verdict(compare('a', 'b', 'uniformity'), data) == SUPPORTED
    assert verdict(compare('a', 'b', 'uniformity', raw=True), data) == CONTRADICTED


def test_steps_compare_each_row_with_the_previous_row():
    data = runs(dict(a=dict(linear=1.0), b=dict(linear=3.0), c=dict(linear=2.0)))
    for rows, expected in (('abc', CONTRADICTED), ('acb', SUPPORTED)):
        steps = Contrasts(steps=tuple(rows), scores=('linear',))
        assert verdict(claim(steps), data) == expected


def test_one_stand_in_counts_once():
    one = compare('a', 'b', 'voc07_ap50', 'voc0712_ap50', 'coco_fpn_box', need='most')
    assert len(claims.effects_of(one.test, Runs({}, scale='demo'))) == 2
    two = compare('a', 'b', 'voc07_ap50', minus_scores=('voc0712_ap50',))
    assert verdict(two, Runs({}, scale='demo')) == NOT_RUN


def test_published_number_is_not_compared_with_a_small_scale():
    rival = claim(Contrasts(row='a', numbers={'knn': 50.0}))
    assert verdict(rival, runs(TWO)) == SUPPORTED
    assert verdict(rival, runs(TWO, scale='demo')) in (INCONCLUSIVE, NOT_RUN)


def test_level_decides_whether_a_row_collapsed():
    means = {UNTRAINED: 4.0, 'good': 70.0, 'bad': 3.9, 'weak': 30.0}
    data = runs({row: dict(linear=mean) for row, mean in means.items()})
    settings = dict(healthy='good', scores=('linear',))
    level = Level(rows=('bad',), **settings)
    assert verdict(claim(levels=(level,)), data) == SUPPORTED
    learned = Level(rows=('weak', 'good'), relation='learned', **settings)
    assert verdict(claim(levels=(learned,)), data) == SUPPORTED


@pytest.mark.parametrize('seeds, expected', [({0}, INCONCLUSIVE), (set(range(5)), SUPPORTED)])
def test_row_with_some_collapsed_runs_is_not_tested(seeds, expected):
    assert verdict(compare('a', 'b'), runs(TWO, collapsed={'b': seeds})) == expected


def test_interim_analysis_has_its_share_of_the_error_rate():
    gains = dict(enumerate((0.1, 0.7, 1.2, 2.0, 1.0)))
    scores = dict(a=dict(linear=gains), b=dict(linear=dict.fromkeys(gains, 0.0)))
    data = Runs(scores, paired=lambda *_: True)
    assert verdict(compare('a', 'b'), data) == SUPPORTED
    assert verdict(compare('a', 'b'), replace(data, level=LEVEL / 2)) == INCONCLUSIVE


def test_needed_seeds_decide_the_claim():
    scores = {}
    for row, mean in dict(a=70.5, b=70.0).items():
        scores[row] = dict(linear={0: mean - 0.4, 1: mean + 0.4})
    judged = judge([compare('a', 'b')], Runs(scores))[0]
    assert judged['verdict'] == INCONCLUSIVE
    assert 10 < judged['seeds_needed'] < 40


def most_errors(draw, draws: int) -> float:
    """Return the share of wrong verdicts, in the direction with more of them. `draw` returns a claim and runs."""
    wrong = {SUPPORTED: 0, CONTRADICTED: 0}
    for _ in range(draws):
        one, data = draw()
        evidence = claims.evidence_of(one.test, data)
        if evidence.p < LEVEL:
            wrong[SUPPORTED if evidence.support < evidence.against else CONTRADICTED] += 1
    return max(wrong.values()) / draws


def tolerated(draws: int) -> float:
    """Return the nominal 2.5 % plus three standard errors of the simulation."""
    return 0.025 + 3 * (0.025 / draws) ** 0.5


# The true value of each claim lies on the boundary, so any verdict is an error.
SIMULATED = {
    'difference': (compare('a', 'b', 's'), dict(a=0, b=0)),
    'equivalence': (compare('a', 'b', 's', relation='similar', by=2.0), dict(a=2, b=0)),
    'not less': (compare('a', 'b', 's', relation='not_less', by=2.0), dict(a=-2, b=0)),
    'interaction': (compare('a', 'b', 's', minus=(('c', 'd'),)), dict(a=1, b=0, c=1, d=0)),
    'steps': (claim(Contrasts(steps=tuple('abc'), scores=('s',))), dict(a=0, b=9, c=9)),
    'level': (
        claim(levels=(Level(rows=('a',), healthy='b', scores=('s',)),)),
        {'a': 25, 'b': 100, UNTRAINED: 0},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('ratio', [1, 8])
@pytest.mark.parametrize('seeds', [3, 5])
@pytest.mark.parametrize('case', SIMULATED)
def test_error_rates_are_at_most_nominal(case, seeds, ratio):
    """The spread of row b is `ratio` times that of the other rows."""
    one, means = SIMULATED[case]

    def draw() -> tuple[Claim, Runs]:
        scores = {}
        for row, mean in means.items():
            spread = ratio if row == 'b' else 1
            values = mean + spread * RNG.standard_normal(seeds)
            scores[row] = {'s': dict(enumerate(values))}
        return one, Runs(scores)

    assert most_errors(draw, 1000) <= tolerated(1000)


@pytest.mark.slow
@pytest.mark.parametrize('seeds', [3, 5])
def test_error_rate_against_a_published_number_is_nominal(seeds):
    def draw() -> tuple[Claim, Runs]:
        published, *own = RNG.standard_normal(seeds + 1)
        one = claim(Contrasts(row='a', numbers={'s': float(published)}))
        return one, Runs({'a': {'s': dict(enumerate(own))}})

    assert most_errors(draw, 1000) <= tolerated(1000)


@pytest.mark.slow
@pytest.mark.parametrize('x_error', [0.1, 0.3])
def test_equal_lines_are_rarely_ranked(x_error):
    groups = dict(a=tuple('abcde'), b=tuple('fghij'))
    one = claim(regressions=(Regression(x='x', y='y', groups=groups, ranking=('a', 'b')),))

    def draw() -> tuple[Claim, Runs]:
        scores = {}
        for row in 'abcdefghij':
            x = 72 - 1.2 * (row > 'e') + RNG.standard_normal()
            y = 0.8 * x + 0.2 * RNG.standard_normal()
            xs = x + x_error * RNG.standard_normal(3)
            ys = y + 0.3 * RNG.standard_normal(3)
            scores[row] = dict(x=dict(enumerate(xs)), y=dict(enumerate(ys)))
        return one, Runs(scores)

    assert most_errors(draw, 300) <= tolerated(300)


def all_claims() -> list[Claim]:
    return [one for paper in claims.papers().values() for one in paper.claims]


def test_names_of_claims_are_unique_and_links_exist():
    names = [one.name for one in all_claims()]
    assert len(names) == len(set(names)) > 150
    for one in all_claims():
        assert set(one.see) <= set(names)
        assert one.test or one.why


def test_rows_of_claims_are_rows_of_their_studies():
    for one in all_claims():
        if one.test is None:
            continue
        rows = {row.name for row in study_of(one.study).rows} | set(BASELINES.values())
        for part in one.test.parts(lambda score: 1.0):
            assert {row for _, row, _ in part.terms} <= rows, one.name
        for lines in one.test.regressions:
            assert set().union(*lines.groups.values()) <= rows, one.name
        for pair in one.test.configs:
            assert set(pair.rows) <= rows, one.name


def numbers_in(table) -> set[float]:
    if isinstance(table, int | float):
        return {round(table, 4)}
    parts = table.values() if isinstance(table, dict) else table
    if isinstance(parts, str) or parts is None:
        return set()
    return set().union(*map(numbers_in, parts))


def test_published_numbers_of_claims_stand_in_the_tables():
    texts = [path.read_text() for path in TABLES.glob('*.yaml')]
    printed = numbers_in([yaml.safe_load(text) for text in texts])
    for one in all_claims():
        if one.test is None:
            continue
        for row in study_of(one.study).rows:
            assert numbers_in(row.published) <= printed, row.name
        # A number may also stand in the text, which the claim quotes.
        words = ' '.join((one.quote, one.evidence, one.reading))
        quoted = set(map(float, re.findall(r'\d+\.\d+', words)))
        for group in one.test.contrasts:
            assert numbers_in(group.numbers) <= printed | quoted, one.name


def test_page_shows_verdicts_of_a_record(tmp_path):
    rows = []
    for name, mean in {'MoCo v2': 50.0, '+ symmetric loss (MoCo v2+)': 60.0}.items():
        runs = [dict(seed=n, state='done', scores=dict(knn=mean + n / 3)) for n in range(5)]
        rows.append(dict(name=name, runs=runs))
    record = dict(name='ladder', scale=dict(name='demo'), metrics=[dict(key='knn')])
    record |= dict(seeds=[], rows=rows, interim_analyses=1)
    write_json(tmp_path / 'ladder/study.json', record)
    page = write_claims_page(tmp_path, tmp_path / 'claims.html').read_text()
    assert '<b>supported</b> at demo' in page
    assert page.count('class="claim ') == len(all_claims())
    assert 'http-equiv="Content-Security-Policy"' in page


def test_claims_use_the_record_with_the_most_seeds(tmp_path):
    record = dict(name='ladder', scale=dict(name='demo'))
    write_json(tmp_path / 'a/study.json', record | dict(seeds=[0, 1, 2]))
    write_json(tmp_path / 'b/study.json', record | dict(seeds=[3, 4]))
    [found] = read_records(tmp_path)['ladder']
    assert found['seeds'] == [0, 1, 2]
