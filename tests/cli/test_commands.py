"""The main commands, one after the other, on one small run."""

import contextlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from mmairl.checkpoints.read import read_backbone
from mmairl.cli.main import main
from mmairl.cli.train import accumulate, result_lines, start_or_resume
from mmairl.config import load_config

DEMO = 'mmairl::demo/mocov2plus_shapes.py'
EVALUATION = ['evaluation.train.count=96', 'evaluation.test.count=48']
SMALL = [
    'train_dataloader.dataset.count=128',
    'total_batch_size=32',
    'model.queue.length=64',
    'train_cfg.max_epochs=2',
    'default_hooks.checkpoint.interval=1',
    'default_hooks.health.interval=2',
    *EVALUATION,
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    """Return a folder with a trained run, `run`, and a folder with images of two classes, `images`."""
    folder = tmp_path_factory.mktemp('commands')
    random = np.random.default_rng(0)
    for part in ('train', 'test'):
        for number in range(32):
            path = folder / 'images' / part / 'ab'[number % 2] / f'{number:02}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            level = 60 + 120 * (number % 2)
            Image.fromarray(random.integers(level - 50, level + 50, (48, 48, 3), np.uint8)).save(
                path
            )
    return folder


@pytest.fixture(scope='module')
def trained(folder) -> list[str]:
    """Train, and return the lines that the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        main(
            [
                'train',
                DEMO,
                '--work-dir',
                str(folder / 'run'),
                '--seed',
                '0',
                '--cfg-options',
                *SMALL,
            ]
        )
    return output.getvalue().splitlines()


@pytest.fixture
def run(folder, trained, monkeypatch, capsys):
    """Return a function that runs a command line in the folder and returns what it prints."""
    monkeypatch.chdir(folder)

    def run(line: str) -> str:
        main(shlex.split(line))
        return capsys.readouterr().out

    return run


def in_shell(command: str, folder: Path) -> None:
    environment = os.environ | dict(PATH=f'{Path(sys.executable).parent}:{os.environ["PATH"]}')
    subprocess.run(command, shell=True, check=True, cwd=folder, env=environment)


def test_next_commands_of_training_run_as_printed(trained, folder):
    commands = [line.removeprefix('next: ') for line in trained if line.startswith('next: ')]
    assert [command.split()[1] for command in commands] == ['evaluate', 'report']
    for command in commands:
        in_shell(command, folder)
    assert (folder / 'run/epoch_2_student_knn_mocov2plus_shapes.json').is_file()
    assert (folder / 'run/health.html').is_file()


def test_next_command_without_labels_scores_a_folder(trained, folder, monkeypatch):
    monkeypatch.chdir(folder)
    cfg = load_config(DEMO, dict(evaluation=None))
    hub = SimpleNamespace(log_scalars={})
    [_, line] = result_lines(SimpleNamespace(work_dir='run', cfg=cfg, message_hub=hub))
    (folder / 'labels').symlink_to(folder / 'images')
    in_shell(line.removeprefix('next: '), folder)
    assert (folder / 'run/epoch_2_student_knn_labels.json').is_file()


def test_labeled_folder_is_evaluated_without_a_config(run):
    scores = run('evaluate knn run/epoch_2.pth --data images --k 3 --cache none')
    assert '100' in scores, 'classes of different brightness are not distinguished'
    assert json.loads(Path('run/epoch_2_student_knn_images.json').read_text())['scores']


def test_protocol_without_labels_needs_no_random_network(run):
    assert 'log10' in run('evaluate norms run/epoch_2.pth --data images --cache none')


def test_settings_replace_options_of_the_command(run):
    line = 'evaluate knn run/epoch_2.pth --data images --cache none --settings ks=[3]'
    assert 'k = 3' in run(line)


def test_suggested_config_has_no_log_lines(folder):
    state = torch.load(folder / 'run/epoch_2.pth', weights_only=True)['state_dict']
    network = {key: value for key, value in state.items() if key.startswith('backbone.')}
    torch.save({f'my.{key}': value for key, value in network.items()}, folder / 'odd.pth')
    words = ['mmairl', 'train', '--suggest', 'images', '--weights', 'odd.pth']
    in_shell(f'{shlex.join(words)} >suggested.py', folder)
    assert load_config(folder / 'suggested.py').model.backbone.init_cfg


def test_next_command_finds_modules_next_to_the_config(trained, folder, monkeypatch):
    monkeypatch.chdir(folder)
    cfg = load_config(DEMO, dict(custom_imports=dict(imports=['own'])))
    hub = SimpleNamespace(log_scalars={})
    [_, line] = result_lines(SimpleNamespace(work_dir='run', cfg=cfg, message_hub=hub))
    place = f'PYTHONPATH={Path(cfg.filename).parent}'
    assert shlex.split(line)[:5] == ['next:', 'env', place, 'mmairl', 'evaluate']


def test_embed_writes_paths_labels_and_vectors(run):
    run('embed run/epoch_2.pth images/test features.npz')
    stored = np.load('features.npz')
    assert stored['vector'].shape == (32, 128) and set(stored['label']) == {'a', 'b'}


def test_embed_writes_parquet(run):
    datasets = pytest.importorskip('datasets')
    run('embed run/epoch_2.pth images/test features.parquet')
    table = datasets.Dataset.from_parquet('features.parquet')
    assert table.column_names == ['path', 'label', 'vector'] and len(table) == 32


def test_converted_backbone_has_the_same_weights(run):
    run('convert run/epoch_2.pth out.pth --to torchvision')
    ours = read_backbone('run/epoch_2.pth').weights
    theirs = torch.load('out.pth', weights_only=True)
    assert all(torch.equal(theirs[key], value) for key, value in ours.items())


def test_normrescale_gives_the_norms_of_the_anchor(run):
    run('normrescale run/epoch_2.pth scaled.pth --anchor run/epoch_1.pth')
    run('normrescale run/epoch_2.pth tenth.pth --constant 0.1')
    before, anchor, scaled, tenth = (
        read_backbone(path).weights['conv1.weight'].norm()
        for path in ('run/epoch_2.pth', 'run/epoch_1.pth', 'scaled.pth', 'tenth.pth')
    )
    torch.testing.assert_close(scaled, anchor)
    torch.testing.assert_close(tenth, before / 10)


@pytest.mark.parametrize(
    'line',
    [
        'analyze norms run/epoch_1.pth run/epoch_2.pth',
        f'analyze cka run/epoch_2.pth --config {DEMO} --images 40 --cfg-options evaluation.test.count=40',
        'report compare run run2',
        f'report views {DEMO} --cfg-options train_dataloader.dataset.count=64',
        'report map run/epoch_2.pth --images images/test',
        'report run',
        'pack images/train --statistics',
        'pack images/train packed.tar',
        'study mmairl::studies/ladder.yaml --scale demo --dry-run',
        'train --suggest images',
    ],
)
def test_command_runs(run, line):
    if not Path('run2').exists():
        shutil.copytree('run', 'run2')
    assert run(line)


def test_per_gpu_keeps_the_total_batch():
    cfg = load_config('mmairl::mocov2plus_r50_200e.py')
    accumulate(cfg, 64, 4)
    assert cfg.optim_wrapper.accumulative_counts == 4


@pytest.mark.parametrize(
    'resume, restarts, expected',
    [
        (None, '0', (False, None)),
        ('auto', '0', ('auto', None)),
        ('a.pth', '0', (True, 'a.pth')),
        (None, '1', ('auto', None)),
        ('a.pth', '1', (True, 'a.pth')),
    ],
)
def test_restarted_command_resumes(monkeypatch, resume, restarts, expected):
    monkeypatch.setenv('SLURM_RESTART_COUNT', restarts)
    cfg = load_config(DEMO)
    cfg.work_dir = 'no_run_here'
    start_or_resume(cfg, resume)
    assert (cfg.resume, cfg.load_from) == expected
