"""Complete runs on this machine, several at a time."""

import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch

from mmairl.errors import UserError
from mmairl.hardware import cores
from mmairl.io import write_text
from mmairl.signals import AGAIN, SIGNALS, start, stop
from mmairl.study.runs import FAILED, Run, unfinished
from mmairl.study.tasks import is_local

# This pattern matches the line of the error that ended a run, but no line of the report that torchrun prints below it. Both
# Python and grep use the pattern.
LAST_WORDS = '^error: .|^[A-Za-z_.]+(Error|Exception): .'
# The exit codes of runs that were stopped and can be resumed. A process that has just been started does not handle signals
# yet, so a signal kills it, and its exit code is the negative number of the signal.
STOPPED = (AGAIN, *(-number for number in SIGNALS))
POLL = 0.2  # the seconds between two checks of the active runs
Say = Callable[[str], None]


def commands(run: Run, devices: int) -> list[list[str]]:
    """Return the commands that complete a run, in order.

    The first command trains and measures the run. A second one follows if tasks train with mmdet or mmseg.
    """
    module = ['-m', 'mmairl.study.worker', str(run.folder.absolute())]
    steps = [[sys.executable, *module]]
    if devices > 1:
        steps = [[*torchrun(devices), *module, '--launcher', 'pytorch']]
    if not all(map(is_local, run.request.tasks)):
        steps.append([sys.executable, *module, '--transfer', str(devices)])
    return steps


def torchrun(processes: int) -> list[str]:
    """Return the command line of torchrun with a free port on the loopback, which no other machine can reach."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    return [
        sys.executable,
        *('-m', 'torch.distributed.run', f'--nproc-per-node={processes}'),
        *('--master-addr=127.0.0.1', '--local-addr=127.0.0.1', f'--master-port={port}'),
        '--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1',
    ]


def complete_runs(runs: Sequence[Run], jobs: int, devices: int, say: Say = print) -> None:
    """Complete the unfinished runs, and report the start and the end of each.

    If a run fails, the failure is reported and the other runs continue. Runs that are stopped are resumed by the next call.

    Args:
        runs: All runs of the study.
        jobs: How many runs to execute at the same time.
        devices: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
        say: A function that prints a line.
    """
    waiting = unfinished(runs)
    before = done = len(runs) - len(waiting)
    say(f'{done} of {len(runs)} runs are finished')
    began = time.monotonic()

    def report(run: Run, event: str) -> None:
        nonlocal done
        done += event == 'done'
        left = ''
        if before < done < len(runs):
            seconds = (time.monotonic() - began) / (done - before) * (len(runs) - done)
            left = f', about {timedelta(seconds=round(seconds))} left'
        say(f'[{done}/{len(runs)}] {run.name}: {event}{left}')

    shares = device_shares(jobs, devices, needed=min(jobs, len(waiting)))
    active: list[ActiveRun] = []
    try:
        while waiting or active:
            ready = [run for run in waiting if run.ready][: len(shares)]
            for run in ready:
                waiting.remove(run)
                active.append(ActiveRun(run, commands(run, devices), shares.pop(0)))
                report(run, 'running')
            # If no run is active, all waiting runs need the weights of a run that failed or was stopped.
            if not active:
                break
            for process in list(active):
                code = process.poll()
                if code is not None:
                    active.remove(process)
                    shares.append(process.share)
                    report(process.run, process.describe_end(code))
            time.sleep(POLL)
    finally:
        with suppress(OSError):  # Reports cannot be printed if the terminal has been closed.
            for process in active:
                report(process.run, 'stopping')
        stop([process.process for process in active])


def device_shares(jobs: int, devices: int, needed: int) -> list[dict[str, str]]:
    """Return the environment variables of each parallel run.

    They give each run its own part of the visible GPUs. On a machine without GPUs, they set the number of CPU threads.

    Args:
        jobs: The largest number of parallel runs.
        devices: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
        needed: The number of parallel runs for which there must be enough GPUs: `jobs`, or fewer if fewer runs are left.
    """
    if not torch.cuda.is_available():
        threads = os.environ.get('OMP_NUM_THREADS') or max(1, cores() // (jobs * devices))
        return [{'OMP_NUM_THREADS': str(threads)} for _ in range(jobs)]
    count = torch.cuda.device_count()
    if needed * devices > count:
        raise UserError(
            f'--jobs: {needed} parallel runs with {devices} GPU(s) each require more GPUs than are visible ({count}); '
            'reduce --jobs or --per-run',
            code='too-few-gpus',
        )
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')  # a list of indices or of UUIDs
    names = visible.split(',') if visible else list(map(str, range(count)))
    starts = range(0, min(jobs, count // devices) * devices, devices)
    return [{'CUDA_VISIBLE_DEVICES': ','.join(names[at : at + devices])} for at in starts]


class ActiveRun:
    """A run in progress. Its commands are executed one after another, and their output is appended to the run's log."""

    def __init__(self, run: Run, commands: Sequence[Sequence[str]], share: dict[str, str]) -> None:
        self.run = run
        self.share = share
        self.log = run.folder / 'log.txt'
        self.remaining = list(commands)
        self.log_start = self.log.stat().st_size if self.log.is_file() else 0
        self._start_next()

    def _start_next(self) -> None:
        with self.log.open('a+') as log:
            self.process = start(self.remaining.pop(0), self.share, stdout=log, stderr=log)

    def poll(self) -> int | None:
        """Return None while commands are running, and start the next command if the previous one has succeeded.

        At the end, return the exit code of the last command that was executed.
        """
        code = self.process.poll()
        if code == 0 and self.remaining:
            self._start_next()
            return None
        return code

    def describe_end(self, code: int) -> str:
        """Return how the run ended, as text. If it failed, its last message is also written to failed.txt."""
        failed = self.run.folder / FAILED
        if code == 0:
            failed.unlink(missing_ok=True)
            return 'done'
        if code in STOPPED:
            return 'stopped'
        message = self._last_message() or f'exit code {code}'
        write_text(failed, message)
        return f'failed: {message}'

    def _last_message(self) -> str:
        """Return the last error that this start of the run has printed, or its last line if it has printed no error."""
        output = self.log.read_bytes()[self.log_start :].decode(errors='replace')
        lines = [line for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(LAST_WORDS, line)]
        return (errors or lines or [''])[-1]
