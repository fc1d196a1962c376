"""Claims: each form gives each of the four verdicts on planted results, and bad claims are errors at planning time."""

import json

import msgspec
import numpy as np
import pytest
import scipy
import yaml

from mmairl.config import home
from mmairl.errors import UserError
from mmairl.study.claims import Claim, Every, StudyRuns, check_claims, judge, shared_claims, word_hashes
from mmairl.study.collect import printed_numbers
from mmairl.study.spec import read_study

QUOTE = 'the symmetrization of contrastive loss brings the most obvious improvement'
SCORES = ['linear', 'voc07_ap50']
ROWS = ['a', 'b', 'c', 'd']


def claim(test, **fields):
    fields = dict(name='one', quote=QUOTE, paper='revisit_airl', where=['Sec. 4.1'], published='holds') | fields
    return msgspec.convert(dict(fields, test=yaml.safe_load(test)), Claim)


def record(means, seeds=8, noise=0.05, score='linear', nulls=()):
    """Return a study's record with these row means, as study.json has it."""
    random = np.random.default_rng(0)
    rows = []
    for name, mean in means.items():
        scores = np.broadcast_to(mean, seeds) + noise * random.normal(size=seeds)
        runs = [dict(seed=seed, state='done', scores={score: float(value)}) for seed, value in enumerate(scores)]
        rows.append(dict(name=name, runs=runs, untrained='random' if name in nulls else None))
    return dict(metrics=[dict(key=score)], rows=rows)


def verdict_on(test, means, scale='in1k', **options):
    runs = StudyRuns(record(means, **options), scale, lambda one, other: ['model.queue'])
    return judge([claim(test)], runs, lambda row, score: None)[0]


FORMS = {
    'difference': ('{form: difference, better: a, than: b, scores: [linear]}', dict(a=60, b=50), dict(a=50, b=60)),
    'equivalence': ('{form: equivalence, of: [a, b], scores: [linear]}', dict(a=60, b=60.1), dict(a=60, b=65)),
    'not_worse': ('{form: not_worse, row: a, than: b, scores: [linear]}', dict(a=60, b=60.1), dict(a=60, b=65)),
    'interaction': (
        '{form: interaction, gain: [a, b], than: [c, d], scores: [linear]}',
        dict(a=60, b=50, c=61, d=60),
        dict(a=60, b=59, c=61, d=50),
    ),
    'similar_gains': (
        '{form: interaction, gain: [a, b], than: [c, d], relation: similar, scores: [linear]}',
        dict(a=60, b=50, c=70, d=60),
        dict(a=60, b=59, c=61, d=50),
    ),
    'not_larger_gain': (
        '{form: interaction, gain: [a, b], than: [c, d], relation: not_larger, scores: [linear]}',
        dict(a=60, b=59, c=61, d=50),
        dict(a=60, b=50, c=61, d=60),
    ),
    'largest': (
        '{form: largest, pair: [d, c], among: [[b, a], [c, b]], scores: [linear]}',
        dict(a=50, b=51, c=52, d=59),
        dict(a=50, b=58, c=59, d=60),
    ),
    'rises': (
        '{form: trend, over: [a, b, c], shape: rises, scores: [linear]}',
        dict(a=1, b=2, c=3),
        dict(a=3, b=1, c=2),
    ),
    'falls': (
        '{form: trend, over: [a, b, c], shape: falls, scores: [linear]}',
        dict(a=3, b=2, c=1),
        dict(a=1, b=3, c=2),
    ),
    'plateau': (
        '{form: trend, over: [a, b, c, d], shape: plateau, after: b, scores: [linear]}',
        dict(a=50, b=60, c=60.1, d=60),
        dict(a=50, b=60, c=65, d=70),
    ),
    'no_gain': (
        '{form: trend, over: [a, b, c], shape: no_gain, scores: [linear]}',
        dict(a=60, b=58, c=60),
        dict(a=60, b=64, c=65),
    ),
    'property': ('{form: property, larger: a, than: b, scores: [linear]}', dict(a=9, b=1), dict(a=1, b=9)),
    'rival': ('{form: rival, row: a, numbers: {linear: 55.0}, of: Tab. 1}', dict(a=60), dict(a=50)),
    'similar_rival': (
        '{form: rival, row: a, numbers: {linear: 55.0}, of: Tab. 1, relation: similar}',
        dict(a=55.1),
        dict(a=60),
    ),
    'not_worse_rival': (
        '{form: rival, row: a, numbers: {linear: 55.0}, of: Tab. 1, relation: not_worse}',
        dict(a=54.9),
        dict(a=50),
    ),
    'worse_rival': (
        '{form: rival, row: a, numbers: {linear: 55.0}, of: Tab. 1, relation: worse}',
        dict(a=50),
        dict(a=60),
    ),
    'collapse': ('{form: collapse, of: [a], scores: [linear]}', dict(a=10, b=60, c=60), dict(a=60, b=60, c=61)),
    'all': (
        '{form: all, of: [{form: difference, better: a, than: b, scores: [linear]}, '
        '{form: difference, better: b, than: c, scores: [linear]}]}',
        dict(a=60, b=50, c=40),
        dict(a=60, b=40, c=50),
    ),
    'most': (
        '{form: most, of: [{form: difference, better: a, than: b, scores: [linear]}, '
        '{form: difference, better: b, than: c, scores: [linear]}, {form: difference, better: a, than: c, scores: [linear]}]}',
        dict(a=60, b=40, c=50),
        dict(a=40, b=45, c=60),
    ),
}


