"""Submit a study's runs as Slurm jobs, or print plain commands for any other scheduler.

Each job completes one run. If the run exits with 75, which means that it was stopped, the job is requeued unless it was
canceled. The state of a job is read from squeue and from the run's folder. The options of sbatch come from a site's profile.

The package submitit is not used for several reasons. It pickles calls and executes the pickle on the node
(`core.PicklingExecutor`). Its jobs ignore SIGTERM (`SignalHandler.bypass`). It does not split arrays at a site's limits.
It requires Slurm's accounting (sacct), which some sites do not have.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Annotated

import yaml
from jinja2 import Template
from msgspec import Meta

from mmairl.errors import UserError
from mmairl.io import Declared, read_text, read_yaml, write_text
from mmairl.study.local_pool import commands
from mmairl.study.runs import LAST_WORDS, Run, status

JOB = Template(
    Path(__file__).with_name('job.sh').read_text(), trim_blocks=True, keep_trailing_newline=True
)
# The largest number of runs in one job array. Slurm's default MaxArraySize of 1001 allows this number. If a site does not
# accept an array, `submit` halves the number.
PORTION = 1000
ENDED = (
    'BOOT_FAIL', 'CANCELLED', 'COMPLETED', 'DEADLINE', 'FAILED', 'NODE_FAIL', 'OUT_OF_MEMORY', 'PREEMPTED', 'TIMEOUT',
)  # fmt: skip
# For each run, the state of its job, and Slurm's reason for the state.
Queue = dict[Run, tuple[str, str]]


class Cluster(Declared, frozen=True):
    """A site's profile: the options of its Slurm jobs. Most keys are named after options of sbatch.

    An empty value means that Slurm's default is used.
    """

    partition: str = ''
    account: str = ''
    time: str = ''
    qos: str = ''
    constraint: str = ''
    mem: str = ''
    # The number of CPU cores for each GPU, or for each process without a GPU.
    cpus: Annotated[int, Meta(ge=1)] = 8
    # The largest number of GPUs that a run can use on one node; 0 means no limit.
    per_node: Annotated[int, Meta(ge=0)] = 0
    gres: str = 'gpu'  # the type of GPUs, such as gpu:a100, or 'none' for nodes without GPUs
    # Bash commands to execute before the run, such as `module load cuda`.
    environment: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        names = ('partition', 'account', 'time', 'qos', 'constraint', 'mem')
        stated = [name for name in names if getattr(self, name)]
        return [shlex.quote(f'--{name}={getattr(self, name)}') for name in stated]


def read_cluster(path: Path) -> Cluster:
    """Read a site's profile from a YAML file.

    YAML would read a time such as 24:00:00 as a number, so all values are read as text before they are converted.
    """
    return read_yaml(path, Cluster, yaml.BaseLoader)


def in_order(runs: Sequence[Run]) -> dict[Run, list[Run]]:
    """Return, for each unfinished run, the unfinished runs that it needs.

    The keys are ordered so that each run comes after the runs that it needs.
    """
    waiting = {run.folder: run for run in runs if not run.done}
    needed = {}
    for run in waiting.values():
        needed[run] = [waiting[folder] for folder in run.needs if folder in waiting]
    return {run: needed[run] for run in TopologicalSorter(needed).static_order()}


def plain_commands(runs: Sequence[Run], devices: int) -> Iterator[str]:
    """Yield a line for each unfinished run: its name, the unfinished runs that it needs, and its shell command."""
    for run, before in in_order(runs).items():
        steps = [f'cd {shlex.quote(os.getcwd())}', *map(shlex.join, commands(run, devices))]
        yield f'{run.slug}\t{",".join(other.slug for other in before) or "-"}\t{" && ".join(steps)}'


def job_script(devices: int, out: Path, cluster: Cluster) -> str:
    """Return the batch script that all jobs of a study use."""
    log = str(out.absolute() / 'jobs' / 'slurm.log')
    nodes, share = shared(devices, cluster)
    tasks = share if nodes > 1 else 1
    return JOB.render(
        options=cluster.options,
        nodes=nodes,
        tasks=tasks,
        processes=share // tasks,
        cpus=cluster.cpus * share // tasks,
        gres='' if cluster.gres in ('', 'none') else f'{cluster.gres}:{share}',
        environment=cluster.environment,
        # In a file name, Slurm reads a single % as the start of a pattern.
        log=log.replace('%', '%%'),
        folder=shlex.quote(os.getcwd()),
        stopping=shlex.quote(str(Path(__file__).parents[1] / 'signals.sh')),
        last_words=LAST_WORDS,
    )


def run_script(run: Run, devices: int, cluster: Cluster) -> str:
    """Return the commands of one run, which its job executes.

    If the run uses one node, mmairl's launcher starts its processes. If it uses several nodes, srun starts them.
    """
    nodes, share = shared(devices, cluster)
    steps = commands(run, share)
    if nodes > 1:
        # If srun received the job's signals, it would kill its tasks before they save. `setsid` starts srun in a session of
        # its own, where these signals do not reach it.
        srun = f'setsid srun --kill-on-bad-exit=0 --wait=120 --cpus-per-task={cluster.cpus}'
        steps[0] = [*srun.split(), *commands(run, 1)[0], '--launcher', 'slurm']
    return ''.join(f'run {shlex.join(step)}\n' for step in steps)


def shared(devices: int, cluster: Cluster) -> tuple[int, int]:
    """Return the number of nodes that a run uses, and the number of its processes on each node."""
    nodes = -(-devices // cluster.per_node) if cluster.per_node else 1
    if devices % nodes:
        raise UserError(
            f'--per-run: {devices} GPUs cannot be divided equally among {nodes} nodes with at most {cluster.per_node} GPUs '
            f'each; set --per-run to a multiple of {nodes}',
            code='unequal-nodes',
        )
    return nodes, devices // nodes


def submit(
    runs: Sequence[Run],
    devices: int,
    out: Path,
    cluster: Cluster,
    say: Callable[[str], None],
) -> None:
    """Submit the runs that are neither finished nor queued.

    Runs that need no unfinished runs are submitted as job arrays of the size that the site accepts. Each other run is a
    separate job, which Slurm starts only after the jobs of the runs that it needs have succeeded.

    Args:
        runs: All runs of the study.
        devices: The number of GPUs per run; on nodes without GPUs, the number of processes per run.
        out: The study's folder.
        cluster: The site's profile.
        say: A function that prints a line.
    """
    if not shutil.which('sbatch'):
        raise UserError(
            '--slurm: this machine does not have sbatch; run this mmairl command on a login node of the cluster, or use '
            '--print-commands',
            code='no-sbatch',
        )
    script = write_text(out / 'jobs' / 'job.sh', job_script(devices, out, cluster))
    before = in_order(runs)
    queued = {run for run, (state, _) in read_queue(runs).items() if state not in ENDED}
    left = [run for run in before if run not in queued]
    total = len(left)
    say(
        f'{len(runs) - len(before)} runs are done, {len(before) - total} are queued, and {total} will be submitted'
    )
    groups = [[run for run in left if not before[run]]]
    groups += [[run] for run in left if before[run]]
    portion = PORTION
    submitted = 0
    for group in groups:
        while group:
            part = group[:portion]
            name = part[0].slug if len(part) == 1 else out.name
            number, refusal = _submit_array(part, before[part[0]], name, script, devices, cluster)
            if number:
                submitted += len(part)
                group = group[portion:]
                say(f'submitted {submitted} of {total}: job {number}, {name}')
            elif len(part) > 1:
                portion = len(part) // 2
            else:
                raise UserError(
                    f'{name}: Slurm does not accept the job ({refusal}); {submitted} of {total} runs have been submitted; '
                    'correct the profile, or run the command again later if a limit on the number of jobs was reached',
                    code='slurm-refused',
                )


def _submit_array(
    part: Sequence[Run],
    before: Sequence[Run],
    name: str,
    script: Path,
    devices: int,
    cluster: Cluster,
) -> tuple[str, str]:
    """Submit runs as the tasks of one job array.

    Returns:
        The number of the job array and '', or '' and the reason why Slurm refused it.
    """
    for run in part:
        write_text(run.folder / 'job.sh', run_script(run, devices, cluster))
    options = [f'--array=0-{len(part) - 1}', f'--job-name={name}']
    if before:
        jobs = ':'.join(job_of(run) for run in before)
        options += [f'--dependency=afterok:{jobs}', '--kill-on-invalid-dep=yes']
    number, refusal = sbatch(*options, script, *(run.folder.absolute() for run in part))
    if number:
        for index, run in enumerate(part):
            write_text(run.folder / 'job.txt', f'{number}_{index}\n')
    return number, refusal


def sbatch(*arguments: object) -> tuple[str, str]:
    """Submit a job with Slurm's command sbatch.

    If a site's limit on the number of jobs is reached, sbatch retries for minutes. It is killed as soon as it prints that it
    is retrying.

    Returns:
        The number of the new job and '', or '' and the reason why Slurm refused the job.
    """
    command = ['sbatch', '--parsable', *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        messages = []
        for line in process.stderr:
            messages.append(line.strip().removeprefix('sbatch: error: '))
            if 'retrying' in line:
                process.kill()
                config = _output('scontrol', 'show', 'config')
                limit = next((line for line in config if line.startswith('MaxJobCount')), '')
                messages.append(' '.join(limit.split()))
        numbers = process.stdout.read().split()
    if process.returncode:
        return '', '; '.join(messages)
    return numbers[-1].partition(';')[0], ''


def job_of(run: Run) -> str:
    """Return the number of the last job that was submitted for a run, or ''."""
    path = run.folder / 'job.txt'
    return read_text(path).strip() if path.is_file() else ''


def read_queue(runs: Sequence[Run]) -> Queue:
    """Return the states of the runs' jobs according to Slurm's queue. A run without a job in the queue is left out."""
    jobs = {run: job for run in runs if (job := job_of(run))}
    if not jobs:
        return {}
    arrays = ','.join({job.partition('_')[0] for job in jobs.values()})
    options = ['-h', '--array', '--states=all', '--format=%i %T %r', f'--jobs={arrays}']
    known = {}
    for line in _output('squeue', *options):
        job, state, reason = line.split(' ', 2)
        known[job] = (state, reason)
    queue = {}
    for run, job in jobs.items():
        # If an array has only one task and was canceled, squeue prints its number without the index of the task.
        if reported := known.get(job) or known.get(job.partition('_')[0]):
            queue[run] = reported
    return queue


def _output(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    # Slurm forgets old jobs after some time. It then reports an invalid job id, which is not an error here.
    if done.returncode and 'Invalid job id' not in done.stderr:
        message = ' '.join(done.stderr.split())
        raise UserError(
            f'{command[0]}: Slurm does not respond ({message}); run the command again later',
            code='slurm-does-not-answer',
        )
    return done.stdout.splitlines()


def status_in(queue: Queue | None, run: Run) -> tuple[str, str]:
    """Return the state of a run and a message about it.

    Args:
        queue: Slurm's queue. If it is None, as on a machine without Slurm, the state follows only from the run's folder.
        run: The run.
    """
    folder_state, message = status(run)
    job = job_of(run)
    if folder_state in ('done', 'running') or not job or queue is None:
        return folder_state, message
    path = run.folder / 'begun.txt'
    began = path.is_file() and read_text(path).strip() == job
    state, reason = queue.get(run, ('', ''))
    because = f'{reason if reason != "None" else "no reason yet"} (job {job})'
    if state == 'PENDING':
        return ('requeued' if began else 'pending'), because
    if state and state not in ENDED:
        return state.lower(), message
    if state == 'CANCELLED':
        return 'cancelled', message if began else f'not started; {because}'
    if began:
        return folder_state, message
    end = f'{state}, {reason}' if state else 'no longer in the queue'
    return (
        'never started',
        f'job {job} ended before the run began ({end}); can the node of the job read {run.folder}?',
    )
