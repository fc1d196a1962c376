"""The runs of a study: laid out as folders, started beside each other or as Slurm jobs, and never done twice."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config

from mmairl.engine.atomic import replacing
from mmairl.engine.preemption import REQUEUE
from mmairl.engine.safe_config import write_config
from mmairl.errors import UserError
from mmairl.study.spec import Row, Study
from mmairl.study.worker import is_local


@dataclass(frozen=True, eq=False)
class Run:
    """A row from one seed, in a folder of its own."""

    row: Row
    seed: int
    folder: Path
    tasks: tuple[str, ...]
    needs: tuple[Path, ...] = ()  # folders of the runs whose weights it takes

    @property
    def ready(self) -> bool:
        return all((folder / 'result.json').is_file() for folder in self.needs)

    @property
    def done(self) -> bool:
        result = self.folder / 'result.json'
        return result.is_file() and set(self.tasks) <= set(json.loads(result.read_text())['labels'])


def lay_out(
    study: Study, configs: dict[str, Config], seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Every run's folder with its resolved config, as data, and what is asked of it; seeds outermost, to see rows early.

    The config lies in a folder of its own, since mmengine writes the one that it runs into the work dir under the same name.
    """

    def folder(row: Row, seed: int) -> Path:
        return out / 'runs' / row.slug / f'seed_{seed}'

    def needs(row: Row, seed: int) -> dict[str, Path]:
        named = {key: name for key, name in (row.rescaled or {}).items() if key in ('of', 'anchor')}
        return {key: folder(study.row(name), seed) for key, name in named.items()}

    runs = [
        Run(row, seed, folder(row, seed), tuple(tasks), tuple(needs(row, seed).values()))
        for seed in seeds
        for row in study.rows
    ]
    for run in runs:
        (run.folder / 'asked').mkdir(parents=True, exist_ok=True)
        made, config = run.folder / 'asked' / '.config.yaml', run.folder / 'asked' / 'config.yaml'
        write_config(configs[run.row.name], made)
        if config.is_file() and config.read_text() != made.read_text():
            raise UserError(
                f'{run.folder} was begun with another config; give --out another folder, or remove this one to begin it anew'
            )
        os.replace(made, config)
        with replacing(run.folder / 'asked.json') as beside:
            asked = dict(seed=run.seed, tasks=list(tasks))
            if run.row.rescaled:
                constant = {key: value for key, value in run.row.rescaled.items() if key == 'constant'}
                found = {key: str(path.absolute()) for key, path in needs(run.row, run.seed).items()}
                asked['rescaled'] = {**constant, **found}
            beside.write_text(json.dumps(asked))
    return runs


def commands(run: Run, devices: int, scheduler: str = 'none') -> list[list[str]]:
    """What trains and measures a run, and what transfers it."""
    worker = ['-m', 'mmairl.study.worker', str(run.folder)]
    several = ['-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={devices}', '--max-restarts=3']
    first = [sys.executable, *worker] if devices == 1 else [sys.executable, *several, *worker, '--launcher', 'pytorch']
    if all(is_local(task) for task in run.tasks):
        return [first]
    return [first, [sys.executable, *worker, '--transfer', str(devices)]]


def execute(runs: Sequence[Run], jobs: int, devices: int, told: Callable[[Run, str], None]) -> None:
    """Start what is not done, `jobs` at a time on `devices` GPUs each; what fails is told and the rest goes on.

    A run that was told to stop is left as it is: the next call goes on with it.
    """
    waiting, active = [run for run in runs if not run.done], {}
    free = list(range(jobs))
    try:
        while waiting or active:
            for run in [run for run in waiting if run.ready][: len(free)]:
                waiting.remove(run)
                slot = free.pop(0)
                active[run] = (slot, _start(run, slot, jobs, devices))
                told(run, 'running')
            for run, (slot, process) in list(active.items()):
                if process.poll() is not None:
                    del active[run]
                    free.append(slot)
                    told(run, _ended(run, process.returncode))
            if not active and not any(run.ready for run in waiting):
                break  # what is left needs a run that has failed
            time.sleep(0.2)
    finally:
        for _, process in active.values():
            process.terminate()  # each finishes its step and saves
        for _, process in active.values():
            process.wait()


def _start(run: Run, slot: int, jobs: int, devices: int) -> subprocess.Popen:
    """The run's commands one after the other, in a process of its own, said into its log."""
    package = str(Path(__file__).parents[2])
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([package, os.environ.get('PYTHONPATH', '')])}
    if torch.cuda.is_available():
        own = range(slot * devices, (slot + 1) * devices)
        environment['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, own))
    else:
        environment['OMP_NUM_THREADS'] = str(max(1, (os.cpu_count() or 1) // (jobs * devices)))
    *first, last = (shlex.join(command) for command in commands(run, devices))
    script = ' && '.join([*first, f'exec {last}'])  # a signal to the shell is then one to the run
    with (run.folder / 'log.txt').open('a') as log:
        return subprocess.Popen(['bash', '-c', script], env=environment, stdout=log, stderr=log)


def _ended(run: Run, code: int) -> str:
    failed = run.folder / 'failed.txt'
    if code == 0:
        failed.unlink(missing_ok=True)
        return 'done'
    if code == REQUEUE:
        return 'stopped'
    lines = [line for line in (run.folder / 'log.txt').read_text(errors='replace').splitlines() if line.strip()]
    failed.write_text(lines[-1] if lines else f'exit code {code}')
    return f'failed: {failed.read_text()}'


def slurm_jobs(runs: Sequence[Run], devices: int, out: Path, partition: str) -> Path:
    """A job script for each run that is not done, and one that submits them all."""
    folder = out / 'jobs'
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob('*.sh'):
        old.unlink()
    names = []
    for run in runs:
        if not run.done:
            names.append(f'{run.row.slug}_seed_{run.seed}.sh')
            (folder / names[-1]).write_text('\n'.join(_job(run, devices, partition)) + '\n')
    submit = folder / 'submit.sh'
    submit.write_text(
        '\n'.join(['#!/usr/bin/env bash', *(f'sbatch {shlex.quote(str(folder / name))}' for name in names)]) + '\n'
    )
    submit.chmod(0o755)
    return submit


def _job(run: Run, devices: int, partition: str) -> Iterator[str]:
    """A preempted job saves itself when told, and asks for its place in the queue again."""
    yield '#!/usr/bin/env bash'
    yield f'#SBATCH --partition={partition} --job-name={run.row.slug}_{run.seed} --nodes=1 --ntasks=1'
    yield f'#SBATCH --gres=gpu:{devices} --cpus-per-task={8 * devices}'
    yield f'#SBATCH --output={run.folder.absolute()}/log.txt --open-mode=append'
    yield '#SBATCH --requeue --signal=B:USR1@120'
    yield f'cd {shlex.quote(os.getcwd())}'
    for command in commands(run, devices):
        yield f'{shlex.join(command)} & child=$!'
        yield "trap 'kill -USR1 $child' USR1; wait $child; code=$?; [[ $code -gt 128 ]] && { wait $child; code=$?; }"
        yield f'[[ $code -eq {REQUEUE} ]] && {{ scontrol requeue "$SLURM_JOB_ID"; exit; }}; [[ $code -eq 0 ]] || exit "$code"'
