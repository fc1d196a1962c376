"""The runs of a study: laid out as folders, started beside each other, and never done twice."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config

from mmairl.configs import write_config
from mmairl.errors import REQUEUE, SIGNALS, UserError
from mmairl.files import write_json
from mmairl.machine import cores
from mmairl.study.spec import Row, Study
from mmairl.study.worker import is_local, outdated

GRACE = 120  # seconds to finish a step and save, as many as the Slurm jobs have
# Of a run that has failed; what torchrun says below it is left out. Python's and grep's patterns in one.
LAST_WORDS = '^error: .|^[A-Za-z_.]+(Error|Exception): .'
# A run that does not listen for a signal yet ends by it.
STOPPED = (REQUEUE, *(-number for number in SIGNALS))
SETPRIV = ('setpriv', '--pdeathsig', 'TERM', '--')


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
    def result(self) -> dict[str, Any]:
        path = self.folder / 'result.json'
        return json.loads(path.read_text()) if path.is_file() else {}

    @property
    def done(self) -> bool:
        return set(self.tasks) <= set(self.result.get('labels', ())) and not outdated(self.folder, self.result)


def status(run: Run) -> tuple[str, str]:
    """What a run does, by its folder alone, and what its log said last; a node that holds its lock is at work on it."""
    if run.done:
        return 'done', ''
    log = run.folder / 'log.txt'
    text = log.read_text(errors='replace')[-5000:] if log.is_file() else ''
    said = (text.strip().splitlines() or [''])[-1]
    lock = FileLock(run.folder / '.lock_0', timeout=0)
    try:
        with lock if (run.folder / '.lock_0').is_file() else nullcontext():
            pass
    except Timeout:
        seconds = max(0, round(time.time() - log.stat().st_mtime)) if said else 0  # a node's clock may be ahead
        return 'running', f'{said} ({timedelta(seconds=seconds)} ago)' if said else ''
    failed = run.folder / 'failed.txt'
    if failed.is_file():
        return 'failed', failed.read_text().strip()
    return ('stopped', said) if said else ('waiting' if run.needs and not run.ready else 'not begun', '')


def lay_out(
    study: Study, configs: dict[str, Config], seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Every run's folder with its resolved config, as data, and what is asked of it; seeds outermost, to see rows early.

    The config lies in a folder of its own, since mmengine writes the one that it runs into the work dir under the same name.
    """
    runs = []
    for seed in seeds:
        folders = {row.name: out / 'runs' / row.slug / f'seed_{seed}' for row in study.rows}
        for row in study.rows:
            folder, asked = folders[row.name], dict(seed=seed, tasks=list(tasks))
            needs = {key: folders[name] for key, name in row.others.items()}
            for way in ('rescaled', 'along'):
                if made := getattr(row, way):
                    asked[way] = {**made, **{key: str(path.absolute()) for key, path in needs.items()}}
            (folder / 'asked').mkdir(parents=True, exist_ok=True)
            new, config = folder / 'asked' / '.config.yaml', folder / 'asked' / 'config.yaml'
            write_config(configs[row.name], new)
            if config.is_file() and config.read_text() != new.read_text():
                raise UserError(
                    f'{folder} was begun with another config; give --out another folder, or remove this one to begin it anew'
                )
            os.replace(new, config)
            write_json(folder / 'asked.json', asked)
            runs.append(Run(row, seed, folder, tuple(tasks), tuple(needs.values())))
    return runs


def commands(run: Run, devices: int) -> list[list[str]]:
    """What trains and measures a run, and what transfers it."""
    worker = [sys.executable, '-m', 'mmairl.study.worker', str(run.folder.absolute())]
    first = worker
    if devices > 1:
        torchrun = [sys.executable, '-m', 'mmairl.engine.torchrun', f'--nproc_per_node={devices}']
        workers = ending_with_parent([*worker, '--launcher', 'pytorch'])
        first = [*torchrun, '--max-restarts=3', '--no-python', *workers]
    local = all(is_local(task) for task in run.tasks)
    return [first] if local else [first, [*worker, '--transfer', str(devices)]]


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """The command, to be sent SIGTERM by the kernel when the process that starts it ends, however it ends: it saves and leaves.

    A study that is killed cannot signal its runs, which are in sessions of their own. Where there is no setpriv, of util-linux
    2.33 or later, the run goes on to its end, and its lock keeps others off it.
    """
    return [*(SETPRIV if _has_setpriv() else ()), *command]


