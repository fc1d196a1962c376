"""A toy study, run from its YAML file to its page. Studies that are killed or stopped continue with the same command."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from cluster.real_slurm import Slurm, lacking
from filelock import FileLock
from harness.errors import raises_code
from harness.processes import wait_for
from mmengine.config import Config
from PIL import Image
from study.small_runs import run_in, toy_scale

from mmairl.checkpoints.read import read_backbone
from mmairl.config import load_config, write_config
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.evaluation.sources import package_source
from mmairl.io import read_json
from mmairl.study import measure, reuse, worker
from mmairl.study.collect import describe
from mmairl.study.local_pool import execute
from mmairl.study.planner import prepare_runs
from mmairl.study.reuse import create_weights
from mmairl.study.scale import read_scale, resolve
from mmairl.study.schema import Asked
from mmairl.study.spec import Along, Rescaled, Row, Study, read_study

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
TOY = toy_scale(64, epochs=0.015, tasks=['knn'])
TOY['merge']['default_hooks.logger.interval'] = 2
# Training takes long enough to be stopped, and there are no rows of untrained networks.
TRAINED = {**TOY, 'epochs': 0.05, 'floor': []}
STUDY = dict(
    title='A toy',
    paper=dict(where='Tab. 2', table='revisit_airl.table2_optimizer_crossover'),
    seeds=[0, 1],
    rows=[
        dict(name='SGD', config='mocov2plus_r50_200e.py', published='mocov2plus_sgd'),
        dict(name='LARS', config='mocov2plus_lars_r50_200e.py', declares=['optim_wrapper'], factor='LARS'),
        dict(name='rescaled', config='mocov2plus_lars_r50_200e.py', rescaled=dict(of='LARS', anchor='SGD')),
    ],
)


# A row may evaluate a checkpoint from the middle of a run. The instruments in LOOK compare this
# checkpoint with the last one.
LONGER = dict(config='longer/mocov2plus_r50_300e.py', declares=['train_cfg', 'param_scheduler', 'default_hooks'])
ALONG = [
    dict(LONGER, name='end', against='SGD'),
    dict(LONGER, name='half-way', against='end', along=dict(of='end', part='1/2')),
]
LOOK = [dict(instrument=name, rows=['half-way', 'end']) for name in ('norms', 'cka')]


def written(folder: Path, study: dict, scale: dict) -> list[str]:
    """Write a study and its scale to a folder. Return the command that runs the study there."""
    for name, content in (('toy.yaml', scale), ('study.yaml', study)):
        (folder / name).write_text(yaml.safe_dump(content))
    paths = [str(folder / 'study.yaml'), '--scale', str(folder / 'toy.yaml'), '--out', str(folder / 'out')]
    return [sys.executable, 'tools/study.py', *paths, '--jobs', '1', '--gpus', '0']


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=600)


def interrupted(command: list[str], folder: Path, number: int) -> subprocess.Popen:
    """Start a study. As soon as the run in `folder` has trained a step, send a signal to the process group of the study."""

    def accept_sigint() -> None:  # A background job of a shell would ignore SIGINT
        signal.signal(signal.SIGINT, signal.default_int_handler)

    outputs = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(
        command, env=ENVIRONMENT, cwd=ROOT, start_new_session=True, preexec_fn=accept_sigint, **outputs
    )
    wait_for(lambda: list(folder.glob('*/vis_data/scalars.json')) or process.poll() is not None, 600)
    assert process.poll() is None
    os.killpg(process.pid, number)
    return process


@pytest.fixture(scope='module')
def out(tmp_path_factory) -> Path:
    """Return the folder of a finished study.

    Only the first run has its own process. The others run in this process, which saves the time for imports.
    """
    folder = tmp_path_factory.mktemp('study')
    command = written(folder, {**STUDY, 'seeds': [0], 'rows': [*STUDY['rows'], *ALONG], 'look': LOOK}, TOY)
    register()
    study, scale = read_study(folder / 'study.yaml'), read_scale(str(folder / 'toy.yaml'))
    configs = {row.name: resolve(row, scale) for row in study.rows}
    first, *others = prepare_runs(study, configs, study.seeds, scale.tasks, folder / 'out')
    execute([first], 1, 1, lambda run, what: None)
    for other in others:
        worker.complete_run(other.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, 'argv', command[1:])
        runpy.run_path(str(ROOT / 'tools' / 'study.py'), run_name='__main__')
    return folder / 'out'


def test_record_states_the_origin_of_each_number(out):
    record = json.loads((out / 'study.json').read_text())
    *trained, pixels, random = record['rows']
    assert [row['untrained'] for row in record['rows']] == [None] * 5 + ['pixels', 'random']
    assert [len(row['runs']) == 1 and row['runs'][0]['scores'].keys() for row in (pixels, random)] == [{'knn'}] * 2
    for row in trained:
        for one in row['runs']:
            folder = out / one['folder']
            assert one['state'] == 'done' and one['images_seen'] == {'end': 4, 'half-way': 2}.get(row['name'], 3) * 64
            (measured,) = (json.loads(path.read_text()) for path in folder.glob('knn_*.json'))
            assert one['scores'] == {'knn': next(iter(measured['scores'].values()))}
            assert (folder / one['checkpoint']).is_file() and len(one['sha256']) == 64
            assert 'model:' in one['config_text']
    assert len({run['sha256'] for row in trained for run in row['runs']}) == 5
    assert [row['changed'] != [] for row in trained] == [False, True, False, True, False]
    starts = [row['runs'][0]['start'] for row in record['rows'][:3]]
    assert starts[0] == starts[1] == starts[2] and all(starts[0].values())
    assert any('projector' in assumption for assumption in record['assumptions'])
    fairness = record['fairness']
    unequal = [check['check'] for check in fairness['after'] if not check['equal'] and check['check'] != 'code']
    assert unequal == ['images seen', 'optimizer steps']
    assert [check['check'] for check in fairness['hidden'] if not check['equal']] == ['rate']
    # Row 'end' trains for four epochs and has checkpoints after 2 and 4. Its base row trains for
    # three.
    (dearer,) = record['cost']['equal']['knn']
    score = {row['name']: row['runs'][0]['scores']['knn'] for row in record['rows']}
    assert dearer['ratio'] == 4 / 3 and dearer['row'] == 'end'
    assert dearer['scores'] == pytest.approx([(score['half-way'] + score['end']) / 2, score['SGD']])
    spent = record['cost']['rows']
    assert 0 < 2 * spent['half-way']['device_seconds'] == pytest.approx(spent['end']['device_seconds'])
    share = score['SGD'] / 100
    images = [noise['images'] for noise in record['noise']['knn'] if noise['row'] == 'SGD']
    # For one run, the error due to images is the standard error of a proportion.
    assert images == pytest.approx([100 * (share * (1 - share) / 63) ** 0.5])
    assert 'LARS' in (page := (out / 'page.html').read_text()) and 'id="assumptions"' in page
    assert list(out.glob('norms_0/*.html')) and list(out.glob('cka_1/*.html'))
    assert '72.0' in (out / 'table.md').read_text() and '\\toprule' in (out / 'table.tex').read_text()


def test_rescaled_weights_have_fresh_statistics(out):
    """With the old batch-norm statistics, the rescaled weights would give all images the same features."""
    source = out / 'runs/lars/seed_0'
    before = read_backbone(str(source / Path((source / 'last_checkpoint').read_text().strip()).name)).weights
    weights = read_backbone(str(out / 'runs/rescaled/seed_0/derived.pth')).weights
    for key in ('layer1.0.bn1.running_mean', 'layer1.0.bn1.running_var'):
        assert not torch.equal(weights[key], before[key])
    assert torch.isfinite(weights['bn1.running_var']).all()


def test_rescaling_requires_a_finished_run(tmp_path):
    (tmp_path / 'source').mkdir()
    source = str(tmp_path / 'source')
    for request in (Asked(0, rescaled=Rescaled(source, constant=0.1)), Asked(0, along=Along(source, '1/2'))):
        with raises_code('source-not-finished'):
            create_weights(Config(), request, tmp_path)


def test_locked_run_asks_for_another_start(tmp_path, monkeypatch, capsys):
    """A node can be unreachable while it still executes a run. Slurm may then start this run on another node."""
    monkeypatch.setattr(worker, 'PATIENCE', 0)
    monkeypatch.setattr(sys, 'argv', ['worker', str(tmp_path)])
    monkeypatch.setenv('SLURM_PROCID', '1')
    # Another process holds the lock of this rank.
    with FileLock(tmp_path / '.lock_1'), pytest.raises(SystemExit) as exit_:
        worker.run_worker()
    assert exit_.value.code == 75 and f'{tmp_path} is locked by another process' in capsys.readouterr().err


def test_first_process_creates_derived_weights(tmp_path, monkeypatch):
    (tmp_path / 'asked').mkdir()
    (tmp_path / 'asked/config.yaml').write_text('randomness: {seed: 0}')
    (tmp_path / 'asked.json').write_text(json.dumps({'seed': 0, 'along': dict(of='a', part='1/2')}))
    calls = []
    monkeypatch.setattr(worker, 'create_weights', lambda *_: calls.append('derived'))
    monkeypatch.setattr(worker, 'start_processes', lambda launcher: calls.append(f'met by {launcher}'))
    for rank in '01':
        monkeypatch.setenv('RANK', rank)
        with pytest.raises(UserError, match='last_checkpoint'):
            worker.complete_run(tmp_path, 'pytorch')
    assert calls == ['derived', 'met by pytorch', 'met by pytorch']


def test_further_score_is_next_to_its_published_one(tmp_path):
    run = run_in(tmp_path / 'row')
    result = dict(scores=dict(linear=70.0), labels=dict(linear='top-1'), checkpoint='gone.pth')
    result['further'] = {'linear top-5': 90.0, 'linear other': 1.0}
    (run.folder / 'result.json').write_text(json.dumps(result))
    description = describe(run, tmp_path, ['linear', 'linear top-5'])
    assert (
        description['scores'] == {'linear': 70.0, 'linear top-5': 90.0}
        and description['labels']['linear top-5'] == 'top-5'
    )


def test_replaced_checkpoint_or_data_hides_a_score(out, tmp_path):
    """Each change is detected once. The score is then measured again, into a new file."""
    folder, images = shutil.copytree(out / 'runs/sgd/seed_0', tmp_path / 'seed_0'), tmp_path / 'images'
    for number in range(8):
        (kind := images / 'ab'[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), np.uint8)
        Image.fromarray(pixels).save(kind / f'{number}.png')
    view = [dict(type='CenterCrop', size=16)]
    data = dict(type='ImageFolder', root=str(images), views=[view])
    cfg = load_config(str(folder / 'asked/config.yaml'))
    cfg.evaluation = dict(train=data, test=data)
    write_config(cfg, folder / 'asked/config.yaml')
    run = replace(run_in(folder), asked=read_json(folder / 'asked.json', Asked))
    assert not run.done and 'knn: data.t' in describe(run, tmp_path)['error']

    def checkpoint() -> None:
        shutil.copy(out / 'runs/rescaled/seed_0/derived.pth', folder / run.result.checkpoint)

    def image() -> None:
        Image.new('RGB', (24, 24)).save(images / 'a/0.png')
        reuse.KNOWN_DATA.clear()  # This makes the test act as a new process

    worker.complete_run(folder)
    for change in (checkpoint, image):
        assert run.done and describe(run, tmp_path)['state'] == 'done'
        change()
        assert not run.done and describe(run, tmp_path)['state'] == 'replaced'
        before = run.result.identities['knn']
        worker.complete_run(folder)
        assert run.done and run.result.identities['knn'] != before
    assert len(list(folder.glob('knn_*.json'))) == 4


def test_run_records_its_code_without_git(monkeypatch):
    assert ('not a checkout' in measure.git_state()) == (not (ROOT / '.git').exists())
    monkeypatch.setenv('PATH', '/none')
    assert measure.git_state() == f'not a checkout, source {package_source()}'


def test_other_config_in_same_folder_is_an_error(tmp_path):
    study = Study('title', (Row('SGD', 'mocov2plus_r50_200e.py'),))
    for _ in range(2):
        prepare_runs(study, {'SGD': Config(dict(batch=8))}, [0], ['knn'], tmp_path)
    with raises_code('other-config'):
        prepare_runs(study, {'SGD': Config(dict(batch=16))}, [0], ['knn'], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_or_stopped_study_resumes(tmp_path, number):
    """The first run has finished, and the second one is in progress when the signal arrives."""
    command = written(tmp_path, {**STUDY, 'seeds': [0], 'rows': STUDY['rows'][:2]}, TRAINED)
    folder = tmp_path / 'out/runs/lars/seed_0'
    process = interrupted(command, folder, number)
    _, errors = process.communicate(timeout=600)
    if number != signal.SIGKILL:
        assert process.returncode == 75
        assert errors == f'stopped by {signal.Signals(number).name}; run the same command to resume\n'
        saved = int(Path((folder / 'last_checkpoint').read_text()).stem.removeprefix('iter_'))
        assert saved < 40 and not (folder / 'trained.json').exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob('out/runs/*/*/result.json')}
    assert [path.parent.parent.name for path in before] == ['sgd']
    process_again = run(command)
    assert process_again.returncode == 0, process_again.stdout + process_again.stderr
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    record = json.loads((tmp_path / 'out/study.json').read_text())
    assert [[run['state'] for run in row['runs']] for row in record['rows']] == [['done']] * 2
    logs = sorted(folder.glob('*/vis_data/scalars.json'))
    steps = [[json.loads(line)['step'] for line in path.open()] for path in logs]
    assert len(steps) == 2 and steps[0][-1] < steps[1][0]


@pytest.mark.slow
@pytest.mark.skipif(bool(lacking()), reason=lacking())
@pytest.mark.parametrize('nodes', [1, 2])
def test_slurm_jobs_give_the_same_results(tmp_path, nodes):
    """A run is requeued while it trains, and another run waits for it. With two nodes, each node has one process."""
    folders = {name: tmp_path / name for name in ('here', 'slurm')}
    commands = {}
    for name, folder in folders.items():
        folder.mkdir()
        per_run = ['--per-run', str(nodes)]
        commands[name] = [*written(folder, {**STUDY, 'seeds': [0]}, TRAINED), *per_run]
    one_thread = {**ENVIRONMENT, 'SLURM_CPUS_PER_TASK': '1'}
    local = subprocess.run(commands['here'], env=one_thread, cwd=ROOT, capture_output=True, text=True)
    assert local.returncode == 0, local.stdout + local.stderr
    (profile := tmp_path / 'site.yaml').write_text(
        f'partition: {"all" if nodes > 1 else "cpu"}\nper_node: 1\ncpus: 1\ngres: none\n'
        'environment: [export MASTER_ADDR=127.0.0.1]\n'  # These nodes have no host names
    )
    runs = folders['slurm'] / 'out/runs'
    (daemons := tmp_path / 'daemons').mkdir()
    with Slurm(daemons) as slurm:
        variables = {**slurm.environment, 'PYTHONPATH': str(ROOT)}
        output = subprocess.check_output(
            [*commands['slurm'], '--cluster', str(profile)], env=variables, cwd=ROOT, text=True
        )
        numbers = {path.parent.parent.name: path.read_text().strip() for path in runs.glob('*/*/job.txt')}
        slurm.wait_for(lambda: list((runs / 'sgd').rglob('scalars.json')), 300, output)
        slurm('scontrol', 'requeue', numbers['sgd'])
        ends = {name: slurm.ends(number, 500) for name, number in numbers.items()}
        assert ends == {name: ('COMPLETED', int(name == 'sgd')) for name in numbers} and len(ends) == 3, output
    assert len(list((runs / 'sgd').rglob('scalars.json'))) == 2, 'the run was not resumed'
    # This pattern leaves out locks and the folders of runs, whose names end in a digit.
    before = {path: path.stat().st_mtime_ns for path in runs.rglob('*[!0-9]')}
    assert run([*commands['slurm'], '--status']).stdout.endswith('3 done\n')
    unmeasured = run([*commands['slurm'], '--status', '--tasks', 'svm']).stdout
    assert unmeasured.endswith('not measured: svm\n3 not measured\n')
    assert {path: path.stat().st_mtime_ns for path in runs.rglob('*[!0-9]')} == before
    for folder in runs.glob('*/seed_0'):
        same = folders['here'] / folder.relative_to(folders['slurm'])
        by_slurm, by_pool = (json.loads((path / 'result.json').read_text()) for path in (folder, same))
        assert by_slurm['scores'] == by_pool['scores']
        one, other = (read_backbone(str(path / by_pool['checkpoint'])).weights for path in (folder, same))
        assert all(torch.equal(value, other[key]) for key, value in one.items()), folder
