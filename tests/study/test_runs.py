"""Runs of a study: their plan, their fingerprints and their states."""

import json
import sys

import pytest
import torch
from filelock import FileLock
from harness.errors import raises_code
from msgspec.structs import replace
from study.small_studies import LARS, SGD, prepared

from mmairl.io import write_json
from mmairl.study import worker
from mmairl.study.commands import collect_study
from mmairl.study.runs import lay_out_runs, measure_again, plan_runs, unfinished
from mmairl.study.study import Row, Source
from mmairl.study.tasks import protocol_of

HALF = Row('half', SGD.config, source=Source(row='SGD', at='1/2'))
RESCALED = Row('rescaled', LARS.config, source=Source(row='LARS', rescale_to='SGD'))


def finish(run):
    (run.folder / 'trained.json').write_text(
        json.dumps(dict(fingerprint={}, checkpoint='epoch_1.pth'))
    )
    (run.folder / 'knn.json').write_text(json.dumps(dict(scores={'k-NN': 50.0})))


def test_first_seed_of_all_rows_comes_first(tmp_path):
    study = prepared(
        SGD,
        LARS,
        RESCALED,
        Row('floor', SGD.config, untrained='random'),
        out=tmp_path,
        seeds=(3, 5),
    )
    names = [run.name for run in plan_runs(study)]
    assert names == [
        'SGD, seed 3',
        'LARS, seed 3',
        'rescaled, seed 3',
        'floor, seed 3',
    ] + [f'{name}, seed 5' for name in ('SGD', 'LARS', 'rescaled')]
    assert list(tmp_path.iterdir()) == []


def test_run_waits_for_the_weights_that_it_uses(tmp_path):
    sgd, lars, rescaled = runs = lay_out_runs(prepared(SGD, LARS, RESCALED, out=tmp_path))
    assert rescaled.needs == (lars, sgd) and rescaled.state()[0] == 'waiting'
    assert unfinished(runs) == runs
    for run in (sgd, lars):
        finish(run)
    assert rescaled.ready and unfinished(runs) == [rescaled]


@pytest.mark.parametrize(
    'change, same',
    [
        (dict(), True),
        (dict(factor='another text'), True),
        (dict(options={'optim_wrapper.optimizer.lr': 0.5}), False),
        (dict(config='mocov2_r50_200e.py'), False),
    ],
)
def test_fingerprint_covers_what_scores_depend_on(tmp_path, change, same):
    (run,), (other,) = (
        plan_runs(prepared(row, out=tmp_path)) for row in (SGD, replace(SGD, **change))
    )
    assert (run.request.fingerprint == other.request.fingerprint) == same


def test_fingerprint_covers_the_source_of_weights(tmp_path):
    one, other = (
        plan_runs(
            prepared(
                SGD,
                replace(HALF, source=Source(row='SGD', at=at)),
                out=tmp_path,
            )
        )[1]
        for at in ('1/2', '1/4')
    )
    assert one.request.fingerprint != other.request.fingerprint


def test_changed_settings_are_an_error_and_can_be_started_fresh(tmp_path):
    (run,) = lay_out_runs(prepared(SGD, out=tmp_path))
    changed = replace(SGD, options={'optim_wrapper.optimizer.lr': 0.5})
    lay_out_runs(prepared(changed, out=tmp_path))  # The run has not started yet
    finish(run)
    with raises_code('run-changed', match='optim_wrapper.optimizer.lr'):
        lay_out_runs(prepared(SGD, out=tmp_path))
    (again,) = lay_out_runs(prepared(SGD, out=tmp_path), fresh=True)
    assert not again.done and list(run.folder.parent.glob('seed_0_until_*/knn.json'))


