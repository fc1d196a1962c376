"""Run jobs by priority in forked processes with time limits, and record every number as soon as it is known.

A visit is one run of the command `python -m projects.benchmark.gpu_visit`.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from projects.benchmark.gpu_visit.results import format_row, print_table, read_rows, write_page

# `Visit.run` keeps these files and folders of the scratch folder, so that later visits can reuse them, and deletes all others.
KEPT = (
    'site',
    'inductor',
    'images',
    'drawn',
)
ENDING = 5  # jobs are stopped when this many seconds remain
LEAST = 12  # no job is started when less than this many seconds remain
IMPORTS = 30  # extra seconds for a job that is not forked and has to import everything itself


@dataclass(frozen=True)
class Context:
    """The settings of a visit, for its jobs.

    Args:
        choice: The value of --device.
        out: The folder of results.
        scratch: A folder for temporary files.
        start: When the visit began, by the monotonic clock.
        patience: A factor by which all time limits are multiplied.
        job: The name of the current job.
    """

    choice: str
    out: Path
    scratch: Path
    start: float
    patience: float = 1
    job: str = 'visit'

    @property
    def device(self) -> str:
        return 'cpu' if self.choice == 'cpu' else 'cuda'

    @property
    def tiny(self) -> bool:
        """Whether this visit is a rehearsal at tiny sizes."""
        return self.choice != 'cuda'

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def record(self, **numbers: object) -> None:
        """Append a line to the results in a single write, so a kill can only cut off the last line."""
        row = dict(seconds=round(self.elapsed(), 1), job=self.job, **numbers)
        file = os.open(self.out / 'results.jsonl', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, (json.dumps(row) + '\n').encode())
        os.close(file)

    def named(self, job: str) -> 'Context':
        return Context(self.choice, self.out, self.scratch, self.start, self.patience, job)


@dataclass(frozen=True)
class Job:
    """A job of the visit.

    Args:
        name: The name, as used by --only.
        work: The function that does the job and records its numbers.
        limit: Seconds after which the job is killed.
        side: Whether the job may run at the same time as other jobs.
        quiet: Whether the job measures times and must therefore wait until all side jobs have ended.
        needs: The job that writes the files that this job reads.
    """

    name: str
    work: Callable[[Context], None]
    limit: float
    side: bool = False
    quiet: bool = False
    needs: str = ''


def choose(plan: Sequence[Job], done: set[str], only: Sequence[str] | None) -> list[Job]:
    """Return the jobs to run and the jobs that they need. The latter run again, because their earlier files may be gone."""
    names = {job.name for job in plan} - done
    if only is not None:
        names &= set(only)
    needed = {job.needs for job in plan if job.name in names}
    return [job for job in plan if job.name in names | needed]


def finished_jobs(results: Path) -> set[str]:
    return {row['job'] for row in read_rows(results) if row.get('status') == 0}


class Visit:
    """Start the jobs, show their numbers, and end all of them in time.

    Args:
        jobs: The jobs by priority.
        context: The settings of the visit.
        seconds: The time limit of the whole visit.
    """

    def __init__(self, jobs: list[Job], context: Context, seconds: float) -> None:
        self.jobs = jobs
        self.context = context
        self.seconds = seconds
        self.running: dict[int, tuple[Job, float]] = {}
        self.shown = 0
        self.forks = True  # False if CUDA does not start in a fork; jobs are then new processes

    def run(self) -> int:
        self.context.out.mkdir(parents=True, exist_ok=True)
        self.context.scratch.mkdir(parents=True, exist_ok=True)
        for old in self.context.scratch.iterdir():
            if old.name not in KEPT:
                shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()
        results = self.context.out / 'results.jsonl'
        if results.exists() and not results.read_bytes().endswith(b'\n'):
            with results.open('a') as file:
                file.write('\n')  # the last line of an earlier visit was cut off
        self.shown = results.stat().st_size if results.exists() else 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.finish('stopped by a signal'))
        import_everything()
        names = [job.name for job in self.jobs]
        self.context.record(event='imported', device=self.context.choice, jobs=names)
        for job in self.jobs:
            self.wait_for_turn(job)
            if self.left() < LEAST:
                return self.finish('out of time')
            self.start(job)
            if job.name == 'probe':
                self.check_forks(job)
        while self.running:
            self.poll()
        return self.finish('all jobs ended')

    def left(self) -> float:
        return self.seconds - self.context.elapsed()

    def wait_for_turn(self, job: Job) -> None:
        while self.left() >= LEAST:
            main = [running for running, _ in self.running.values() if not running.side]
            if job.side or (not main and not (job.quiet and self.running)):
                return
            self.poll()

    def start(self, job: Job) -> None:
        context = self.context.named(job.name)
        context.record(event='start')
        log = os.open(self.context.out / 'log.txt', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(log, f'\n===== {job.name} at {context.elapsed():.1f} s\n'.encode())
        if self.forks:
            pid = fork(lambda: run_logged(job, context, log))
        else:
            command = [sys.executable, '-m', 'projects.benchmark.gpu_visit', '--job', job.name]
            settings = ['--out', str(context.out), '--device', context.choice]
            pid = subprocess.Popen(
                [*command, *settings], stdout=log, stderr=log, start_new_session=True
            ).pid
        os.close(log)
        self.running[pid] = job, time.monotonic()

    def check_forks(self, probe: Job) -> None:
        """If CUDA did not start in the forked job `probe`, start this job again and all later jobs as new processes."""
        while self.running:
            self.poll()
        failed = not any(
            row['job'] == 'probe' and 'torch' in row
            for row in read_rows(self.context.out / 'results.jsonl')
        )
        if failed and self.forks:
            self.forks = False
            self.context.record(note='CUDA does not start in a fork; each job is a new process')
            self.start(probe)

    def poll(self) -> None:
        """Print new numbers, record jobs that have ended, and stop jobs that have reached their limit."""
        self.show()
        for pid, (job, start) in list(self.running.items()):
            seconds = time.monotonic() - start
            limit = (job.limit + (0 if self.forks else IMPORTS)) * self.context.patience
            late = seconds > limit or self.left() < ENDING
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and not late:
                continue
            kill(pid)  # stops the job, or processes that it left behind
            if ended:
                outcome = os.waitstatus_to_exitcode(status)
            else:
                os.waitpid(pid, 0)
                outcome = f'stopped after {seconds:.0f} s'
            del self.running[pid]
            self.context.named(job.name).record(status=outcome, took=round(seconds, 1))
        time.sleep(0.05)

    def show(self) -> None:
        results = self.context.out / 'results.jsonl'
        if not results.exists():
            return
        with results.open('rb') as file:
            file.seek(self.shown)
            text = file.read()
        complete = text[: text.rfind(b'\n') + 1]
        self.shown += len(complete)
        for line in complete.splitlines():
            print(format_row(json.loads(line)), flush=True)

    def finish(self, reason: str) -> int:
        """Stop all jobs, write the page, and print the table last, because often only the end of the output is kept."""
        for pid, (job, start) in self.running.items():
            kill(pid)
            seconds = time.monotonic() - start
            self.context.named(job.name).record(status=reason, took=round(seconds, 1))
        self.context.record(event='end', reason=reason)
        with suppress(
            Exception
        ):  # an error here, such as an import cut short by the signal, must not hide the table
            write_page(self.context.out)
        print_table(read_rows(self.context.out / 'results.jsonl'))
        sys.stdout.flush()
        os._exit(0)


def fork(work: Callable[[], int]) -> int:
    """Run `work` in a new process that is killed when this one ends. Return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent()
        if os.getppid() == parent:  # the parent may have ended before the previous line took effect
            code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG


