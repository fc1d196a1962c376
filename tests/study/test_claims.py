"""Test claims about the rows of a study: each form can get each of the four verdicts, and reading an invalid claim is an
error.
"""

import json

import msgspec
import numpy as np
import pytest
import scipy
import yaml
from harness.errors import raises_code

from mmairl.config import home
from mmairl.study.claims import Claim, Every, StudyRuns, check_claims, judge, shared_claims, word_hashes
from mmairl.study.collect import printed_numbers
from mmairl.study.spec import read_study

QUOTE = 'the symmetrization of contrastive loss brings the most obvious improvement'
SCORES = ['linear', 'voc07_ap50']
DIFFERENCE = '{form: difference, better: a, than: b, scores: [linear]}'
EQUIVALENCE = '{form: equivalence, of: [a, b], scores: [linear]}'
B_OVER_C = '{form: difference, better: b, than: c, scores: [linear]}'
A_OVER_C = '{form: difference, better: a, than: c, scores: [linear]}'
RIVAL = '{{form: rival, row: a, numbers: {{linear: 55.0}}, of: Tab. 1, relation: {}}}'
TREND = '{{form: trend, over: [{}], shape: {}, scores: [linear]}}'
GAIN = '{{form: interaction, gain: [a, b], than: [c, d], relation: {}, scores: [linear]}}'
OTHER_SCORE = '{{form: interaction, gain: [a, b], scores: [linear], than_scores: [{}]}}'
LARGEST = '{form: largest, pair: [d, c], among: [[b, a], [c, b]], scores: [linear]}'
# Each form has a claim, means of the rows a, b, c and d that support the claim, and means that
# contradict it.
FORMS = {
    'difference': (DIFFERENCE, [60, 50], [50, 60]),
    'equivalence': (EQUIVALENCE, [60, 60.1], [60, 65]),
    'not_worse': ('{form: not_worse, row: a, than: b, scores: [linear]}', [60, 60.1], [60, 65]),
    'larger_gain': (GAIN.format('larger'), [60, 50, 61, 60], [60, 59, 61, 50]),
    'similar_gains': (GAIN.format('similar'), [60, 50, 70, 60], [60, 59, 61, 50]),
    'not_larger_gain': (GAIN.format('not_larger'), [60, 59, 61, 50], [60, 50, 61, 60]),
    'largest': (LARGEST, [50, 51, 52, 59], [50, 58, 59, 60]),
    'rises': (TREND.format('a, b, c', 'rises'), [1, 2, 3], [3, 1, 2]),
    'falls': (TREND.format('a, b, c', 'falls'), [3, 2, 1], [1, 3, 2]),
    'plateau': (TREND.format('a, b, c, d', 'plateau, after: b'), [50, 60, 60.1, 60], [50, 60, 65, 70]),
    'no_gain': (TREND.format('a, b, c', 'no_gain'), [60, 58, 60], [60, 64, 65]),
    'property': ('{form: property, larger: a, than: b, scores: [linear]}', [9, 1], [1, 9]),
    'better_rival': (RIVAL.format('better'), [60], [50]),
    'similar_rival': (RIVAL.format('similar'), [55.1], [60]),
    'not_worse_rival': (RIVAL.format('not_worse'), [54.9], [50]),
    'worse_rival': (RIVAL.format('worse'), [50], [60]),
    'all': (f'{{form: all, of: [{DIFFERENCE}, {B_OVER_C}]}}', [60, 50, 40], [60, 40, 50]),
    'most': (f'{{form: most, of: [{DIFFERENCE}, {B_OVER_C}, {A_OVER_C}]}}', [60, 40, 50], [40, 45, 60]),
}


def planted(test, **fields):
    fields = dict(name='one', quote=QUOTE, paper='revisit_airl', where=['Sec. 4.1'], published='holds') | fields
    return msgspec.convert(dict(fields, test=yaml.safe_load(test)), Claim)


def record(means, seeds=8, noise=0.05, score='linear'):
    """Return a study's record with these row means, as study.json has it. The row `null` stands for an untrained network."""
    random = np.random.default_rng(0)
    rows = []
    for name, mean in means.items():
        scores = np.broadcast_to(mean, seeds) + noise * random.normal(size=seeds)
        runs = [dict(seed=seed, state='done', scores={score: float(value)}) for seed, value in enumerate(scores)]
        rows.append(dict(name=name, runs=runs, untrained='random' if name == 'null' else None))
    return dict(metrics=[dict(key=score)], rows=rows)


