"""The runs of a study: laid out as folders, started beside each other or as Slurm jobs, and never done twice."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config

from mmairl.configs import write_config
from mmairl.engine.preemption import REQUEUE, SIGNALS
from mmairl.errors import UserError
from mmairl.files import replacing
from mmairl.study.spec import Row, Study
from mmairl.study.stopping import end_with_the_parent
from mmairl.study.worker import is_local

PASSED_ON = '--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1'
GRACE = 120  # seconds to finish a step and save, as many as the Slurm jobs have
# A signal's own number is the code while nobody listens, as between training and the last score.
STOPPED = (REQUEUE, *(-number for number in SIGNALS))
# torchrun leaves with 1 whatever its workers left with, and says which signal it had, or which code was the first.
TORCHRUN_STOPPED = re.compile(rf'SignalException: Process \d+ got signal|Root Cause[^=]*exitcode +: {REQUEUE} ')
# `wait` returns early when the trap has run, so it is asked again until the child is gone; bash keeps its code. A signal that
# comes before there is a child, before its number is known, or between two of them, is heeded, too. torchrun's code says
# nothing: being told does.
JOB = f"""\
trap 'told=1; pass' USR1
pass() {{ [[ -z $told || -z $child || -n $passed ]] || {{ passed=1; kill -USR1 $child 2>/dev/null; }}; }}
again() {{ scontrol requeue "$SLURM_JOB_ID"; exit; }}
run() {{
    [[ -z $told ]] || again
    "$@" & child=$!; pass
    while kill -0 $child 2>/dev/null; do wait $child; done
    wait $child; code=$?; child=
    [[ $code -ne {REQUEUE} && ( -z $told || $code -eq 0 ) ]] || again
    [[ $code -eq 0 ]] || exit "$code"
}}
child= told= passed="""


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


def commands(run: Run, devices: int) -> list[list[str]]:
    """What trains and measures a run, and what transfers it. torchrun would die of a signal that it is not told to pass on."""
    worker = ['-m', 'mmairl.study.worker', str(run.folder)]
    several = [
        '-m',
        'torch.distributed.run',
        '--standalone',
        f'--nproc_per_node={devices}',
        '--max-restarts=3',
        PASSED_ON,
    ]
    first = [sys.executable, *worker] if devices == 1 else [sys.executable, *several, *worker, '--launcher', 'pytorch']
    if all(is_local(task) for task in run.tasks):
        return [first]
    return [first, [sys.executable, *worker, '--transfer', str(devices)]]


def execute(runs: Sequence[Run], jobs: int, devices: int, told: Callable[[Run, str], None]) -> None:
    """Start what is not done, `jobs` at a time on `devices` GPUs each; what fails is told and the rest goes on.

    A run that was told to stop is left as it is: the next call goes on with it.
    """
    waiting, active = [run for run in runs if not run.done], {}
    shares = _shares(jobs, devices, needed=min(jobs, len(waiting)))
    try:
        while waiting or active:
            for run in [run for run in waiting if run.ready][: len(shares)]:
                waiting.remove(run)
                share = shares.pop(0)
                active[run] = share, Work(run.folder, commands(run, devices), share)
                told(run, 'running')
            for run, (share, work) in list(active.items()):
                if (code := work.poll()) is not None:
                    del active[run]
                    shares.append(share)
                    told(run, _ended(run, work, code))
            if not active and not any(run.ready for run in waiting):
                break  # what is left needs a run that has failed
            time.sleep(0.2)
    finally:
        _stop({run: work.process for run, (_, work) in active.items()}, told)


def _shares(jobs: int, devices: int, needed: int) -> list[dict[str, str]]:
    """For each of the runs beside each other: which GPUs, of those that are this process's to use, or how many cores."""
    if not torch.cuda.is_available():
        return [{'OMP_NUM_THREADS': str(max(1, (os.cpu_count() or 1) // (jobs * devices)))} for _ in range(jobs)]
    count = torch.cuda.device_count()
    if needed * devices > count:
        raise UserError(
            f'{needed} run(s) beside each other on {devices} GPU(s) each, and there are {count}; give fewer --jobs or --per-run'
        )
    listed = os.environ.get('CUDA_VISIBLE_DEVICES')  # by number or name, where they are not all of the machine's
    own = listed.split(',') if listed else list(map(str, range(count)))
    slots = range(0, min(jobs, count // devices) * devices, devices)
    return [{'CUDA_VISIBLE_DEVICES': ','.join(own[slot : slot + devices])} for slot in slots]


class Work:
    """A run under way: its commands one after the other, said into its log.

    Each is in a session of its own, where a Ctrl-C does not reach it: that would end it unsaved.
    """

    def __init__(self, folder: Path, commands: Sequence[Sequence[str]], share: dict[str, str]) -> None:
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join([package, os.environ.get('PYTHONPATH', '')])
        self.environment = {**os.environ, 'PYTHONPATH': path, **share}
        self.log, self.left = folder / 'log.txt', list(commands)
        self.begins = self.log.stat().st_size if self.log.is_file() else 0
        self._next()

    def _next(self) -> None:
        with self.log.open('a') as log:
            self.process = subprocess.Popen(
                self.left.pop(0),
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_the_parent,  # a study that is killed can tell its runs nothing
            )

    def poll(self) -> int | None:
        """The code of the last command, or of the one that failed; None as long as there is something to do."""
        code = self.process.poll()
        if code == 0 and self.left:
            self._next()
            return None
        return code

    @property
    def said(self) -> str:
        """What this start of the run has added to the log."""
        with self.log.open('rb') as log:
            log.seek(self.begins)
            return log.read().decode(errors='replace')


def _stop(processes: dict[Run, subprocess.Popen], told: Callable[[Run, str], None]) -> None:
    """Each finishes its step, saves, and leaves; what has not left by then is ended with all that it has started.

    The signal is for the one process that was started here, which tells its own: torchrun takes a second one amiss.
    """
    for process in processes.values():
        process.terminate()
    deadline = time.monotonic() + GRACE
    for run in processes:
        told(run, 'told to stop')
    for process in processes.values():
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ended(run: Run, work: Work, code: int) -> str:
    failed = run.folder / 'failed.txt'
    if code == 0:
        failed.unlink(missing_ok=True)
        return 'done'
    if code in STOPPED or TORCHRUN_STOPPED.search(work.said):
        return 'stopped'
    lines = [line for line in work.said.splitlines() if line.strip()]
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
    yield JOB
    for command in commands(run, devices):
        yield f'run {shlex.join(command)}'