def run_logged(job: Job, context: Context, log: int) -> int:
    os.setsid()  # a new process group, so the job can be killed together with its child processes
    os.dup2(log, 1)
    os.dup2(log, 2)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    return run_recorded(job, context)


def run_here(job: Job, context: Context) -> int:
    import_everything()
    return run_recorded(job, context.named(job.name))


def run_recorded(job: Job, context: Context) -> int:
    """Run a job and record its error, if any. Return the exit code."""
    try:
        with numbers_of(context):
            job.work(context)
    except BaseException as error:
        traceback.print_exc()
        places = [
            f'{Path(frame.filename).name}:{frame.lineno}'
            for frame in traceback.extract_tb(error.__traceback__)
        ]
        message = ' '.join(str(error).split())[:400]
        context.record(error=f'{type(error).__name__}: {message}', at=places[-4:])
        return 1
    return 0


def numbers_of(context: Context) -> AbstractContextManager:
    if context.choice != 'software':
        return nullcontext()
    import softgpu

    return softgpu.Numbers()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def import_everything() -> None:
    """Import the modules that jobs need. `Visit.run` calls this function once, before it forks the jobs."""
    import projects.benchmark.gpu_visit.plan  # noqa: F401  imports what the jobs need
    from mmairl.engine.run import register

    register()