def judged(test, runs):
    return judge([planted(test)], runs, lambda row, score: None)[0]


def verdict_on(test, means, scale='in1k', **options):
    """Return the verdict on a test, and the reason for it."""
    entry = judged(test, StudyRuns(record(means, **options), scale, lambda one, other: ['model.queue']))
    return entry['verdict'], entry['reason']


@pytest.mark.parametrize('form', FORMS)
def test_each_form_gives_each_verdict(form):
    test, support, opposite = FORMS[form]
    support, opposite = (dict(zip('abcd', means)) for means in (support, opposite))
    assert verdict_on(test, support)[0] == 'supported'
    assert verdict_on(test, opposite)[0] == 'contradicted'
    assert verdict_on(test, support, noise=300.0, seeds=3)[0] == 'inconclusive'
    assert verdict_on(test, support, seeds=1) == ('inconclusive', 'one seed')
    assert verdict_on(test, dict(other=1.0))[0] == 'not run'


def test_collapse_claim_compares_numbers_of_runs():
    test = '{form: collapse, of: [a], scores: [linear]}'
    collapsed = dict(a=10, b=60, c=60, null=10.0)
    assert verdict_on(test, collapsed)[0] == 'supported'
    assert verdict_on(test, dict(collapsed, a=60))[0] == 'contradicted'
    assert verdict_on(test, collapsed, seeds=3)[0] == 'inconclusive'
    assert verdict_on(test, dict(other=1.0))[0] == 'not run'


def two_scores(points):
    rows = []
    for name, (x, y) in points.items():
        runs = [dict(seed=0, state='done', scores={'linear': x, 'voc07_ap50': y})]
        rows.append(dict(name=name, runs=runs))
    return StudyRuns(dict(metrics=[dict(key=score) for score in SCORES], rows=rows), 'in1k')


@pytest.mark.parametrize(
    ('slope', 'gap', 'spread', 'expected'),
    [
        (1, 5, 0.1, 'supported'),
        (-1, 5, 0.1, 'contradicted'),
        (1, -5, 0.1, 'contradicted'),
        (1, 5, 30.0, 'inconclusive'),
    ],
)
def test_regression_claim_gets_each_verdict(slope, gap, spread, expected):
    groups = {name: [f'{name} {i}' for i in range(6)] for name in ('one', 'two')}
    noise = np.random.default_rng(0).normal(size=12) * spread
    points = {}
    for place, name in enumerate(groups['one'] + groups['two']):
        x = float(place % 6)
        points[name] = (x, float(slope * x + gap * (place < 6) + noise[place]))
    test = dict(form='regression', x='linear', y='voc07_ap50', groups=groups, ranking=['one', 'two'])
    entry = judged(yaml.dump(test), two_scores(points))
    assert entry['verdict'] == expected
    names = ['slope of voc07_ap50 over linear', 'one − two, voc07_ap50 at equal linear']
    assert [part['name'] for part in entry['parts']] == names
    assert all(part['low'] < part['measured'] < part['high'] for part in entry['parts'])


def test_regression_without_one_group_is_not_run():
    groups = dict(one=['one'], missing=['missing'], two=['two', 'three'])
    test = dict(form='regression', x='linear', y='voc07_ap50', groups=groups, ranking=['one', 'missing'])
    runs = two_scores(dict(one=(1.0, 1.0), two=(2.0, 2.1), three=(3.0, 2.9)))
    assert judged(yaml.dump(test), runs)['verdict'] == 'not run'


def test_regression_on_one_stand_in_is_inconclusive():
    test = dict(form='regression', x='linear', y='linear@cifar100_r50', groups=dict(rows=['a', 'b', 'c', 'd']))
    verdict = verdict_on(yaml.dump(test), dict(a=10, b=20, c=30, d=41), scale='demo', score='knn')
    assert verdict == ('inconclusive', 'one stand-in for both scores')


