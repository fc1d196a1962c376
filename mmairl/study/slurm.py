"""Submit a study's runs as Slurm jobs by a site's profile, or print plain commands for any other scheduler.

submitit is not used. Its executor pickles each call and reads the pickle on the node (`core.PicklingExecutor`), its jobs ignore
SIGTERM (`SignalHandler.bypass`) and requeue only calls that return a new pickle, it does not split arrays at the site's
limits, and it reads states from accounting (sacct), which sites need not have. Our jobs run a command on a folder, requeue on
exit code 75, and their states come from squeue and the folder.
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
PORTION = 1000  # runs in an array, by Slurm's own MaxArraySize; halved where a site takes fewer
ENDED = (
    'BOOT_FAIL', 'CANCELLED', 'COMPLETED', 'DEADLINE', 'FAILED', 'NODE_FAIL', 'OUT_OF_MEMORY', 'PREEMPTED', 'TIMEOUT',
)  # fmt: skip
Queue = dict[Run, tuple[str, str]]  # the state of a run's job, and Slurm's reason for it


class Cluster(Declared, frozen=True):
    """A site's profile, by sbatch's own words; what is left out is Slurm's default."""

    partition: str = ''
    account: str = ''
    time: str = ''
    qos: str = ''
    constraint: str = ''
    mem: str = ''
    cpus: Annotated[int, Meta(ge=1)] = 8  # for each GPU, or each CPU process
    per_node: Annotated[int, Meta(ge=0)] = 0  # the most that a run takes of a node; 0: all on one
    gres: str = 'gpu'  # such as gpu:a100; none for nodes without
    environment: tuple[str, ...] = ()  # lines of bash before the run, such as `module load cuda`

    @property
    def options(self) -> list[str]:
        names = ('partition', 'account', 'time', 'qos', 'constraint', 'mem')
        return [
            shlex.quote(f'--{name}={value}') for name in names if (value := getattr(self, name))
        ]


def read_cluster(path: Path) -> Cluster:
    """Return the profile in a YAML file; its values are read as text, as YAML would make a number of 24:00:00."""
    return read_yaml(path, Cluster, yaml.BaseLoader)


def in_order(runs: Sequence[Run]) -> dict[Run, list[Run]]:
    """Return the runs that are not done, each after those whose weights it takes, with these."""
    waiting = {run.folder: run for run in runs if not run.done}
    needed = {
        run: [waiting[folder] for folder in run.needs if folder in waiting]
        for run in waiting.values()
    }
    return {run: needed[run] for run in TopologicalSorter(needed).static_order()}


def plain_commands(runs: Sequence[Run], devices: int) -> Iterator[str]:
    """Yield a line for each run that is not done: its name, the names of those that must have succeeded, its command."""
    for run, before in in_order(runs).items():
        steps = [f'cd {shlex.quote(os.getcwd())}', *map(shlex.join, commands(run, devices))]
        yield f'{run.slug}\t{",".join(other.slug for other in before) or "-"}\t{" && ".join(steps)}'


def job_script(devices: int, out: Path, cluster: Cluster) -> str:
    """Return the script that all jobs of a study share."""
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
        log=log.replace('%', '%%'),  # a % begins a pattern of Slurm's
        folder=shlex.quote(os.getcwd()),
        stopping=shlex.quote(str(Path(__file__).parents[1] / 'signals.sh')),
        last_words=LAST_WORDS,
    )


def run_script(run: Run, devices: int, cluster: Cluster) -> str:
    """Return what one run does in its job: by our launcher on one node, by srun on several."""
    nodes, share = shared(devices, cluster)
    steps = commands(run, share)
    if nodes > 1:
        # a session of its own: what ends the job's processes would have srun kill its tasks, and the shell tells them to save
        step = [
            'setsid',
            'srun',
            '--kill-on-bad-exit=0',
            '--wait=120',
            f'--cpus-per-task={cluster.cpus}',
        ]
        steps[0] = [*step, *commands(run, 1)[0], '--launcher', 'slurm']
    return ''.join(f'run {shlex.join(step)}\n' for step in steps)