def test_method_edited_between_two_seeds_is_noticed(tmp_path, monkeypatch):
    module = tmp_path / 'own_method.py'
    module.write_text('x = 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    row = replace(SGD, options={'custom_imports': dict(imports=['own_method'])})
    first, _ = lay_out_runs(prepared(row, out=tmp_path / 'out', seeds=(0, 1)))
    finish(first)
    module.write_text('x = 2\n')
    with raises_code('run-changed', match='own_method'):
        lay_out_runs(prepared(row, out=tmp_path / 'out', seeds=(0, 1)))
    with raises_code('source-changed', match='own_method'):
        worker.complete_run(tmp_path / 'out/runs/sgd/seed_1')


def test_added_task_measures_finished_runs(tmp_path):
    (run,) = lay_out_runs(prepared(SGD, out=tmp_path))
    finish(run)
    (again,) = lay_out_runs(prepared(SGD, out=tmp_path, tasks=('knn', 'logreg')))
    assert run.done and again.missing == ['logreg']


def test_remeasuring_keeps_the_weights(tmp_path):
    (run,) = lay_out_runs(prepared(SGD, out=tmp_path, tasks=('knn', 'voc07')))
    finish(run)
    scalars = run.folder / 'transfer/voc07/20260101_000000/vis_data/scalars.json'
    for file in (run.folder / 'voc07.json', scalars):
        write_json(file, {})
    measure_again([run])
    assert run.missing == ['knn', 'voc07'] and (run.folder / 'trained.json').is_file()
    assert not scalars.exists()


def test_secondary_score_has_the_key_of_its_published_number(tmp_path):
    tasks = ('linear', 'finetune@cifar10_r50')
    row = replace(SGD, published={f'{task} top-5': 90.0 for task in tasks})
    study = prepared(row, out=tmp_path, tasks=tasks)
    (run,) = lay_out_runs(study)
    finish(run)
    for task in tasks:
        scores = {f'{protocol_of(task)}, {name}': 80.0 for name in ('top-1', 'top-5')}
        (run.folder / f'{task}.json').write_text(json.dumps(dict(scores=scores)))
    record, _ = collect_study(study)
    keys = [key for task in tasks for key in (task, f'{task} top-5')]
    assert [metric['key'] for metric in record['metrics']] == keys


def test_states_follow_from_the_files(tmp_path):
    (run,) = lay_out_runs(prepared(SGD, out=tmp_path))
    assert run.state() == ('missing', '')
    (run.folder / 'log.txt').write_text('begin\nstep 3\n')
    assert run.state() == ('stopped', 'step 3')
    with FileLock(run.folder / '.lock_0'):
        assert run.state() == ('running', 'step 3')
    (run.folder / 'failed.txt').write_text('error: no memory\n')
    assert run.state() == ('failed', 'error: no memory')


def test_two_processes_never_take_the_same_run(tmp_path, monkeypatch, capsys):
    (run,) = lay_out_runs(prepared(SGD, out=tmp_path))
    monkeypatch.setattr(worker, 'PATIENCE', 0)
    monkeypatch.setattr(sys, 'argv', ['worker', str(run.folder)])
    # as in the fourth of several studies that one srun starts
    monkeypatch.setenv('SLURM_PROCID', '3')
    with FileLock(run.folder / '.lock_0'), pytest.raises(SystemExit) as exit_:
        worker.run_worker()
    assert exit_.value.code == 75 and 'in use' in capsys.readouterr().err


def test_derived_run_requires_finished_weights(tmp_path):
    *_, half = lay_out_runs(prepared(SGD, HALF, out=tmp_path))
    with raises_code('unreadable-file'):
        worker.complete_run(half.folder)


def test_run_without_transfer_tasks_needs_no_weights(tmp_path):
    (run,) = lay_out_runs(prepared(SGD, out=tmp_path))
    worker.transfer_run(run.folder, 1)
    assert not (run.folder / 'transfer').exists()


def test_collapse_does_not_depend_on_a_few_long_features():
    features = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
    features[0] *= 1000
    assert not worker.health_of(features).collapsed


@pytest.mark.parametrize('rank', [0, 1])
def test_constant_features_and_features_along_one_direction_have_collapsed(rank):
    generator = torch.Generator().manual_seed(0)
    lengths, direction = (
        torch.randn(256, 1, generator=generator),
        torch.randn(16, generator=generator),
    )
    features = lengths**rank * direction + 1e-3 * torch.randn(256, 16, generator=generator)
    assert worker.health_of(features).collapsed
