"""Test that the benefit of NormRescale is computed from a study's stored tuning trials, and shown on the study's page."""

import re
from types import SimpleNamespace

import pytest
import torch
from harness.outline import charts
from study.pages.planted import ladder
from study.pages.test_study_page import text_of
from study.small_runs import ROOT

from mmairl.study.pages.study_page import write_study_page
from mmairl.study.spec import Row, read_study
from projects.normrescale import benefit
from projects.normrescale.benefit import RATE, benefit_record, benefit_section

RATES = (None, 0.003, 0.3)  # the learning rates of the trials; None means the recipe's rate
OWN = 0.03  # the recipe's learning rate


@pytest.fixture
def runs(monkeypatch):
    """Return a study and finished runs of its rows 'SGD' (the anchor), 'LARS' and 'LARS, rescaled', with two seeds each.

    The weights of 'LARS' are three times as large as those of the other rows, and its scores are high only at the lowest rate.
    """
    study = read_study(ROOT / 'projects/normrescale/studies/worth.yaml')
    scores = {'SGD': (70, 50, 60), 'LARS': (20, 60, 10), 'LARS, rescaled': (55, 20, 40)}
    lengths = {'SGD': 1.0, 'LARS': 3.0, 'LARS, rescaled': 1.0}
    monkeypatch.setattr(benefit, 'recipe', lambda cfg, task: cfg)
    monkeypatch.setattr(benefit, 'own_value', lambda cfg, key: OWN)
    monkeypatch.setattr(
        benefit, 'last_checkpoint', lambda folder: {name: name for name in lengths}[folder]
    )

    def backbone(name: str) -> SimpleNamespace:
        weights = {'conv1.weight': torch.ones(4, 4, 3, 3), 'bn1.weight': torch.ones(4)}
        long = {key: lengths[name] * value for key, value in weights.items()}
        return SimpleNamespace(weights={**long, 'bn1.running_mean': torch.ones(4)})

    monkeypatch.setattr(benefit, 'read_backbone', backbone)
    options = [{RATE: rate} if rate else {} for rate in RATES]

    def run(row, seed: int) -> SimpleNamespace:
        halves = {
            f'trial_{n}': [score + seed, score - seed] for n, score in enumerate(scores[row.name])
        }
        result = SimpleNamespace(tuned=dict(finetune=dict(halves=halves)))
        return SimpleNamespace(
            row=row,
            seed=seed,
            part='compared',
            done=True,
            folder=row.name,
            result=result,
            asked=SimpleNamespace(tuned=dict(finetune=options)),
        )

    # An untrained row has tuned trials but no checkpoint, so `benefit_record` must skip it.
    floor = Row('random initialisation', study.rows[0].config, untrained='random')
    trained = [run(row, seed) for row in study.rows if row.name in scores for seed in (0, 1)]
    scores[floor.name] = (10, 10, 10)
    return study, [*trained, run(floor, 0)]


def test_pairs_have_benefit_best_rate_and_predictions(runs):
    study, finished_runs = runs
    record = benefit_record(study, dict.fromkeys(row.name for row in study.rows), finished_runs)[
        'finetune'
    ]
    (pair,) = record['pairs']
    assert (pair['of'], pair['row'], pair['seeds'], pair['rate']) == (
        'LARS',
        'LARS, rescaled',
        2,
        OWN,
    )
    assert (pair['trials'], pair['target'], pair['curve']) == (2, 55, pytest.approx((20, 40, 60)))
    assert pair['best'] == pytest.approx(0.003)
    assert pair['kernels'] == dict(
        times=pytest.approx(9), rate=pytest.approx(0.27), score=pytest.approx(10.46, abs=0.01)
    )
    assert pair['gains']['rate'] == pytest.approx(OWN / 9) and 55 < pair['gains']['score'] < 60
    assert record['lines']['LARS'] == [(0.003, 60), (0.03, 20), (0.3, 10)]


def test_curves_are_means_where_all_seeds_have_trials(runs):
    study, finished_runs = runs
    for run in finished_runs:
        if run.seed == 1:
            run.asked.tuned['finetune'] = [
                {RATE: rate} if rate else {} for rate in (None, 0.003, 0.3 * 10**-0.5)
            ]
    lines = benefit_record(study, dict.fromkeys(row.name for row in study.rows), finished_runs)[
        'finetune'
    ]['lines']
    # The curve ends at the highest rate that both seeds have tried. This rate is halfway from 0.03 to 0.3 on a log axis, where
    # seed 0 has the mean of its scores 20 and 10, and seed 1 has 10.
    assert lines['LARS'] == [
        (0.003, 60),
        (0.03, 20),
        (pytest.approx(0.3 * 10**-0.5), pytest.approx((15 + 10) / 2)),
    ]


def test_without_kept_trials_there_is_no_benefit(runs):
    study, finished_runs = runs
    for run in finished_runs:
        run.result.tuned = {}
    assert benefit_record(study, dict.fromkeys(row.name for row in study.rows), finished_runs) == {}


def page_record() -> dict:
    """Return a study.json that compares one network with two rescaled copies, by a constant and by an anchor.

    Only the pair with the anchor has predictions of the best rate.
    """
    constant = dict(
        row='constant', of='LARS', seeds=2, trials=2, low=1, high=2, most=4, curve=[20.0, 22.0], target=21.0,
        rate=0.03, best=0.01, bests=[0.005, 0.02], norms=dict(kernels=6.0),
    )  # fmt: skip
    anchored = dict(
        constant, row='rescaled', trials=None, low=0, high=None, target=30.0,
        anchor_norms=dict(kernels=0.3), kernels=dict(times=400.0, rate=12.0, score=None),
    )  # fmt: skip
    lines = dict(SGD=[[0.01, 20.0], [0.1, 22.0]], LARS=[[0.01, 5]])
    worth = dict(finetune=dict(pairs=[constant, anchored], lines=lines))
    return dict(ladder(), analyses=['projects.normrescale.benefit'], worth=worth)


def test_section_shows_the_benefit_of_each_pair():
    text = text_of(benefit_section(page_record()))
    assert text.startswith('Benefit of NormRescale')
    assert (
        'rescaled more than 4 0 to more than 4 LARS 20.0 22.0 30.0 2' in text
        and 'constant 2 1 to 2 LARS' in text
    )
    assert 'At demo scale' in text[: text.index('Fine-tuning rates')]
    # A network with two rescaled copies has one line, which shows the predictions.
    assert (
        text.count('LARS 6 (0.3) — 0.03 0.01 (0.005 to 0.02) 12 outside — —')
        == text.count('0.005 to 0.02')
        == 1
    )


def test_section_charts_all_rows_in_one_picture():
    (picture,) = charts(benefit_section(page_record()))
    series = {line['name']: (line['x']['rate'], line['y']) for line in picture['series']}
    assert series == dict(SGD=([0.01, 0.1], [20, 22]), LARS=([0.01], [5])) and picture['log'] == 'x'


def test_section_without_pairs_has_only_the_rates():
    record = page_record()
    record['worth']['finetune']['pairs'] = []
    text = text_of(benefit_section(record))
    assert text.startswith('Fine-tuning rates') and 'Benefit' not in text


def test_page_of_a_study_begins_with_the_benefit(tmp_path):
    page = write_study_page(page_record(), tmp_path / 'page.html').read_text()
    first, *_ = re.findall('<h2>(.*?)</h2>', page)
    assert first == 'Benefit of NormRescale'
