"""The claims page: every claim with its published effect, and the verdicts and intervals of finished studies."""

from mmairl.io import read_json, write_json
from mmairl.report.page import fill
from mmairl.study.claims import StudyRuns, judge, shared_claims
from mmairl.study.collect import printed_numbers
from mmairl.study.pages.claims_page import (
    claim_entries,
    claimed_effects,
    claims_summary,
    effect_name,
    effects,
    write_claims_page,
)

SEEDS = 8


def finished_ladder(folder, gain):
    """Write the record of the study `ladder` at a scale named 'half'.

    Each row scores `gain` points more than the previous one.
    """
    study = next(entry.study for entry in claim_entries(folder) if entry.study.name == 'ladder')
    rows = []
    for place, row in enumerate(study.rows):
        scores = [30 + gain * place + 0.1 * (seed * 7919 % 5) for seed in range(SEEDS)]
        runs = [dict(seed=seed, state='done', scores=dict(knn=score)) for seed, score in enumerate(scores)]
        rows.append(dict(name=row.name, runs=runs))
    record = dict(name='ladder', scale=dict(name='half', text=''), metrics=[dict(key='knn')], rows=rows)
    record['claims'] = judge(study.claims, StudyRuns(record, 'half'), printed_numbers(study))
    write_json(folder / 'ladder_half' / 'study.json', record)


def test_page_has_every_claim_and_every_reason(tmp_path):
    page = write_claims_page(tmp_path, tmp_path / 'claims.html').read_text()
    entries = list(claim_entries(tmp_path))
    assert all(entry.study.name in page and not entry.measured for entry in entries)
    assert f'{len(entries)} claims, none tested yet.' in page
    assert all(paper.title in page for paper in shared_claims().papers.values())
    assert page.count('<li>“') == len(shared_claims().untested)


def test_finished_study_has_verdicts_next_to_effects(tmp_path):
    finished_ladder(tmp_path, gain=4.0)
    entries = {entry.claim.name: entry for entry in claim_entries(tmp_path)}
    entry = entries['configurations_improve_linear']
    assert entry.measured['half']['verdict'] == 'supported'
    assert effects(entry.measured['half'], 'measured') == '+16.0' and effects(entry.published, 'published') == '+4.8'
    assert entries['each_configuration_improves_linear'].measured['half']['verdict'] == 'supported'
    assert 'supported' in claims_summary(list(entries.values()))
    page = write_claims_page(tmp_path, tmp_path / 'claims.html').read_text()
    assert 'knn instead of linear' in page


def test_tested_claim_has_interval_seeds_and_margin(tmp_path):
    finished_ladder(tmp_path, gain=4.0)
    entries = {entry.claim.name: entry for entry in claim_entries(tmp_path)}
    [part] = entries['configurations_improve_linear'].measured['half']['parts']
    assert part['low'] < 16.0 < part['high'] and part['seeds'] == SEEDS
    assert claimed_effects([part]) == 'above 0'
    assert claimed_effects([dict(part, margin=3.5), dict(part, least=-2.0)]) == 'within ±3.5, above −2'
    page = write_claims_page(tmp_path, tmp_path / 'claims.html').read_text()
    assert f'+16.0 (+{part["low"]:.1f} to +{part["high"]:.1f})' in page
    assert effect_name(part) == '“+ symmetric loss (MoCo v2+)” − “MoCo v2”, linear'


def test_records_without_intervals_are_readable(tmp_path):
    finished_ladder(tmp_path, gain=4.0)
    path = tmp_path / 'ladder_half' / 'study.json'
    record = read_json(path, dict)
    for claim in record['claims']:
        for part in claim['parts']:
            for key in ('low', 'high', 'seeds'):
                del part[key]
    write_json(path, record)
    page = write_claims_page(tmp_path, tmp_path / 'claims.html').read_text()
    assert '+16.0' in page and '+16.0 (' not in page


def test_effect_names_state_the_weights():
    weights = dict(a={'linear': 1.0, 'voc07_ap': -1.0}, b={'linear': -2.0})
    assert effect_name(dict(weights=weights)) == '“a” (linear) − “a” (voc07_ap) − 2 × “b” (linear)'
    assert effect_name(dict(weights=dict(a=dict(linear=1.0)))) == '“a” compared with the published score, linear'


def test_study_page_names_stand_ins(tmp_path):
    finished_ladder(tmp_path, gain=4.0)
    record = read_json(tmp_path / 'ladder_half' / 'study.json', dict)
    assert 'knn instead of linear' in fill('part_claims.html', study=record)


def test_study_page_says_how_many_seeds_decide(tmp_path):
    finished_ladder(tmp_path, gain=0.1)
    record = read_json(tmp_path / 'ladder_half' / 'study.json', dict)
    needed = [claim['seeds_needed'] for claim in record['claims'] if claim.get('seeds_needed')]
    assert f'about {needed[0]} seeds per row would decide it' in fill('part_claims.html', study=record)


def test_opposite_result_contradicts_the_claim(tmp_path):
    finished_ladder(tmp_path, gain=-4.0)
    entries = {entry.claim.name: entry for entry in claim_entries(tmp_path)}
    assert entries['configurations_improve_linear'].measured['half']['verdict'] == 'contradicted'


def test_unreadable_records_are_left_out(tmp_path):
    (tmp_path / 'broken').mkdir()
    (tmp_path / 'broken' / 'study.json').write_text('[1, 2')
    write_json(tmp_path / 'other' / 'study.json', dict(claims=[dict(name=3)]))
    assert not any(entry.measured for entry in claim_entries(tmp_path))
