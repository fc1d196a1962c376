"""A study's runs as Slurm jobs, by what a site wants of each; or as plain commands for any other scheduler."""

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
from mmairl.study.runs import LAST_WORDS, Run, commands, status

JOB = Template(Path(__file__).with_name('job.sh').read_text(), trim_blocks=True, keep_trailing_newline=True)
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
        return [shlex.quote(f'--{name}={value}') for name in names if (value := getattr(self, name))]


def read_cluster(path: Path) -> Cluster:
    """Return the profile in a YAML file; its values are read as text, as YAML would make a number of 24:00:00."""
    return read_yaml(path, Cluster, yaml.BaseLoader)


def in_order(runs: Sequence[Run]) -> dict[Run, list[Run]]:
    """Return the runs that are not done, each after those whose weights it takes, with these."""
    waiting = {run.folder: run for run in runs if not run.done}
    needed = {run: [waiting[folder] for folder in run.needs if folder in waiting] for run in waiting.values()}
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
        step = ['setsid', 'srun', '--kill-on-bad-exit=0', '--wait=120', f'--cpus-per-task={cluster.cpus}']
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


def submit(runs: Sequence[Run], devices: int, out: Path, cluster: Cluster, say: Callable[[str], None]) -> None:
    """Submit the runs that are not done and not in the queue, each after those whose weights it takes.

    Runs that wait for none are tasks of an array, in portions as large as the site's limits let them be.
    """
    if not shutil.which('sbatch'):
        raise UserError('there is no sbatch here; give this command where Slurm is, or take --print-commands')
    script = write_text(out / 'jobs' / 'job.sh', job_script(devices, out, cluster))
    before = in_order(runs)
    queued = {run for run, (state, _) in read_queue(runs).items() if state not in ENDED}
    left = [run for run in before if run not in queued]
    free = [run for run in left if not before[run]]
    groups, portion, total = [free, *([run] for run in left if before[run])], PORTION, len(left)
    say(f'{len(runs) - len(before)} runs are done, {len(before) - total} are in the queue, {total} are to be submitted')
    submitted = 0
    for group in groups:
        while group:
            part, jobs = group[:portion], [job_of(other) for other in before[group[0]]]
            for run in part:
                write_text(run.folder / 'job.sh', run_script(run, devices, cluster))
            after = [f'--dependency=afterok:{":".join(jobs)}', '--kill-on-invalid-dep=yes'] if jobs else []
            name = part[0].slug if len(part) == 1 else out.name
            array = f'--array=0-{len(part) - 1}'
            folders = [run.folder.absolute() for run in part]
            number, refusal = sbatch(array, f'--job-name={name}', *after, script, *folders)
            if number:
                for index, run in enumerate(part):
                    write_text(run.folder / 'job.txt', f'{number}_{index}\n')
                submitted, group = submitted + len(part), group[portion:]
                say(f'{submitted} of {total} are submitted: job {number}, {name}')
            elif len(part) > 1:
                portion = len(part) // 2
            else:
                raise UserError(
                    f'{submitted} of {total} runs are submitted, and Slurm refuses {name}: {refusal}; correct the profile, or '
                    'where that is a limit, give the same command again when jobs have ended'
                )


def sbatch(*words: object) -> tuple[str, str]:
    """Return the number of a new job and '', or '' and why there is none.

    Where Slurm is full, sbatch would try for two minutes without another word.
    """
    with subprocess.Popen(['sbatch', '--parsable', *map(str, words)], stdout=-1, stderr=-1, text=True) as process:
        said = []
        for line in process.stderr:
            said.append(line.strip().removeprefix('sbatch: error: '))
            if 'retrying' in line:
                process.kill()
                limit = [line for line in _asked('scontrol', 'show', 'config') if line.startswith('MaxJobCount')]
                said.append(' '.join(''.join(limit).split()))
        numbers = process.stdout.read().split()
    return ('', '; '.join(said)) if process.returncode else (numbers[-1].partition(';')[0], '')


def job_of(run: Run) -> str:
    """Return the job that the run was last submitted as; '' where it never was."""
    path = run.folder / 'job.txt'
    return read_text(path).strip() if path.is_file() else ''


def read_queue(runs: Sequence[Run]) -> Queue:
    """Return what Slurm knows of the runs' jobs."""
    jobs = {run: job for run in runs if (job := job_of(run))}
    if not jobs:
        return {}
    arrays = {run: job.partition('_')[0] for run, job in jobs.items()}
    lines = _asked(
        'squeue', '-h', '--array', '--states=all', '--format=%i %T %r', f'--jobs={",".join({*arrays.values()})}'
    )
    known = {job: (state, reason) for job, state, reason in (line.split(' ', 2) for line in lines)}
    # Slurm forgets that an array was one where its only task was cancelled.
    return {run: known[name] for run, job in jobs.items() for name in (arrays[run], job) if name in known}


def _asked(*command: str) -> list[str]:
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode and 'Invalid job id' not in said.stderr:  # a job that ended a while ago
        raise UserError(f'Slurm does not answer: {" ".join(said.stderr.split())}; give the same command again later')
    return said.stdout.splitlines()


def status_in(queue: Queue | None, run: Run) -> tuple[str, str]:
    """Return what a run does, and what is said of it, by its folder and by the queue; None is of a machine without Slurm."""
    (what, said), job = status(run), job_of(run)
    if what in ('done', 'running') or not job or queue is None:
        return what, said
    begun = run.folder / 'begun.txt'
    began = begun.is_file() and read_text(begun).strip() == job
    state, reason = queue.get(run, ('', ''))
    because = f'{reason if reason != "None" else "no reason yet"} (job {job})'
    if state == 'PENDING':
        return 'requeued' if began else 'pending', because
    if state and state not in ENDED:
        return state.lower(), said
    if state == 'CANCELLED':
        return 'cancelled', said if began else f'it had not begun; Slurm said {because}'
    if not began:
        end = f'ended as {state} ({reason})' if state else 'was cancelled, or ended,'
        return 'never started', f'job {job} {end} before it began; can its node see {run.folder}?'
    return what, said
