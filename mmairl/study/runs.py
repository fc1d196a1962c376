"""The runs of a study: their folders, their states, and which of them must be completed.

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with different options.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from filelock import FileLock, Timeout

from mmairl.evaluation.sources import changed_sources
from mmairl.io import read_json, read_text, write_json
from mmairl.study.schema import Asked, RunResult
from mmairl.study.search import FIRST
from mmairl.study.spec import Row
from mmairl.study.stale import stale_reason

# This pattern matches the line of the error that ended a run, but no line of the report that torchrun prints below it. Both
# Python and grep use the pattern.
LAST_WORDS = '^error: .|^[A-Za-z_.]+(Error|Exception): .'
CONFIG = 'the config'
# The files with the last messages of a run's last two failed starts. The earlier start comes first.
FAILURES = ('failed_before.txt', 'failed.txt')
LOG_TAIL = 5000  # the number of bytes at the end of a log that are searched for its last line
# The files of a run whose contents are shown on pages and in the terminal.


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a study. A run trains or creates the weights of a row from one seed, and has a folder of its own.

    Args:
        row: The row.
        seed: The seed. For a trained row of a study with a search, it is the index of the search, plus FIRST for a trial.
        folder: The run's folder.
        tasks: The tasks that measure the run.
        needs: The folders of the runs whose weights or scores this run uses.
        part: The role of the run. It is 'compared' if the study page compares the run with others. A search also has runs
            with the row's own options ('published') and trials ('trial').
        asked: The request to the worker that trains and measures the run.
        config: The config as YAML.
    """

    row: Row
    seed: int
    folder: Path
    tasks: tuple[str, ...]
    needs: tuple[Path, ...] = ()
    part: str = 'compared'
    asked: Asked = field(default_factory=lambda: Asked(0))
    config: str = ''

    @property
    def name(self) -> str:
        if self.part == 'trial':
            return f'{self.row.name}, search {self.seed - FIRST}, trial {self.folder.name}'
        published = ' as published' if self.part == 'published' else ''
        return f'{self.row.name}, seed {self.seed}{published}'

    @property
    def slug(self) -> str:
        """The name of the run without spaces, for job schedulers such as Slurm."""
        part = {'trial': f'_trial_{self.folder.name}', 'published': '_published'}.get(self.part, '')
        return f'{self.row.slug}_seed_{self.seed}{part}'

    @property
    def ready(self) -> bool:
        return all((folder / 'result.json').is_file() for folder in self.needs)

    @property
    def result(self) -> RunResult | None:
        path = self.folder / 'result.json'
        return read_json(path, RunResult) if path.is_file() else None

    @property
    def done(self) -> bool:
        result = self.result
        if result is None:
            return False
        return set(self.tasks) <= result.labels.keys() and not self.stale_reason

    @property
    def stale_reason(self) -> str:
        """The reason why the run's scores are out of date; '' if no change is known, or if there are no scores."""
        result = self.result
        if result is None:
            return ''
        return self.changed_since_start or stale_reason(self.folder, result, self.asked)

    @property
    def changed_since_start(self) -> str:
        """What has changed since the run was started: its config or the source code of a module that it imports.

        The text is '' if nothing has changed.
        """
        config = self.folder / 'asked' / 'config.yaml'
        if self.config and config.is_file() and read_text(config) != self.config:
            return CONFIG
        path = self.folder / 'asked.json'
        if not path.is_file():
            return ''
        begun = read_json(path, Asked)
        if begun.trains != self.asked.trains or _fork_epoch(begun) != _fork_epoch(self.asked):
            return CONFIG
        return changed_sources(begun.sources, self.asked.sources)

    @property
    def is_running(self) -> bool:
        """True if a process on any node has locked the run's folder."""
        lock = self.folder / '.lock_0'
        if lock.is_symlink() or not lock.is_file():
            return False
        try:
            with FileLock(lock, timeout=0):
                return False
        except Timeout:
            return True


def _fork_epoch(asked: Asked) -> int:
    return asked.fork.epoch if asked.fork else 0


def status(run: Run) -> tuple[str, str]:
    """Return the state of a run according to its files, and a message such as the last line of its log."""
    if run.done:
        return 'done', ''
    line = _last_line(run)
    if run.is_running:
        return 'running', f'{line} ({_log_age(run)} ago)' if line else ''
    failed = run.folder / 'failed.txt'
    if failed.is_file():
        return 'failed', _text_of(failed)
    if changed := run.changed_since_start or run.stale_reason:
        return 'stale', changed
    if run.result is not None:
        return 'not measured', ', '.join(sorted(set(run.tasks) - run.result.labels.keys()))
    if line:
        return 'stopped', line
    return ('waiting' if run.needs and not run.ready else 'not begun'), ''


def _last_line(run: Run) -> str:
    log = run.folder / 'log.txt'
    if not log.is_file():
        return ''
    with log.open('rb') as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL))
        text = file.read(LOG_TAIL).decode(errors='replace').strip()
    return text.rpartition('\n')[2]


def _log_age(run: Run) -> timedelta:
    seconds = round(time.time() - (run.folder / 'log.txt').stat().st_mtime)
    # The age of the log would be negative if the clock of the run's node is ahead of this machine's clock.
    return timedelta(seconds=max(0, seconds))


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are not done, and all runs that use their results.

    A run that uses the results of an unfinished run must be completed again, because these results may change.
    """
    selected: set[Run] = set()
    more = {run for run in runs if not run.done}
    while not more <= selected:
        selected |= more
        changing = {run.folder for run in selected}
        more = {run for run in runs if changing & set(run.needs)}
    return [run for run in runs if run in selected]


def settle_failed_trials(runs: Sequence[Run]) -> list[Run]:
    """Let trials that failed twice with the same error count as the worst of their search, and return these trials.

    This happens only if at least one trial of the search has finished. If all trials fail, the cause is probably not in
    their options.
    """
    settled = {}
    for run in runs:
        is_open = run.part == 'trial' and run.result is None
        message = is_open and repeated_failure(run.folder)
        if message and _any_trial_finished(run.folder.parent):
            settled[run] = message
    # Results are written only after the loop above, which counts every trial with a result as finished.
    for run, message in settled.items():
        labels = {task: task for task in run.tasks}
        result = RunResult(labels=labels, diverged=f'failed twice: {message}')
        write_json(run.folder / 'result.json', result)
    return list(settled)


def _any_trial_finished(search: Path) -> bool:
    """Return True if a trial in the search's folder has a result. Results that were moved to another folder do not count."""
    return any(path.parent.name.isdecimal() for path in search.glob('*/result.json'))


def repeated_failure(folder: Path) -> str:
    """Return the last message of a run if its last two failed starts ended with the same error; else ''.

    Two errors are the same even if numbers in them differ, such as the size of free memory. If a start was killed, its
    message is the last line of its log. Such messages are the same only if their numbers are also equal.
    """
    before, last = (_text_of(folder / name) for name in FAILURES)
    varying = r'[\d.]+' if re.search(LAST_WORDS, last) else '$'
    return last if re.sub(varying, '', last) == re.sub(varying, '', before) else ''


def _text_of(path: Path) -> str:
    return read_text(path).strip() if path.is_file() else ''