def shared(devices: int, cluster: Cluster) -> tuple[int, int]:
    """Return how many nodes a run takes, and how many of its processes are on each."""
    nodes = -(-devices // cluster.per_node) if cluster.per_node else 1
    if devices % nodes:
        raise UserError(
            f'--per-run {devices} cannot be shared by {nodes} nodes of at most {cluster.per_node}; give a multiple of {nodes}'
        )
    return nodes, devices // nodes


def submit(
    runs: Sequence[Run], devices: int, out: Path, cluster: Cluster, say: Callable[[str], None]
) -> None:
    """Submit the runs that are neither done nor in the queue, each after the runs whose weights it uses.

    Runs that wait for none are tasks of an array, in portions as large as the site's limits allow.
    """
    if not shutil.which('sbatch'):
        raise UserError(
            'there is no sbatch here; give this command where Slurm is, or take --print-commands',
            code='no-sbatch',
        )
    script = write_text(out / 'jobs' / 'job.sh', job_script(devices, out, cluster))
    before = in_order(runs)
    queued = {run for run, (state, _) in read_queue(runs).items() if state not in ENDED}
    left = [run for run in before if run not in queued]
    total = len(left)
    say(
        f'{len(runs) - len(before)} runs are done, {len(before) - total} are in the queue, {total} are to be submitted'
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
                say(f'{submitted} of {total} are submitted: job {number}, {name}')
            elif len(part) > 1:
                portion = len(part) // 2
            else:
                raise UserError(
                    f'{submitted} of {total} runs are submitted, and Slurm refuses {name}: {refusal}; correct the profile, or '
                    'where that is a limit, give the same command again when jobs have ended',
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
    """Submit runs as the tasks of one array; return its number and '', or '' and the reason of the refusal."""
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
    """Return the number of a new job and '', or '' and why there is none.

    If Slurm is full, sbatch would retry for two minutes without output.
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
                limit = [
                    line
                    for line in _output('scontrol', 'show', 'config')
                    if line.startswith('MaxJobCount')
                ]
                messages.append(' '.join(''.join(limit).split()))
        numbers = process.stdout.read().split()
    if process.returncode:
        return '', '; '.join(messages)
    return numbers[-1].partition(';')[0], ''


def job_of(run: Run) -> str:
    """Return the job that the run was last submitted as, or ''."""
    path = run.folder / 'job.txt'
    return read_text(path).strip() if path.is_file() else ''


def read_queue(runs: Sequence[Run]) -> Queue:
    """Return what Slurm knows of the runs' jobs."""
    jobs = {run: job for run in runs if (job := job_of(run))}
    if not jobs:
        return {}
    arrays = {run: job.partition('_')[0] for run, job in jobs.items()}
    numbers = ','.join({*arrays.values()})
    lines = _output(
        'squeue', '-h', '--array', '--states=all', '--format=%i %T %r', f'--jobs={numbers}'
    )
    known = {}
    for line in lines:
        job, state, reason = line.split(' ', 2)
        known[job] = (state, reason)
    queue = {}
    for run, job in jobs.items():
        for name in (
            arrays[run],
            job,
        ):  # Slurm reports an array by its number alone if its only task was canceled
            if name in known:
                queue[run] = known[name]
    return queue


def _output(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and 'Invalid job id' not in done.stderr:  # a job that ended a while ago
        message = ' '.join(done.stderr.split())
        raise UserError(
            f'Slurm does not answer: {message}; give the same command again later',
            code='slurm-does-not-answer',
        )
    return done.stdout.splitlines()


def status_in(queue: Queue | None, run: Run) -> tuple[str, str]:
    """Return the state of a run and a message, by its folder and by the queue (None on a machine without Slurm)."""
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
        return 'cancelled', message if began else f'it had not begun; Slurm said {because}'
    if began:
        return folder_state, message
    end = f'ended as {state} ({reason})' if state else 'was cancelled, or ended,'
    return 'never started', f'job {job} {end} before it began; can its node see {run.folder}?'