@pytest.mark.parametrize('form', FORMS)
def test_planted_support_gives_supported(form):
    test, means, _ = FORMS[form]
    nulls = () if form != 'collapse' else ('null',)
    means = dict(means, null=10.0) if nulls else means
    assert verdict_on(test, means, nulls=nulls)['verdict'] == 'supported'


@pytest.mark.parametrize('form', FORMS)
def test_planted_opposite_gives_contradicted(form):
    test, _, means = FORMS[form]
    nulls = () if form != 'collapse' else ('null',)
    means = dict(means, null=10.0) if nulls else means
    assert verdict_on(test, means, nulls=nulls)['verdict'] == 'contradicted'


@pytest.mark.parametrize('form', [form for form in FORMS if form != 'collapse'])
def test_planted_noise_gives_inconclusive(form):
    test, means, _ = FORMS[form]
    found = verdict_on(test, means, noise=300.0, seeds=3)
    assert found['verdict'] == 'inconclusive'


def test_collapse_of_three_runs_is_inconclusive():
    test, means, _ = FORMS['collapse']
    found = verdict_on(test, dict(means, null=10.0), nulls=('null',), seeds=3)
    assert found['verdict'] == 'inconclusive'


@pytest.mark.parametrize('form', FORMS)
def test_missing_rows_give_not_run(form):
    assert verdict_on(FORMS[form][0], dict(other=1.0))['verdict'] == 'not run'


@pytest.mark.parametrize('form', [form for form in FORMS if form != 'collapse'])
def test_one_seed_is_inconclusive_and_says_so(form):
    test, means, _ = FORMS[form]
    found = verdict_on(test, means, seeds=1)
    assert (found['verdict'], found['reason']) == ('inconclusive', 'one seed')


def two_scores(points):
    rows = []
    for name, (x, y) in points.items():
        runs = [dict(seed=0, state='done', scores={'linear': x, 'voc07_ap50': y})]
        rows.append(dict(name=name, runs=runs))
    return dict(metrics=[dict(key=score) for score in SCORES], rows=rows)


@pytest.mark.parametrize(
    ('slope', 'gap', 'spread', 'expected'),
    [
        (1, 5, 0.1, 'supported'),
        (-1, 5, 0.1, 'contradicted'),
        (1, -5, 0.1, 'contradicted'),
        (1, 5, 30.0, 'inconclusive'),
    ],
)
def test_regression_verdicts(slope, gap, spread, expected):
    groups = {'one': [f'one {i}' for i in range(6)], 'two': [f'two {i}' for i in range(6)]}
    noise = np.random.default_rng(0).normal(size=12) * spread
    names = groups['one'] + groups['two']
    points = {
        name: (float(x), float(slope * x + gap * (place < 6) + noise[place]))
        for place, (name, x) in enumerate(zip(names, [*range(6), *range(6)]))
    }
    test = dict(form='regression', x='linear', y='voc07_ap50', groups=groups, ranking=['one', 'two'])
    runs = StudyRuns(two_scores(points), 'in1k')
    found = judge([claim(yaml.dump(test))], runs, lambda row, score: None)[0]
    assert found['verdict'] == expected
    for part, name in zip(
        found['parts'], ['slope of voc07_ap50 over linear', 'one − two, voc07_ap50 at equal linear'], strict=True
    ):
        assert part['name'] == name and part['low'] < part['measured'] < part['high']


