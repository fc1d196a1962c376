"""Tuning: equal budgets and points for all rows, trials on held-out images, and the choice of the best trial."""

import json
from dataclasses import replace as replaced

import pytest
from harness.errors import raises_code
from mmengine.config import Config
from msgspec.structs import replace
from study.small_studies import LARS, SGD, prepared

from mmairl.data.splits import image_names
from mmairl.registry import DATASETS
from mmairl.study import commands
from mmairl.study import tune as trials
from mmairl.study.commands import collect_study, show_plan, show_status
from mmairl.study.runs import lay_out_runs, plan_runs
from mmairl.study.study import Tune
from mmairl.study.tune import (
    FIRST_SEED,
    best_trial,
    trial_counts,
    trial_options,
)

RATE = 'optim_wrapper.optimizer.lr'
TUNE = Tune(budget=3, keys={RATE: 8}, searches=2)


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, 'run_flops', lambda cfg: 1.0)
    return prepared(SGD, LARS, out=tmp_path, seeds=(0, 1), tune=TUNE)


def finish(run, score):
    lay_out_file = run.folder / 'trained.json'
    lay_out_file.parent.mkdir(parents=True, exist_ok=True)
    lay_out_file.write_text(json.dumps(dict(fingerprint={}, checkpoint='x.pth')))
    (run.folder / 'knn.json').write_text(json.dumps(dict(scores={'k-NN': score})))


def test_rows_have_equal_budgets_in_flops():
    assert trial_counts(6, dict(cheap=1.0, dear=2.5)) == dict(cheap=6, dear=2)
    assert trial_counts(6, dict(known=1.0, unknown=None)) == dict(known=6, unknown=6)


def test_all_rows_follow_the_same_points():
    one, two = (Config(dict(optim_wrapper=dict(optimizer=dict(lr=lr)))) for lr in (0.1, 3.0))
    options, others = (trial_options(TUNE, cfg, 0, 5) for cfg in (one, two))
    assert options[0] == {} == others[0]
    factors = [
        [trial[RATE] / lr for trial in tried[1:]] for tried, lr in ((options, 0.1), (others, 3.0))
    ]
    assert factors[0] == pytest.approx(factors[1])
    assert all(1 / 8 <= factor <= 8 for factor in factors[0])
    assert trial_options(TUNE, one, 1, 5) != options


def test_momentum_is_scaled_by_its_complement():
    tune = Tune(budget=3, keys={RATE: 8}, momenta={'momentum': 4})
    cfg = Config(dict(optim_wrapper=dict(optimizer=dict(lr=0.1)), momentum=0.99))
    values = [trial['momentum'] for trial in trial_options(tune, cfg, 0, 9)[1:]]
    assert all(0.96 <= value <= 0.9975 for value in values) and max(values) - min(values) > 0.02


def test_best_trial_has_the_best_score(study):
    first, second, third = runs = lay_out_runs(trials.trial_study(study, 0))[:3]
    finish(second, 30.0)
    assert best_trial(runs, 'knn') is second
    finish(third, 30.0)
    assert best_trial(runs, 'knn') is second
    with raises_code('no-finished-trial'):
        best_trial([first], 'knn')


def test_trials_never_see_test_images(study):
    search = trials.trial_study(study, 1)
    assert [row.name for row in search.study.rows][:3] == [f'SGD, trial {n}' for n in range(3)]
    own = study.configs['SGD'].evaluation
    images = set(image_names(DATASETS.build(own.train)))
    for cfg in search.configs.values():
        parts = [DATASETS.build(cfg.evaluation[name]) for name in ('train', 'test')]
        train, test = map(set, map(image_names, parts))
        assert train and test and not train & test
        assert train | test == images
    assert {run.seed for run in plan_runs(search)} == {FIRST_SEED + 1}


def test_each_search_chooses_its_own_options(study):
    for search, best in ((0, 1), (1, 2)):
        for run in plan_runs(trials.trial_study(study, search)):
            finish(run, 90.0 if run.row.name.endswith(f'trial {best}') else 10.0)
    chosen = trials.with_chosen_options(study)
    points = [trial_options(TUNE, study.configs['SGD'], search, 3) for search in (0, 1)]
    assert chosen.tuned['SGD'] == {0: points[0][1], 1: points[1][2]}
    first, *_ = plan_runs(chosen)
    assert first.cfg.optim_wrapper.optimizer.lr == points[0][1][RATE] and first.seed == 0


def test_open_search_is_left_out_and_failed_trial_loses(study):
    runs = plan_runs(trials.trial_study(study, 0))
    for run in runs[:-1]:
        finish(run, 50.0)
    assert trials.with_chosen_options(study).study.seeds == ()
    runs[-1].folder.mkdir(parents=True)
    (runs[-1].folder / 'failed.txt').write_text('error: diverged')
    assert trials.with_chosen_options(study).study.seeds == (0,)


def test_changed_trials_can_be_started_fresh(study, monkeypatch):
    (first, *_) = lay_out_runs(trials.trial_study(study, 0))
    finish(first, 50.0)
    for cfg in study.configs.values():
        cfg.optim_wrapper.optimizer.lr *= 2
    started = []
    monkeypatch.setattr(commands, 'complete_runs', lambda runs, *_: started.extend(runs))
    with raises_code('run-changed', match='optim_wrapper.optimizer.lr'):
        commands.run_study(study)
    commands.run_study(study, fresh=True)
    assert len(started) == 12 and not any(run.done for run in started)


def test_page_counts_the_runs_of_open_searches_as_missing(study):
    study = replaced(study, command=('mmairl', 'study', 'tuned.yaml'))
    for done in range(2):
        record, page = collect_study(study)
        assert record['seeds'] == (0, 1) and record['tuned']['budget'] == 3
        text = page.read_text()
        assert f'{done} of 4 runs' in text and 'tuned.yaml --seeds 0 1</code>' in text
        for run in plan_runs(trials.trial_study(study, 0)):
            finish(run, 50.0)
        finish(plan_runs(trials.with_chosen_options(study))[0], 60.0)


def test_plan_counts_the_trials(study, capsys):
    show_plan(study)
    assert '12 trials tune the rows first, 6 per search' in capsys.readouterr().out


def test_status_lists_the_trials(study, capsys):
    finish(plan_runs(trials.trial_study(study, 0))[0], 30.0)
    show_status(study)
    states = capsys.readouterr().out.splitlines()
    assert states[0] == 'SGD, trial 0, seed 1000: done' and states[-1].startswith('LARS, seed 1:')
    assert len(states) == 2 * 6 + 2 * 2


@pytest.mark.parametrize('criterion', ['knnn', 'voc07', 'logreg@cifar10_r50'])
def test_criterion_that_measures_no_held_out_images_is_an_error(tmp_path, criterion):
    with raises_code('unknown-protocol'):
        prepared(SGD, out=tmp_path, tune=replace(TUNE, criterion=criterion))


def test_tuned_keys_need_no_declaration(tmp_path):
    row = replace(SGD, name='b', against='SGD', options={RATE: 0.7})
    with raises_code('undeclared-difference'):
        prepared(SGD, row, out=tmp_path)
    for tune in (TUNE, Tune(budget=3, keys={'model.temperature': 2}, momenta={RATE: 4})):
        assert lay_out_runs(prepared(SGD, row, out=tmp_path, tune=tune))
