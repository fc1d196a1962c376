"""Slurm: jobs use the cluster's own header, are submitted once, and wait for the weights that they use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.errors import raises_code
from study.small_studies import LARS, SGD, prepared

import mmairl
from mmairl.study.runs import lay_out_runs
from mmairl.study.slurm import queued_runs, submit
from mmairl.study.study import Row, Source

RESCALED = Row('rescaled', LARS.config, source=Source(row='LARS', rescale_by=0.1))
SBATCH = '#!/bin/bash\necho "$@" >>"$CALLS"\nwc -l <"$CALLS"\n'
SQUEUE = '#!/bin/bash\n[[ -z $STATE ]] || printf "1 0 $STATE\\n1 1 $STATE\\n2 0 $STATE\\n"\n'


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Return a header, with commands that record the arguments of sbatch and print a queue."""
    for name, script in (('sbatch', SBATCH), ('squeue', SQUEUE)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    monkeypatch.setenv('CALLS', str(tmp_path / 'calls'))
    monkeypatch.setenv('STATE', '')
    header = tmp_path / 'site.sh'
    header.write_text('#!/bin/bash\n#SBATCH --partition=gpu\necho site\n')
    return header


def test_dependent_runs_wait_for_the_array(cluster, tmp_path):
    runs = lay_out_runs(prepared(SGD, LARS, RESCALED, out=tmp_path / 'out'))
    submit(runs, cluster, tmp_path / 'out')
    first, second = (tmp_path / 'calls').read_text().splitlines()
    assert '--array=0-1' in first and 'dependency' not in first
    assert '--array=0-0' in second and '--dependency=afterany:1' in second
    assert (tmp_path / 'out/jobs/job.sh').read_text().startswith(cluster.read_text())


def test_queued_runs_are_not_submitted_again(cluster, tmp_path, monkeypatch):
    runs = lay_out_runs(prepared(SGD, LARS, RESCALED, out=tmp_path / 'out'))
    submit(runs, cluster, tmp_path / 'out')
    monkeypatch.setenv('STATE', 'PENDING')
    submit(runs, cluster, tmp_path / 'out')
    assert len((tmp_path / 'calls').read_text().splitlines()) == 2
    assert queued_runs(tmp_path / 'out')[str(runs[1].folder)] == (
        '1',
        'pending',
    )


def test_machine_without_slurm_is_an_error(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', '/none')
    with raises_code('no-slurm'):
        submit(
            lay_out_runs(prepared(SGD, LARS, out=tmp_path / 'out')),
            cluster,
            tmp_path / 'out',
        )


@pytest.mark.parametrize('code, message', [(0, ''), (3, 'error: no memory')])
def test_job_runs_its_line_and_keeps_the_last_error(cluster, tmp_path, code, message):
    """Run the script as Slurm does, with a worker that ends at once."""
    runs = lay_out_runs(prepared(SGD, LARS, out=tmp_path / 'out'))
    submit(runs, cluster, tmp_path / 'out')
    worker = tmp_path / 'python'
    worker.write_text(f'#!/bin/bash\necho "$3"\necho "{message}"\nexit {code}\n')
    worker.chmod(0o755)
    # Paths may contain spaces, at which the recorded call must not be split.
    names = {
        'PYTHON': sys.executable,
        'PACKAGE': str(Path(mmairl.__file__).parent),
        'HERE': os.getcwd(),
    }
    text = (tmp_path / 'calls').read_text()
    for name, path in names.items():
        text = text.replace(path, name)
    call = text.split(maxsplit=6)[-1].split()
    script = next(at for at, word in enumerate(call) if word.endswith('job.sh'))
    words = [(names | {'PYTHON': str(worker)}).get(word, word) for word in call[script:]]
    pattern = ' '.join(words[5:])
    environment = dict(
        os.environ,
        SLURM_ARRAY_TASK_ID='1',
        SLURM_ARRAY_JOB_ID='7',
        SLURM_NTASKS='1',
    )
    done = subprocess.run(['bash', *words[:5], pattern], env=environment)
    folder = Path(runs[1].folder)
    assert done.returncode == code and str(folder) in (folder / 'log.txt').read_text()
    failed = folder / 'failed.txt'
    assert (failed.read_text().strip() if failed.is_file() else '') == message
