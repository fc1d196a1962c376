"""The worth of NormRescale from the trials that runs have kept."""

from types import SimpleNamespace

import pytest
import torch
from mmairl.study.worth import RATE, worth_record
from study.small_runs import ROOT

from mmairl.study import worth
from mmairl.study.spec import Row, read_study

RATES = (None, 0.003, 0.3)  # of the trials; the first is the recipe's
OWN = 0.03


@pytest.fixture
def runs(monkeypatch):
    """Runs of three rows from two seeds: a long network that learns at small rates alone, rescaled, and the anchor."""
    study = read_study(ROOT / 'projects/normrescale/studies/worth.yaml')
    scores = {'SGD': (70, 50, 60), 'LARS': (20, 60, 10), 'LARS, rescaled': (55, 20, 40)}
    lengths = {'SGD': 1.0, 'LARS': 3.0, 'LARS, rescaled': 1.0}
    monkeypatch.setattr(worth, 'recipe', lambda cfg, task: cfg)
    monkeypatch.setattr(worth, 'own_value', lambda cfg, key: OWN)
    monkeypatch.setattr(worth, 'last_checkpoint', lambda folder: {name: name for name in lengths}[folder])

    def backbone(name: str) -> SimpleNamespace:
        weights = {'conv1.weight': torch.ones(4, 4, 3, 3), 'bn1.weight': torch.ones(4)}
        long = {key: lengths[name] * value for key, value in weights.items()}
        return SimpleNamespace(weights={**long, 'bn1.running_mean': torch.ones(4)})

    monkeypatch.setattr(worth, 'read_backbone', backbone)
    options = [{RATE: rate} if rate else {} for rate in RATES]

    def run(row, seed: int) -> SimpleNamespace:
        halves = {f'trial_{n}': [score + seed, score - seed] for n, score in enumerate(scores[row.name])}
        result = SimpleNamespace(tuned=dict(finetune=dict(halves=halves)))
        return SimpleNamespace(
            row=row, seed=seed, folder=row.name, result=result, asked=SimpleNamespace(tuned=dict(finetune=options))
        )

    floor = Row('random initialisation', study.rows[0].config, untrained='random')  # is tuned, and has no checkpoint
    trained = [run(row, seed) for row in study.rows if row.name in scores for seed in (0, 1)]
    scores[floor.name] = (10, 10, 10)
    return study, [*trained, run(floor, 0)]


def test_the_worth_is_of_the_rows_that_are_there_and_both_predictions_stand_beside_the_best_rate(runs):
    study, there = runs
    found = worth_record(study, dict.fromkeys(row.name for row in study.rows), there)['finetune']
    (pair,) = found['pairs']
    assert (pair['of'], pair['row'], pair['seeds'], pair['rate']) == ('LARS', 'LARS, rescaled', 2, OWN)
    assert (pair['trials'], pair['target'], pair['curve']) == (2, 55, pytest.approx((20, 40, 60)))
    assert pair['best'] == pytest.approx(0.003)
    assert pair['kernels'] == dict(
        times=pytest.approx(9), rate=pytest.approx(0.27), score=pytest.approx(10.46, abs=0.01)
    )
    assert pair['gains']['rate'] == pytest.approx(OWN / 9) and 55 < pair['gains']['score'] < 60
    assert found['lines']['LARS'] == [(0.003, 60), (0.03, 20), (0.3, 10)]


def test_the_curve_over_rates_is_the_mean_of_the_seeds_where_all_of_them_have_trials(runs):
    study, there = runs
    for run in there:
        if run.seed == 1:
            run.asked.tuned['finetune'] = [{RATE: rate} if rate else {} for rate in (None, 0.003, 0.3 * 10**-0.5)]
    lines = worth_record(study, dict.fromkeys(row.name for row in study.rows), there)['finetune']['lines']
    # Half way from 0.03 to 0.3 seed 0 is between 20 and 10; beyond it there is no trial of seed 1.
    assert lines['LARS'] == [(0.003, 60), (0.03, 20), (pytest.approx(0.3 * 10**-0.5), pytest.approx((15 + 10) / 2))]


def test_a_study_without_trials_that_were_kept_has_no_worth(runs):
    study, there = runs
    for run in there:
        run.result.tuned = {}
    assert worth_record(study, dict.fromkeys(row.name for row in study.rows), there) == {}