def test_regression_without_one_group_is_not_run():
    groups = dict(one=['one'], missing=['missing'], two=['two', 'three'])
    test = dict(form='regression', x='linear', y='voc07_ap50', groups=groups, ranking=['one', 'missing'])
    runs = StudyRuns(two_scores(dict(one=(1.0, 1.0), two=(2.0, 2.1), three=(3.0, 2.9))), 'in1k')
    assert judge([claim(yaml.dump(test))], runs, lambda row, score: None)[0]['verdict'] == 'not run'


def test_regression_on_one_stand_in_is_inconclusive():
    test = dict(form='regression', x='linear', y='linear@cifar100_r50', groups=dict(rows=['a', 'b', 'c', 'd']))
    found = verdict_on(yaml.dump(test), dict(a=10, b=20, c=30, d=41), scale='demo', score='knn')
    assert (found['verdict'], found['reason']) == ('inconclusive', 'one stand-in for both scores')


def test_configs_claim_is_decided_without_runs():
    test = '{form: configs, of: [a, b], only_in: [model]}'
    assert verdict_on(test, {})['verdict'] == 'supported'
    assert verdict_on(test.replace('[model]', '[data]'), {})['verdict'] == 'contradicted'
    unknown = StudyRuns(record({}), 'in1k')
    assert judge([claim(test)], unknown, lambda row, score: None)[0]['verdict'] == 'not run'


def test_nonsignificant_difference_is_not_similarity():
    found = verdict_on('{form: equivalence, of: [a, b], scores: [linear]}', dict(a=60, b=60), noise=5.0, seeds=3)
    assert found['verdict'] == 'inconclusive'


def test_collapsed_runs_make_claims_inconclusive():
    means = dict(a=[60] * 7 + [5], b=50, null=10.0)
    found = verdict_on('{form: difference, better: a, than: b, scores: [linear]}', means, nulls=('null',))
    assert (found['verdict'], found['reason']) == ('inconclusive', 'collapsed runs')


def test_small_scale_names_its_stand_in():
    test = '{form: difference, better: a, than: b, scores: [linear, voc07_ap50]}'
    found = verdict_on(test, dict(a=60, b=50), scale='demo', score='knn')
    assert found['verdict'] == 'supported' and found['stand_ins'] == {'linear': 'knn'}


def test_seeds_needed_decide_when_the_estimate_stays():
    test = '{form: difference, better: a, than: b, scores: [linear]}'
    found = verdict_on(test, dict(a=60, b=58), noise=3.0, seeds=3)
    needed = found['seeds_needed']
    assert found['verdict'] == 'inconclusive' and 3 < needed < 200


def test_record_has_published_and_measured_effects():
    runs = StudyRuns(record(dict(a=60, b=50)), 'in1k')
    one = claim('{form: difference, better: a, than: b, scores: [linear]}')
    part = judge([one], runs, lambda row, score: dict(a=72.0, b=70.0)[row])[0]['parts'][0]
    assert part['published'] == pytest.approx(2.0) and part['measured'] == pytest.approx(10, abs=0.2)


@pytest.mark.parametrize('seeds', [1, 4])
def test_record_has_the_interval_of_the_tested_contrast(seeds):
    study = record(dict(a=60, b=50), seeds=seeds)
    one = claim('{form: rival, row: a, numbers: {linear: 58}, of: MoCo}')
    part = judge([one], StudyRuns(study, 'in1k'), lambda row, score: None)[0]['parts'][0]
    scores = [run['scores']['linear'] - 58 for run in study['rows'][0]['runs']]
    assert part['seeds'] == seeds and part['measured'] == pytest.approx(np.mean(scores))
    if seeds == 1:
        assert part['low'] is None and part['high'] is None
    else:
        ends = scipy.stats.t.interval(0.95, seeds - 1, np.mean(scores), scipy.stats.sem(scores))
        assert (part['low'], part['high']) == pytest.approx(ends)


