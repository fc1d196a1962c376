"""The Slurm scripts start training by srun, and requeue a job whose run has saved. Stand-ins replace Slurm's programs."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_script(tmp_path: Path, code: int, script: str, *arguments: str) -> tuple[int, str]:
    """Run a script with an srun that exits with `code`. Return the exit code and the calls of Slurm's programs."""
    programs = dict(srun=f'exit {code}', scontrol='', squeue='echo None', sinfo='echo gpu:8')
    for name, line in programs.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/bash\necho {name} "$@" >> {tmp_path}/calls\n{line}\n')
        program.chmod(0o755)
    environment = {
        **os.environ,
        'PATH': f'{tmp_path}:{os.environ["PATH"]}',
        'SLURM_JOB_ID': '7',
        'GPUS': '2',
    }
    process = subprocess.run(
        [f'tools/{script}', *arguments], cwd=ROOT, env=environment, capture_output=True, timeout=60
    )
    return process.returncode, (tmp_path / 'calls').read_text()


@pytest.mark.parametrize('code', [75, 0, 2])
def test_job_is_requeued_only_if_its_run_has_saved(tmp_path, code):
    exit_code, calls = run_script(tmp_path, code, 'slurm_job.sh', 'CONFIG', str(tmp_path / 'run'))
    assert exit_code == code
    assert ('scontrol requeue 7' in calls) == (code == 75)
    assert f'tools/train.py CONFIG --work-dir {tmp_path}/run --launcher slurm --resume' in calls


def test_interactive_script_passes_options_and_exit_code(tmp_path):
    exit_code, calls = run_script(
        tmp_path, 3, 'slurm_train.sh', 'part', 'job', 'CONFIG', 'DIR', '--amp'
    )
    assert exit_code == 3
    assert '-p part --job-name=job --gres=gpu:2 --ntasks=2 --ntasks-per-node=2' in calls
    assert 'train.py CONFIG --work-dir DIR --launcher slurm --amp' in calls