def test_configs_claim_is_decided_without_runs():
    test = '{form: configs, of: [a, b], only_in: [model]}'
    assert verdict_on(test, {})[0] == 'supported'
    assert verdict_on(test.replace('[model]', '[data]'), {})[0] == 'contradicted'
    assert judged(test, StudyRuns(record({}), 'in1k'))['verdict'] == 'not run', (
        'the claim is tested although the configs are unknown'
    )


def test_nonsignificant_difference_is_not_similarity():
    assert verdict_on(EQUIVALENCE, dict(a=60, b=60), noise=5.0, seeds=3)[0] == 'inconclusive'


def test_collapsed_runs_make_claims_inconclusive():
    means = dict(a=[60] * 7 + [5], b=50, null=10.0)
    assert verdict_on(DIFFERENCE, means) == ('inconclusive', 'collapsed runs')


def test_small_scale_names_its_stand_in():
    test = DIFFERENCE.replace('[linear]', '[linear, voc07_ap50]')
    entry = judged(test, StudyRuns(record(dict(a=60, b=50), score='knn'), 'demo'))
    assert entry['verdict'] == 'supported' and entry['stand_ins'] == {'linear': 'knn'}
    test = OTHER_SCORE.format('linear').replace('[linear]', '[knn]', 1)
    entry = judged(test, StudyRuns(record(dict(a=60, b=50), score='knn'), 'demo'))
    assert entry['stand_ins'] == {'linear': 'knn'}


def test_seeds_needed_decide_when_the_estimate_stays():
    entry = judged(DIFFERENCE, StudyRuns(record(dict(a=60, b=58), noise=3.0, seeds=3), 'in1k'))
    assert entry['verdict'] == 'inconclusive' and 3 < entry['seeds_needed'] < 200


def test_record_has_published_and_measured_effects():
    runs = StudyRuns(record(dict(a=60, b=50)), 'in1k')
    part = judge([planted(DIFFERENCE)], runs, lambda row, score: dict(a=72.0, b=70.0)[row])[0]['parts'][0]
    assert part['published'] == pytest.approx(2.0) and part['measured'] == pytest.approx(10, abs=0.2)


@pytest.mark.parametrize('seeds', [1, 4])
def test_record_has_interval_of_the_tested_contrast(seeds):
    study = record(dict(a=60, b=50), seeds=seeds)
    test = '{form: rival, row: a, numbers: {linear: 58}, of: MoCo}'
    (part,) = judged(test, StudyRuns(study, 'in1k'))['parts']
    scores = [run['scores']['linear'] - 58 for run in study['rows'][0]['runs']]
    assert part['seeds'] == seeds and part['measured'] == pytest.approx(np.mean(scores))
    if seeds == 1:
        assert part['low'] is None and part['high'] is None
    else:
        ends = scipy.stats.t.interval(0.95, seeds - 1, np.mean(scores), scipy.stats.sem(scores))
        assert (part['low'], part['high']) == pytest.approx(ends)


def test_small_scale_does_not_test_published_numbers():
    verdict = verdict_on(
        '{form: rival, row: a, numbers: {linear: 58}, of: MoCo}', dict(a=10, b=50), scale='demo', score='knn'
    )
    assert verdict[0] == 'not run'


def test_record_has_no_interval_if_runs_collapsed():
    study = record(dict(a=60, b=50))
    study['rows'][0]['runs'][0]['scores']['linear'] = 1.0
    (part,) = judged(DIFFERENCE, StudyRuns(study, 'in1k'))['parts']
    assert part['low'] is None and part['seeds'] is None


@pytest.mark.parametrize(
    ('fields', 'code'),
    [
        (dict(test=DIFFERENCE.replace('than: b', 'than: nobody')), 'claim-row'),
        (dict(test=DIFFERENCE.replace('linear', 'unknown')), 'claim-score'),
        (dict(test=OTHER_SCORE.format('unknown')), 'claim-score'),
        (dict(test=f'{{form: all, of: [{DIFFERENCE}, {OTHER_SCORE.format("unknown")}]}}'), 'claim-score'),
        (dict(where=['Sec. 99']), 'claim-place'),
        (dict(paper='another'), 'claim-paper'),
        (dict(quote='these words are in none of the papers at all'), 'claim-quote'),
        (dict(quote='too short'), 'claim-quote-length'),
    ],
)
def test_bad_claims_are_errors(fields, code):
    with raises_code(code):
        check_claims([planted(**{'test': DIFFERENCE, **fields})], ['a', 'b', 'c', 'd'], SCORES)


