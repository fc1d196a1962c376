"""A study of two configs and two seeds at toy size: killed in the middle, resumed, and told of on a page."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from mmairl.weights.read import read_backbone

ROOT = Path(__file__).parents[2]
TOY = dict(
    text='a toy',
    rate=100,
    rate_source='assumed',
    images=64,
    merge={
        'model.backbone.depth': 18,
        'model.backbone.stem_channels': 8,
        'model.backbone.base_channels': 8,
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
        'train_dataloader.pin_memory': False,
        'default_hooks.logger.interval': 2,
    },
    replace=dict(
        evaluation=dict(
            train=dict(type='Shapes', split='train', count=64, size=24),
            test=dict(type='Shapes', split='val', count=48, size=24),
        )
    ),
    data=dict(type='Shapes', split='train', count=64, size=24),
    views=dict(RandomResizedCrop=dict(size=16)),
    views_on_device=True,
    widths=dict(features=64, hidden=32, out=16),
    queue=64,
    batch=16,
    epochs=0.015,
    warm_up=1,
    tasks=['knn'],
)
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


@pytest.fixture(scope='module')
def command(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp('study')
    for name, content in (('toy.yaml', TOY), ('study.yaml', STUDY)):
        (folder / name).write_text(yaml.safe_dump(content))
    study = [sys.executable, str(ROOT / 'tools/study.py'), str(folder / 'study.yaml')]
    return [*study, '--scale', str(folder / 'toy.yaml'), '--out', str(folder / 'out'), '--jobs', '1', '--gpus', '0']


@pytest.fixture(scope='module')
def finished(command) -> tuple[Path, dict[Path, int]]:
    """Killed after the first run and with the second under way; the folder, and what was there by then.

    That run is told by the kernel and may still be saving itself: the next start waits for it.
    """
    out = Path(command[command.index('--out') + 1])
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    begun = out / 'runs' / 'lars' / 'seed_0'
    deadline = time.monotonic() + 600
    while not list(begun.glob('*/vis_data/scalars.json')) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in out.glob('runs/*/*/result.json')}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, before


def test_what_was_finished_is_not_done_again_and_the_rest_is(finished):
    out, before = finished
    assert [path.parent.parent.name for path in before] == ['sgd']
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    record = json.loads((out / 'study.json').read_text())
    assert [[run['state'] for run in row['runs']] for row in record['rows']] == [['done'] * 2] * 3


def test_every_number_leads_back_to_its_run(finished):
    out, _ = finished
    record = json.loads((out / 'study.json').read_text())
    for row in record['rows']:
        for run in row['runs']:
            folder = out / run['folder']
            assert run['scores'] == {'knn': next(iter(json.loads((folder / 'knn.json').read_text()).values()))}
            assert (folder / run['checkpoint']).is_file() and len(run['sha256']) == 64
            assert run['images_seen'] == 3 * 64 and run['config_text'].startswith('model:') is not None
    assert [row['changed'] != [] for row in record['rows']] == [False, True, False]
    assert all(check['equal'] for check in record['fairness']['after'] if check['check'] != 'code')
    page = (out / 'page.html').read_text()
    assert 'LARS' in page and 'http' not in page.replace('http://www.w3.org', '')
    assert '72.0' in (out / 'table.md').read_text() and '\\toprule' in (out / 'table.tex').read_text()


def test_a_rescaled_network_has_fresh_statistics(finished):
    """Those of before belong to activations of another length, and its features would be the same for all images."""
    out, _ = finished
    for seed in ('seed_0', 'seed_1'):
        weights, before = (
            read_backbone(str(out / 'runs' / row / seed / name)).weights
            for row, name in (('rescaled', 'rescaled.pth'), ('lars', last_name(out / 'runs/lars' / seed)))
        )
        for key in ('layer1.0.bn1.running_mean', 'layer1.0.bn1.running_var'):
            assert not torch.equal(weights[key], before[key])
        assert torch.isfinite(weights['bn1.running_var']).all()


def last_name(folder: Path) -> str:
    return Path((folder / 'last_checkpoint').read_text().strip()).name


def test_another_config_under_the_same_folder_is_refused(finished, command):
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    scale = Path(command[command.index('--scale') + 1])
    other = scale.with_name('other.yaml')
    other.write_text(yaml.safe_dump({**TOY, 'batch': 8}))
    changed = [str(other) if part == str(scale) else part for part in command]
    done = subprocess.run(changed, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and 'was begun with another config' in done.stderr


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_study_that_is_stopped_saves_its_run_and_goes_on_where_it_was(command, tmp_path, number):
    """A signal to its process group, as a terminal sends Ctrl-C."""
    (tmp_path / 'study.yaml').write_text(yaml.safe_dump({**STUDY, 'seeds': [0], 'rows': STUDY['rows'][:1]}))
    (tmp_path / 'toy.yaml').write_text(yaml.safe_dump({**TOY, 'epochs': 0.05}))
    short = [*command[:2], str(tmp_path / 'study.yaml'), '--scale', str(tmp_path / 'toy.yaml')]
    short += ['--out', str(tmp_path), '--jobs', '1', '--gpus', '0']
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    process = subprocess.Popen(
        short,
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),  # a shell's background job ignores it
    )
    run = tmp_path / 'runs' / 'sgd' / 'seed_0'
    deadline = time.monotonic() + 600
    while not list(run.glob('*/vis_data/scalars.json')) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=600)
    assert (
        process.returncode == 128 + number and said == 'the study was stopped; the same command goes on where it was\n'
    )
    saved = int(Path((run / 'last_checkpoint').read_text()).stem.removeprefix('iter_'))
    assert saved < 40 and not (run / 'trained.json').exists()
    done = subprocess.run(short, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and (run / 'result.json').is_file(), done.stdout + done.stderr
    steps = [[json.loads(line)['step'] for line in path.open()] for path in sorted(run.glob('*/vis_data/scalars.json'))]
    assert len(steps) == 2 and steps[0][-1] <= saved < steps[1][0]


def test_slurm_jobs_requeue_themselves_and_bash_reads_them(finished, command, tmp_path):
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    fresh = [str(tmp_path) if part.endswith('/out') else part for part in command]
    subprocess.run([*fresh, '--slurm', 'gpu'], env=environment, check=True, capture_output=True, timeout=600)
    jobs = sorted((tmp_path / 'jobs').glob('*.sh'))
    assert len(jobs) == 7
    for job in jobs:
        subprocess.run(['bash', '-n', str(job)], check=True)
    assert 'scontrol requeue' in jobs[0].read_text() and '--signal=B:USR1@120' in jobs[0].read_text()
