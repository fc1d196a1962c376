"""Processes start by torchrun, meet on the loopback interface, and end with one line and the right exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    'save': ('import sys; sys.exit(75)', 75),
    'error': (
        'import os, sys; print("error: x", file=sys.stderr) if os.environ["RANK"] == "0" else 0; sys.exit(2)',
        2,
    ),
    'crash': ('import os; os.kill(os.getpid(), 9)', 1),
    'end': (
        'import os; assert os.environ["MASTER_ADDR"] == "127.0.0.1" and os.environ["OMP_NUM_THREADS"]',
        0,
    ),
}


@pytest.mark.parametrize('case', SCRIPTS)
def test_launcher_exits_with_the_code_of_its_processes(tmp_path, case):
    code, expected = SCRIPTS[case]
    (tmp_path / 'script.py').write_text(code)
    command = [
        sys.executable,
        '-m',
        'mmairl.engine.launcher',
        '--nproc-per-node=2',
        str(tmp_path / 'script.py'),
    ]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert process.returncode == expected
    assert process.stderr == ('error: x\n' if case == 'error' else ''), process.stderr


def test_dist_train_trains_two_processes_without_a_gpu(toy_config, tmp_path):
    cfg = toy_config(width=8, steps=2)
    cfg.train_dataloader.dataset = dict(
        type='Shapes', split='train', count=16, size=32, views=[[], []]
    )
    cfg.train_dataloader.dataset.views = [[dict(type='RandomResizedCrop', size=32)]] * 2
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5,) * 3, std=(0.25,) * 3)
    cfg.dump(tmp_path / 'config.py')
    environment = {**os.environ, 'PYTHON': sys.executable, 'CUDA_VISIBLE_DEVICES': ''}
    command = [
        'tools/dist_train.sh',
        str(tmp_path / 'config.py'),
        '2',
        '--work-dir',
        str(tmp_path / 'run'),
    ]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=ROOT, env=environment
    )
    assert process.returncode == 0, process.stderr
    assert '2 x cpu; total batch 8' in process.stdout and 'bucket' not in process.stderr
    assert (tmp_path / 'run' / 'iter_2.pth').is_file()
