"""Submit a study's runs as Slurm job arrays.

The options of the jobs come from a script with the cluster's own `#SBATCH` lines, such as the one that its users already have.
Each task of an array completes one run. If it is stopped, it is requeued and resumes.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mmairl.errors import UserError
from mmairl.io import read_text, write_text
from mmairl.study.pool import LAST_WORDS
from mmairl.study.runs import Run, unfinished

# The largest number of runs in one job array. Slurm's default MaxArraySize of 1001 allows this number.
PORTION = 1000
JOB = Path(__file__).with_name('job.sh')


def submit(runs: Sequence[Run], header: Path, out: Path) -> None:
    """Submit the unfinished runs that are not in the queue. A run that uses the weights of other runs waits for their array.

    Args:
        runs: All runs of the study.
        header: A script with the cluster's `#SBATCH` lines and commands such as `module load`.
        out: The study's folder.
    """
    script = write_text(out / 'jobs' / 'job.sh', read_text(header) + JOB.read_text())
    queued = queued_runs(out)
    waiting = [run for run in unfinished(runs) if str(run.folder.absolute()) not in queued]
    print(f'{len(queued)} runs are in the queue, and {len(waiting)} will be submitted')
    jobs = sorted({job for job, _ in queued.values()})
    while waiting:
        # The runs that can start first, and then the runs that use their weights.
        ready = [run for run in waiting if not set(run.needs) & set(waiting)][:PORTION]
        waiting = [run for run in waiting if run not in ready]
        dependent = any(not need.done for run in ready for need in run.needs)
        jobs.append(_submit_array(ready, jobs if dependent else (), script, out))
        print(f'job {jobs[-1]}: submitted {len(ready)} runs')


def _submit_array(runs: Sequence[Run], after: Sequence[str], script: Path, out: Path) -> str:
    """Submit runs as the tasks of one job array, and return its number."""
    folder = out / 'jobs'
    name = f'{len(list(folder.glob("*.txt")))}.txt'
    folders = [str(run.folder.absolute()) for run in runs]
    write_text(folder / name, '\n'.join(folders) + '\n')
    options = [
        *('--parsable', f'--array=0-{len(runs) - 1}', f'--job-name={_job_name(out)}'),
        *('--requeue', '--signal=B:USR1@120', '--open-mode=append'),
        # In a file name, Slurm reads a single % as the start of a pattern.
        f'--output={str(folder.absolute() / "slurm.log").replace("%", "%%")}',
    ]
    if after:
        options.append(f'--dependency=afterany:{":".join(after)}')
    package = Path(__file__).parents[1]
    arguments = [
        script,
        os.getcwd(),
        (folder / name).absolute(),
        sys.executable,
        package,
        LAST_WORDS,
    ]
    number = _output('sbatch', *options, *map(str, arguments))[-1].partition(';')[0]
    write_text(folder / f'{number}.job', name)
    return number


def _job_name(out: Path) -> str:
    return f'mmairl-{out.absolute().name}'


def queued_runs(out: Path) -> dict[str, tuple[str, str]]:
    """Return the number and state of the job of each run in Slurm's queue, by the run's folder."""
    if not list((out / 'jobs').glob('*.job')):
        return {}
    queued = {}
    options = ['-h', '-r', f'--name={_job_name(out)}', '--format=%F %K %T']
    for line in _output('squeue', *options):
        job, index, state = line.split()
        path = out / 'jobs' / f'{job}.job'
        if path.is_file():
            folders = read_text(out / 'jobs' / read_text(path)).splitlines()
            queued[folders[int(index)]] = job, state.lower()
    return queued


def _output(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(
            f'{command[0]}: command not found; run this on a machine of a Slurm cluster',
            code='no-slurm',
        ) from None
    if done.returncode:
        message = ' '.join(done.stderr.split())
        raise UserError(
            f"{command[0]}: Slurm refused the command ('{message}'); correct the options in the script, or try again later",
            code='slurm-refused',
        )
    return done.stdout.splitlines()
