"""README's commands, one line after the other, on a small data set, and README's Python."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

import mmairl
from mmairl.cli.main import main, parser_for
from mmairl.config import load_config

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / 'README.md').read_text()
BLOCKS = re.findall(r'^```(\w+)\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL)
LINES = [line for kind, block in BLOCKS if kind == 'bash' for line in block.splitlines()]
DEMO = 'configs/demo/mocov2plus_shapes.py'
FEW = ' --cfg-options evaluation.train.count=48 evaluation.test.count=24'
TINY = (
    FEW
    + ' train_dataloader.dataset.count=64 total_batch_size=32 model.queue.length=32 train_cfg.max_epochs=1 '
    'default_hooks.checkpoint.interval=1'
)
# What stands for the names in README.
NAMES = {
    'configs/mocov2plus_r50_200e.py 8': f'{DEMO} 2',
    'configs/mocov2plus_r50_200e.py': DEMO,
    'PARTITION JOB CONFIG WORK_DIR': f'PARTITION JOB {DEMO} work_dirs/slurm',
    'CKPT hub/': 'resnet18.pth hub/',  # timm has no network as narrow as the sample's
    'CONFIG': DEMO,
    'LARS_CKPT OUT --anchor SGD_CKPT': 'CKPT out.pth --anchor CKPT',
    'CKPT': shlex.quote(str(mmairl.sample())),
}
# Options that shorten a command, by the words with which it begins. The empty text means that the command is short.
SHORT = {
    'tools/train.py': TINY,
    'tools/dist_train.sh': ' --work-dir work_dirs/two_processes' + TINY,
    'tools/slurm_train.sh': TINY,
    'mmairl evaluate knn CONFIG': FEW,
    'mmairl study': ' --dry-run',
    'mmairl transfer': None,  # requires data sets, so only its parser runs
    'mmairl': '',
}
SLOW = [line for line in LINES if '.sh ' in line]
SRUN = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do [[ $1 == -p ]] && shift; shift; done
export SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NODELIST=localhost
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 MASTER_ADDR=127.0.0.1
exec "$@"
"""


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    """Return a folder with links to the repository, and with the images that README names."""
    folder = tmp_path_factory.mktemp('readme')
    for name in ('configs', 'tools', 'mmairl'):
        (folder / name).symlink_to(ROOT / name)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 40, 40, 3), np.uint8)
    for part in ('images', 'labels'):
        for number, image in enumerate(pixels):
            path = folder / part / 'ab'[number % 2] / f'{number:02}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    torch.save(torchvision.models.resnet18().state_dict(), folder / 'resnet18.pth')
    return folder


def words_of(line: str) -> list[str]:
    short = next(SHORT[start] for start in SHORT if line.startswith(start))
    line = re.sub(' #.*', '', line)
    for name, value in NAMES.items():
        line = line.replace(name, value)
    return shlex.split(line + (short or ''))


@pytest.mark.parametrize('line', [line for line in LINES if line not in SLOW])
def test_line_runs(line, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    if line.startswith('make'):
        assert re.search(rf'^{line.split()[1]}:', (ROOT / 'Makefile').read_text(), re.MULTILINE)
    elif line.startswith('mmairl transfer'):
        parser_for('transfer').parse_args(words_of(line)[2:])
    elif not line.startswith('.'):
        tool, *words = words_of(line)
        assert tool == 'mmairl' or os.access(tool, os.X_OK)
        main(words if tool == 'mmairl' else [Path(tool).stem, *words])
        assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize('line', SLOW)
def test_script_runs(line, folder, tmp_path):
    """The file `srun` stands for Slurm."""
    (tmp_path / 'srun').write_text(SRUN)
    (tmp_path / 'srun').chmod(0o755)
    path = f'{tmp_path}:{Path(sys.executable).parent}:{os.environ["PATH"]}'
    env = {
        **os.environ,
        'PATH': path,
        'PYTHON': sys.executable,
        'OMP_NUM_THREADS': '1',
        'GPUS': '1',
    }
    process = subprocess.run(words_of(line), cwd=folder, env=env, capture_output=True, text=True)
    assert process.returncode == 0 and 'checkpoint ' in process.stdout, process.stderr[-3000:]


@pytest.mark.slow
def test_python_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    blocks = [block for kind, block in BLOCKS if kind == 'python']
    own = next(block for block in blocks if 'pretrain' in block)
    narrow = {
        'model.backbone.stem_channels': 8,
        'model.backbone.base_channels': 8,
        'model.projector.in_channels': 64,
    }
    exec(own.replace('epochs=100', f'epochs=1, size=32, batch=32, workers=0, options={narrow}'))
    (folder / 'mine.py').write_text(next(block for block in blocks if '_base_' in block))
    assert load_config('mine.py').default_hooks.momentum.base == 0.999
    compared = next(block for block in blocks if 'compare' in block)
    checkpoint = torch.load(mmairl.sample(), weights_only=True)
    for name in ('a0', 'a1', 'b0', 'b1'):
        checkpoint['state_dict']['backbone.conv1.weight'] *= 1 + 0.1 * torch.rand(16, 1, 1, 1)
        torch.save(checkpoint, f'{name}.pth')
    exec(compared)


def test_readme_is_short():
    assert len(TEXT.split()) <= 750
