"""A study's runs as Slurm jobs, by what a site wants of each; or as plain commands for any other scheduler."""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from jinja2 import Template

from mmairl.errors import UserError
from mmairl.files import Declared, read_yaml, write_text
from mmairl.study.runs import LAST_WORDS, Run, commands

JOB, SUBMIT = (
    Template(Path(__file__).with_name(name).read_text(), trim_blocks=True, keep_trailing_newline=True)
    for name in ('job.sh', 'submit.sh')
)


class Cluster(Declared, frozen=True):
    """A site's profile, by sbatch's own words; what is left out is Slurm's default."""

    partition: str = ''
    account: str = ''
    time: str = ''
    qos: str = ''
    constraint: str = ''
    mem: str = ''
    cpus: int = 8  # for each GPU, or each CPU process
    per_node: int = 0  # GPUs, or CPU processes, that a run takes of a node at most; 0 for all on one
    gres: str = 'gpu'  # such as gpu:a100; none for nodes without
    environment: tuple[str, ...] = ()  # lines of bash before the run, such as `module load cuda`

    @property
    def options(self) -> list[str]:
        names = ('partition', 'account', 'time', 'qos', 'constraint', 'mem')
        return [shlex.quote(f'--{name}={value}') for name in names if (value := getattr(self, name))]


def read_cluster(path: Path) -> Cluster:
    """Return the profile in a YAML file; its values are read as text, as YAML would make a number of 24:00:00."""
    return read_yaml(path, Cluster, yaml.BaseLoader)


def in_order(runs: Sequence[Run]) -> Iterator[tuple[Run, str, list[str]]]:
    """Those that are not done, each after those whose weights it takes: with its name, and the names of these."""
    waiting, names = [run for run in runs if not run.done], {}
    while waiting:
        run = next(run for run in waiting if not {other.folder for other in waiting} & set(run.needs))
        waiting.remove(run)
        names[run.folder] = f'{run.row.slug}_seed_{run.seed}'
        yield run, names[run.folder], [names[folder] for folder in run.needs if folder in names]


def plain_commands(runs: Sequence[Run], devices: int) -> Iterator[str]:
    """A line for each run that is not done: its name, the names of those that must have succeeded before, and its command."""
    for run, name, before in in_order(runs):
        steps = [f'cd {shlex.quote(os.getcwd())}', *map(shlex.join, commands(run, devices))]
        yield f'{name}\t{",".join(before) or "-"}\t{" && ".join(steps)}'


def slurm_jobs(runs: Sequence[Run], devices: int, out: Path, cluster: Cluster) -> Path:
    """A job script for each run that is not done, and the path of the script that submits them all.

    A run that takes the weights of others is submitted after them and waits for them.
    """
    folder = out.absolute() / 'jobs'
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob('*.sh'):
        old.unlink()
    jobs = []
    for run, name, before in in_order(runs):
        script = write_text(folder / f'{name}.sh', job(run, devices, cluster))
        jobs.append(dict(name=name, before=before, script=shlex.quote(str(script))))
    path = write_text(folder / 'submit.sh', SUBMIT.render(jobs=jobs))
    path.chmod(0o755)
    return path


def job(run: Run, devices: int, cluster: Cluster) -> str:
    """The script of one run: by our launcher on one node, by srun on several."""
    log = str(run.folder.absolute() / 'log.txt')
    if '"' in log or '\n' in log:
        raise UserError(f'Slurm cannot write its log to {log}; give an --out without quotes and line breaks')
    nodes = -(-devices // cluster.per_node) if cluster.per_node else 1
    if devices % nodes:
        raise UserError(
            f'--per-run {devices} cannot be shared by {nodes} nodes of at most {cluster.per_node}; give a multiple of {nodes}'
        )
    share = devices // nodes
    trains, *transfers = commands(run, share)
    tasks = 1
    if nodes > 1:
        # a session of its own: what ends the job's processes would have srun kill its tasks, and the shell tells them to save
        step = ['setsid', 'srun', '--kill-on-bad-exit=0', '--wait=120', f'--cpus-per-task={cluster.cpus}']
        trains, tasks = [*step, *commands(run, 1)[0], '--launcher', 'slurm'], share
    return JOB.render(
        options=cluster.options,
        name=f'{run.row.slug}_{run.seed}',
        nodes=nodes,
        tasks=tasks,
        processes=share // tasks,
        cpus=cluster.cpus * share // tasks,
        gres='' if cluster.gres in ('', 'none') else f'{cluster.gres}:{share}',
        environment=cluster.environment,
        log=log.replace('%', '%%'),  # a % begins a pattern of Slurm's
        folder=shlex.quote(os.getcwd()),
        run_folder=shlex.quote(str(run.folder.absolute())),
        last_words=LAST_WORDS,
        commands=[shlex.join(command) for command in (trains, *transfers)],
    )