@cache
def _has_setpriv() -> bool:
    try:
        return subprocess.run([*SETPRIV, 'true'], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def execute(runs: Sequence[Run], jobs: int, devices: int, report: Callable[[Run, str], None]) -> None:
    """Start what is not done, `jobs` at a time on `devices` GPUs each; what fails is reported and the rest goes on.

    A run that was stopped is left as it is: the next call goes on with it.
    """
    waiting, active = [run for run in runs if not run.done], []
    shares = _shares(jobs, devices, needed=min(jobs, len(waiting)))
    try:
        while waiting or active:
            for run in [run for run in waiting if run.ready][: len(shares)]:
                waiting.remove(run)
                active.append(Work(run, commands(run, devices), shares.pop(0)))
                report(run, 'running')
            for work in list(active):
                if (code := work.poll()) is not None:
                    active.remove(work)
                    shares.append(work.share)
                    report(work.run, work.ended(code))
            if not active and not any(run.ready for run in waiting):
                break  # what is left needs a run that has failed
            time.sleep(0.2)
    finally:
        _stop(active, report)


def _shares(jobs: int, devices: int, needed: int) -> list[dict[str, str]]:
    """For each of the runs beside each other: which GPUs, of those that are this process's to use, or how many cores."""
    if not torch.cuda.is_available():
        return [{'OMP_NUM_THREADS': str(max(1, cores() // (jobs * devices)))} for _ in range(jobs)]
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
    """A run in progress, on its share of the machine: its commands one after the other, with their output in its log.

    Each is in a session of its own, where a Ctrl-C does not reach it: that would end it unsaved.
    """

    def __init__(self, run: Run, commands: Sequence[Sequence[str]], share: dict[str, str]) -> None:
        self.run, self.share = run, share
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join([package, os.environ.get('PYTHONPATH', '')])
        self.environment = {**os.environ, 'PYTHONPATH': path, **share}
        self.log, self.left = run.folder / 'log.txt', list(commands)
        self.begins = self.log.stat().st_size if self.log.is_file() else 0
        self._next()

    def _next(self) -> None:
        command = ending_with_parent(self.left.pop(0))
        with self.log.open('a') as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def poll(self) -> int | None:
        """The exit code of the last command, or of the one that failed; None as long as there is something to do."""
        code = self.process.poll()
        if code == 0 and self.left:
            self._next()
            return None
        return code

    def ended(self, code: int) -> str:
        """What a run's end is called; one that failed leaves its last words, of this start, in failed.txt."""
        failed = self.run.folder / 'failed.txt'
        if code == 0:
            failed.unlink(missing_ok=True)
            return 'done'
        if code in STOPPED:
            return 'stopped'
        output = self.log.read_bytes()[self.begins :].decode(errors='replace')
        lines = [line for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(LAST_WORDS, line)]
        failed.write_text((errors or lines or [f'exit code {code}'])[-1])
        return f'failed: {failed.read_text()}'


def _stop(active: Sequence[Work], report: Callable[[Run, str], None]) -> None:
    """Each finishes its step, saves, and leaves; one that has not left by then is killed with all that it has started.

    Only the process that was started here is signalled, and passes it on: a second signal makes torchrun kill its workers.
    """
    for work in active:
        work.process.terminate()
    deadline = time.monotonic() + GRACE
    for work in active:
        report(work.run, 'stopping')
    for work in active:
        try:
            work.process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(work.process.pid, signal.SIGKILL)
            work.process.wait()