@pytest.mark.parametrize(
    'test',
    [
        '{form: unknown, better: a, than: b, scores: [linear]}',
        '{form: equivalence, of: [a, b], scores: [linear], margin: 0}',
        '{form: trend, over: [a, b, c], shape: rises, after: c, scores: [linear]}',
        '{form: difference, better: a, scores: [linear]}',
        TREND.format('a, b, c', 'rises, after: c'),
        '{form: regression, x: linear, y: voc07_ap50, groups: {A: [a], B: [b]}, ranking: [A, C]}',
    ],
)
def test_malformed_tests_are_rejected(test):
    with pytest.raises(msgspec.ValidationError):
        planted(test)


def test_shared_margins_have_reasons_and_cover_scales():
    margins = shared_claims().scales
    assert all(scale.reason and scale.margins for scale in margins.values())
    scales = (home() / 'configs/studies/_scales').glob('*.yaml')
    assert {path.stem for path in scales if 'type: Shapes' in path.read_text()} <= {*margins}


def test_hashes_do_not_depend_on_case_or_punctuation():
    assert np.array_equal(word_hashes('One two, three-four: FIVE six'), word_hashes('one two three four five six'))


def every_study():
    """Return all studies with claims. `read_study` raises if a claim is invalid."""
    paths = [*home().glob('configs/studies/[a-z]*.yaml'), *home().glob('projects/*/studies/*.yaml')]
    return [study for study in map(read_study, sorted(paths)) if study.claims]


def test_claims_have_unique_names_and_cover_papers():
    claims = [claim for study in every_study() for claim in study.claims]
    names = [claim.name for claim in claims]
    assert len(set(names)) == len(names)
    assert {name for claim in claims for name in claim.see} <= {*names}
    assert {claim.paper for claim in claims} == {*shared_claims().papers}


def test_untested_claims_quote_their_paper_and_say_why():
    for claim in shared_claims().untested:
        test = '{form: configs, of: [a, b], only_in: [model]}'
        check_claims([planted(test, quote=claim.quote, paper=claim.paper, where=[claim.where])], ['a', 'b'], [])
        assert claim.why


def holds_in_print(test, printed):
    """Return whether the printed numbers alone fulfill a test, or None if a number is missing."""
    runs = StudyRuns(dict(rows=[], metrics=[]), 'in1k')
    if isinstance(test, Every):
        held = [holds_in_print(one, printed) for one in test.of]
    else:
        parts = test.parts(runs.margin)
        effects = [part.effect(printed) for part in parts]
        held = [None if effect is None else holds_within(part, effect) for part, effect in zip(parts, effects)]
    if not held or None in held:
        return None
    return sum(held) > len(held) / 2 if test.need == 'most' else all(held)


def holds_within(part, effect):
    if part.margin:
        return abs(effect) <= part.margin + 1e-9
    return effect > part.least - 1e-9


@pytest.mark.parametrize('study', every_study(), ids=lambda study: study.name)
def test_stated_support_agrees_with_printed_numbers(study):
    """If the paper prints all numbers of a claim, the claim's field `published` must agree with these numbers."""
    for claim in study.claims:
        held = holds_in_print(claim.test, printed_numbers(study))
        if held is None:
            continue
        expected = ('holds', 'thin', 'partly') if held else ('contradicts', 'partly', 'thin')
        assert claim.published in expected, f'{claim.name}: `published` disagrees with the printed numbers'


def test_collapse_concerns_accuracies_only():
    study = record(dict(a=0.1, b=-0.4), score='norms')
    study['metrics'] = [dict(key='norms', unit='')]
    test = '{form: property, larger: a, than: b, scores: [norms]}'
    assert judged(test, StudyRuns(study, 'in1k'))['verdict'] == 'supported'


def test_record_of_unknown_margins_is_plain_json():
    entry = judged(EQUIVALENCE, StudyRuns(record(dict(a=1, b=1), score='other'), 'cifar'))
    assert json.loads(json.dumps(entry, allow_nan=False))['verdict'] == 'not run'
