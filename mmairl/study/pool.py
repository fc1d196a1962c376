"""Complete runs on this machine, several at a time."""

import os
import re
import socket
import sys
import time
from collections.abc import Sequence
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


def worker_command(run: Run, devices: int) -> list[str]:
    """Return the command that trains and measures a run. If it lacks only tasks of mmdet or mmseg, return theirs."""
    worker = ['-m', 'mmairl.study.worker', str(run.folder.absolute())]
    if run.missing and run.trained and not any(map(is_local, run.missing)):
        return [sys.executable, *worker, '--transfer', str(devices)]
    if devices > 1:
        return [*torchrun(devices), *worker, '--launcher', 'pytorch']
    return [sys.executable, *worker]


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


def complete_runs(runs: Sequence[Run], jobs: int | None = None, devices: int = 1) -> None:
    """Complete the unfinished runs, and report the start and the end of each.

    If a run fails, the failure is reported and the other runs continue. Runs that are stopped are resumed by the next call.

    Args:
        runs: All runs of the study.
        jobs: How many runs to execute at the same time. Default: as many as the GPUs suffice for or, without GPUs, the cores.
        devices: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
    """
    jobs = jobs or max(1, (torch.cuda.device_count() or cores()) // devices)
    waiting = unfinished(runs)
    before = done = len(runs) - len(waiting)
    print(f'{done} of {len(runs)} runs are finished')
    began = time.monotonic()
    shares = device_shares(min(jobs, len(waiting)), devices)
    active: list[ActiveRun] = []
    try:
        while waiting or active:
            for run in [run for run in waiting if run.ready][: len(shares)]:
                waiting.remove(run)
                active.append(ActiveRun(run, devices, shares.pop(0)))
                print(f'[{done}/{len(runs)}] {run.name}: running')
            # If no run is active, all waiting runs need the weights of a run that failed or was stopped.
            if not active:
                break
            time.sleep(POLL)
            for process in [process for process in active if process.code is not None]:
                active.remove(process)
                shares.append(process.share)
                if process.code == 0 and process.run.missing:
                    waiting.insert(0, process.run)
                    continue
                end = process.describe_end()
                done += end == 'done'
                if before < done < len(runs):
                    seconds = (time.monotonic() - began) / (done - before) * (len(runs) - done)
                    end += f', about {timedelta(seconds=round(seconds))} left'
                print(f'[{done}/{len(runs)}] {process.run.name}: {end}')
    finally:
        stop([process.process for process in active])


def device_shares(jobs: int, devices: int) -> list[dict[str, str]]:
    """Return the environment variables of each parallel run.

    They give each run its own part of the visible GPUs. On a machine without GPUs, they set the number of CPU threads.

    Args:
        jobs: The number of parallel runs.
        devices: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
    """
    if not torch.cuda.is_available():
        threads = os.environ.get('OMP_NUM_THREADS') or max(1, cores() // max(1, jobs * devices))
        return [{'OMP_NUM_THREADS': str(threads)} for _ in range(jobs)]
    visible = os.environ.get('CUDA_VISIBLE_DEVICES')  # a list of indices or of UUIDs
    names = visible.split(',') if visible else list(map(str, range(torch.cuda.device_count())))
    if jobs * devices > len(names):
        raise UserError(
            f'--jobs: {jobs} parallel runs with {devices} GPU(s) each require more GPUs than are visible ({len(names)}); '
            'reduce --jobs or --per-run',
            code='too-few-gpus',
        )
    starts = range(0, jobs * devices, devices)
    return [{'CUDA_VISIBLE_DEVICES': ','.join(names[at : at + devices])} for at in starts]


class ActiveRun:
    """A run in progress, whose output is appended to the run's log."""

    def __init__(self, run: Run, devices: int, share: dict[str, str]) -> None:
        self.run = run
        self.share = share
        self.log = run.folder / 'log.txt'
        with self.log.open('a') as log:
            self.log_start = log.tell()
            self.process = start(worker_command(run, devices), share, stdout=log, stderr=log)

    @property
    def code(self) -> int | None:
        """The exit code; None as long as the run is in progress."""
        return self.process.poll()

    def describe_end(self) -> str:
        """Return how the run ended, as text. If it failed, its last message is also written to failed.txt."""
        failed = self.run.folder / FAILED
        if self.code == 0:
            failed.unlink(missing_ok=True)
            return 'done'
        if self.code in STOPPED:
            return 'stopped'
        # The last error that this start of the run has printed, or its last line if it has printed no error.
        output = self.log.read_bytes()[self.log_start :].decode(errors='replace')
        lines = [line for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(LAST_WORDS, line)]
        message = (errors or lines or [f'exit code {self.code}'])[-1]
        write_text(failed, message)
        return f'failed: {message}'
