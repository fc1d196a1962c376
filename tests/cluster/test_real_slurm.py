"""A study in a real Slurm: its runs are submitted, one is requeued after a signal, and one is canceled and submitted again."""

import json
import os
import subprocess
import sys

import pytest
from cluster import real_slurm
from harness.processes import wait_for
from study.small_studies import ROOT, written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(real_slurm.MISSING), reason=f'Slurm is not installed: {real_slurm.MISSING}'
    ),
]
STUDY = dict(
    title='A toy',
    seeds=[0, 1],
    rows=[dict(name='SGD', config='mocov2plus_r50_200e.py')],
)
HEADER = """#!/usr/bin/env bash
#SBATCH --time=20
#SBATCH --cpus-per-task=1
export OMP_NUM_THREADS=1
"""


@pytest.fixture(scope='module', autouse=True)
def _slurm(tmp_path_factory):
    with real_slurm.started(tmp_path_factory.mktemp('slurm')):
        yield


def test_requeued_and_canceled_runs_of_a_study_finish(tmp_path):
    (tmp_path / 'header.sh').write_text(HEADER)
    arguments = written(tmp_path, STUDY, epochs=0.1, untrained=[])
    out = tmp_path / 'out'
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}

    def study(*options: str) -> None:
        command = [sys.executable, 'tools/study.py', *arguments, *options]
        subprocess.run(command, env=environment, cwd=ROOT, check=True)

    def submitted() -> list[str]:
        return sorted(path.stem for path in (out / 'jobs').glob('*.job'))

    def ended(job: str) -> bool:
        return real_slurm.job_state(job)[0] in ('COMPLETED', 'CANCELLED', 'FAILED')

    study('--slurm', str(tmp_path / 'header.sh'))
    (array,) = submitted()
    requeued, canceled = f'{array}_0', f'{array}_1'
    runs = [out / 'runs/sgd' / f'seed_{seed}' for seed in (0, 1)]
    for run in runs:
        wait_for(lambda run=run: list(run.glob('*/vis_data/scalars.json')), 300, f'for {run}')
    real_slurm.output('scancel', '--batch', '--signal=USR1', requeued)
    real_slurm.output('scancel', canceled)
    wait_for(lambda: ended(canceled), 300, 'for the canceled job')
    assert real_slurm.job_state(canceled)[0] == 'CANCELLED'
    assert list(runs[1].glob('*.pth')) and not (runs[1] / 'result.json').exists()

    study('--slurm', str(tmp_path / 'header.sh'))
    (again,) = set(submitted()) - {array}
    for job in (requeued, again):
        wait_for(lambda job=job: ended(job), 300, f'for job {job}')
    log = (runs[0] / 'log.txt').read_text()
    assert real_slurm.job_state(requeued) == ('COMPLETED', 1), log
    assert 'is requeued' in log

    study('--collect')
    record = json.loads((out / 'study.json').read_text())
    scores = [run['scores']['knn'] for run in record['rows'][0]['runs']]
    assert len(scores) == 2 and all(0 <= score <= 100 for score in scores)
