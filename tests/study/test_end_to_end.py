"""A toy study, run from its YAML file to its page, killed once, and continued by the same command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from harness.errors import raises_code
from harness.processes import wait_for
from study.small_studies import ROOT, written

from mmairl.checkpoints.read import read_backbone
from mmairl.io import read_json
from mmairl.study import commands, worker
from mmairl.study.commands import collect_study, prepare_study
from mmairl.study.runs import lay_out_runs, unfinished

ENVIRONMENT = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
STUDY = dict(
    title='A toy',
    paper='Tab. 2',
    seeds=[0, 1],
    rows=[
        dict(
            name='SGD',
            config='mocov2plus_r50_200e.py',
            published=dict(linear=72.0),
        ),
        dict(
            name='LARS',
            config='mocov2plus_lars_r50_200e.py',
            declares=['optim_wrapper'],
            published=dict(linear=72.5),
        ),
        {
            'name': 'rescaled',
            'config': 'mocov2plus_lars_r50_200e.py',
            'from': dict(row='LARS', rescale_to='SGD'),
        },
        {
            'name': 'early',
            'config': 'mocov2plus_r50_200e.py',
            'options': {'default_hooks.checkpoint.max_keep_ckpts': -1},
            'from': dict(row='SGD', at='2/3'),
            'against': 'SGD',
        },
    ],
)


def killed(arguments: list[str], folder: Path) -> None:
    """Start a study, and kill it with all its processes as soon as the run in `folder` has trained a step."""
    command = [sys.executable, 'tools/study.py', *arguments]
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT,
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    wait_for(
        lambda: list(folder.glob('*/vis_data/scalars.json')) or process.poll() is not None,
        300,
    )
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # The worker has a session of its own. It ends as soon as it notices that the study has ended.
    with FileLock(folder / '.lock_0', timeout=60):
        pass


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """Return the folder and the record of a finished study. Its first run was killed once.

    All runs but the first are completed in this process, which saves the time for imports.
    """
    folder = tmp_path_factory.mktemp('study')
    rows = [dict(row) for row in STUDY['rows']]
    rows[0]['options'] = {'default_hooks.checkpoint.max_keep_ckpts': -1}
    arguments = written(folder, {**STUDY, 'rows': rows})
    out = folder / 'out'
    killed(arguments, out / 'runs/sgd/seed_0')
    prepared = prepare_study(arguments[0], arguments[2], out=out)
    for run in unfinished(lay_out_runs(prepared)):
        worker.complete_run(run.folder)
    record, page = collect_study(prepared)
    return folder, arguments, record, page


def test_killed_study_continues_and_all_rows_have_scores(finished):
    _, _, record, _ = finished
    states = {row['name']: [run['state'] for run in row['runs']] for row in record['rows']}
    assert states == {name: ['done'] * 2 for name in ('SGD', 'LARS', 'rescaled', 'early')} | {
        'raw pixels': ['done'],
        'random initialization': ['done'],
    }
    assert all(0 <= run['scores']['knn'] <= 100 for row in record['rows'] for run in row['runs'])


def test_tuned_study_trains_its_trials_first(tmp_path, monkeypatch):
    tune = dict(budget=2, searches=1, keys={'optim_wrapper.optimizer.lr': 8})
    content = {**STUDY, 'rows': STUDY['rows'][:2], 'tune': tune}
    study, _, scale, *_ = written(tmp_path, content, untrained=[])
    trained = []

    def complete(runs, *_):
        for run in runs:
            worker.complete_run(run.folder)
            trained.append(run.name)

    monkeypatch.setattr(commands, 'complete_runs', complete)
    prepared = prepare_study(study, scale, out=tmp_path / 'out')
    commands.run_study(prepared)
    record, _ = collect_study(prepared)
    assert trained[:2] == ['SGD, trial 0, seed 1000', 'SGD, trial 1, seed 1000']
    assert trained[4:] == ['SGD, seed 0', 'LARS, seed 0']
    assert [run['state'] for row in record['rows'] for run in row['runs']] == ['done'] * 2
    for path in tmp_path.rglob('*.pth'):
        path.unlink()
    assert collect_study(prepared)[0] == record


def test_run_is_trained_and_measured_by_two_processes(tmp_path, run_processes):
    content = {**STUDY, 'rows': STUDY['rows'][:1], 'seeds': [0]}
    study, _, scale, *_ = written(tmp_path, content, untrained=[])
    (run,) = lay_out_runs(prepare_study(study, scale, out=tmp_path / 'out'))
    script = tmp_path / 'worker.py'
    script.write_text('from mmairl.study.worker import run_worker\nrun_worker()\n')
    run_processes(2, script, run.folder, '--launcher', 'pytorch')
    assert run.done and run.trained.images_seen == 3 * 64


def test_page_of_a_missing_folder_is_an_error(tmp_path):
    study, _, scale, *_ = written(tmp_path, STUDY)
    with raises_code('no-study'):
        collect_study(prepare_study(study, scale, out=tmp_path / 'missing'))


def test_runs_of_a_seed_are_paired_by_their_recorded_start(finished):
    _, _, record, _ = finished
    sgd, lars = (row['runs'] for row in record['rows'][:2])
    for seed in (0, 1):
        assert sgd[seed]['start'] == lars[seed]['start'] and sgd[seed]['start']['order']
    assert sgd[0]['start']['order'] != sgd[1]['start']['order']
    assert record['effects']['knn'][0]['paired']


def test_record_states_origin_and_direction(finished):
    folder, _, record, page = finished
    (metric,) = record['metrics']
    assert metric == dict(key='knn', label=metric['label'], unit='%', lower_is_better=False)
    run = record['rows'][0]['runs'][0]
    assert run['images_seen'] == 3 * 64 and run['source'] and 'torch' in run['versions']
    assert run['collapsed'] is False and run['rank'] > 1
    assert record['rows'][1]['flops'] == record['rows'][0]['flops'] > 0
    checks = {check['check']: check['equal'] for check in record['fairness']['after']}
    assert checks['images seen'] and checks['source of mmairl']
    assert 'LARS' in page.read_text() and '72.5' in (folder / 'out/table.md').read_text()


def test_rescaled_weights_have_fresh_statistics(finished):
    """With the old batch-norm statistics, the rescaled weights would give all images the same features."""
    runs = finished[0] / 'out/runs'
    before = read_backbone(str(runs / 'lars/seed_0/epoch_3.pth')).weights
    weights = read_backbone(str(runs / 'rescaled/seed_0/derived.pth')).weights
    key = 'layer1.0.bn1.running_mean'
    assert not torch.equal(weights[key], before[key]) and torch.isfinite(weights[key]).all()


def test_early_weights_are_those_of_the_checkpoint(finished):
    runs = finished[0] / 'out/runs'
    source = read_backbone(str(runs / 'sgd/seed_0/epoch_2.pth')).weights
    early = read_backbone(str(runs / 'early/seed_0/derived.pth')).weights
    assert all(torch.equal(value, early[key]) for key, value in source.items())


def test_finished_study_starts_without_reading_checkpoints(finished, monkeypatch):
    folder, arguments, record, _ = finished
    for path in folder.rglob('*.pth'):
        path.chmod(0)
    monkeypatch.setattr(torch, 'load', None)
    prepared = prepare_study(arguments[0], arguments[2], out=folder / 'out')
    assert unfinished(lay_out_runs(prepared)) == []
    again, _ = collect_study(prepared)
    assert json.dumps(again['effects']) == json.dumps(record['effects'])
    assert read_json(folder / 'out/study.json') == json.loads(json.dumps(again))