def test_record_has_no_interval_if_runs_collapsed():
    study = record(dict(a=60, b=50))
    study['rows'][0]['runs'][0]['scores']['linear'] = 1.0
    one = claim('{form: difference, better: a, than: b, scores: [linear]}')
    part = judge([one], StudyRuns(study, 'in1k'), lambda row, score: None)[0]['parts'][0]
    assert part['low'] is None and part['seeds'] is None


@pytest.mark.parametrize(
    ('fields', 'code'),
    [
        (dict(test='{form: difference, better: a, than: nobody, scores: [linear]}'), 'claim-row'),
        (dict(test='{form: difference, better: a, than: b, scores: [unknown]}'), 'claim-score'),
        (dict(where=['Sec. 99']), 'claim-place'),
        (dict(paper='another'), 'claim-paper'),
        (dict(quote='these words are in none of the papers at all'), 'claim-quote'),
        (dict(quote='too short'), 'claim-quote-length'),
    ],
)
def test_bad_claims_are_errors(fields, code):
    test = fields.pop('test', '{form: difference, better: a, than: b, scores: [linear]}')
    with pytest.raises(UserError) as error:
        check_claims([claim(test, **fields)], ROWS, SCORES)
    assert error.value.code == code


@pytest.mark.parametrize(
    'test',
    [
        '{form: unknown, better: a, than: b, scores: [linear]}',
        '{form: equivalence, of: [a, b], scores: [linear], margin: 0}',
        '{form: difference, better: a, scores: [linear]}',
    ],
)
def test_malformed_tests_are_rejected(test):
    with pytest.raises(msgspec.ValidationError):
        claim(test)


def test_every_margin_has_a_reason():
    assert all(scale.reason and scale.margins for scale in shared_claims().scales.values())


def test_scales_of_drawn_images_have_margins():
    scales = (home() / 'configs/studies/_scales').glob('*.yaml')
    drawn = {path.stem for path in scales if 'type: Shapes' in path.read_text()}
    assert drawn <= {*shared_claims().scales}


def test_hashes_do_not_depend_on_case_or_punctuation():
    assert np.array_equal(word_hashes('One two, three-four: FIVE six'), word_hashes('one two three four five six'))


def every_study():
    """Return the studies with claims. Reading one checks its quotations, places, rows and scores."""
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
        quoted = dict(name=claim.quote, quote=claim.quote, paper=claim.paper, where=[claim.where], published='none')
        test = msgspec.convert(dict(form='configs', of=['a', 'b'], only_in=['model']), Claim.__annotations__['test'])
        check_claims([Claim(**quoted, test=test)], ROWS, [])
        assert claim.why


def holds_in_print(test, printed):
    """Return whether the printed numbers alone fulfill a test; None if one is missing."""
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
    """`published` follows from the printed numbers if the paper has all of them."""
    for claim in study.claims:
        held = holds_in_print(claim.test, printed_numbers(study))
        if held is None:
            continue
        expected = ('holds', 'thin', 'partly') if held else ('contradicts', 'partly', 'thin')
        assert claim.published in expected, claim.name


def test_collapse_concerns_accuracies_only():
    means = dict(a=0.1, b=-0.4)
    found = record(means, score='norms')
    found['metrics'] = [dict(key='norms', unit='')]
    one = claim('{form: property, larger: a, than: b, scores: [norms]}')
    assert judge([one], StudyRuns(found, 'in1k'), lambda row, score: None)[0]['verdict'] == 'supported'


def test_record_of_unknown_margins_is_plain_json():
    one = claim('{form: equivalence, of: [a, b], scores: [linear]}')
    judged = judge([one], StudyRuns(record(dict(a=1, b=1), score='other'), 'cifar'), lambda row, score: None)
    assert json.loads(json.dumps(judged, allow_nan=False))[0]['verdict'] == 'not run'
