"""The runs of a study, with their folders and states."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from filelock import FileLock, Timeout

from mmairl.config import same_config
from mmairl.evaluation.sources import changed_sources
from mmairl.io import read_json, read_text, require_inside, write_json
from mmairl.study.schema import CHOICE, Asked, RunResult
from mmairl.study.search import FIRST
from mmairl.study.spec import Row
from mmairl.study.stale import stale_reason

# Matches the error that ended a run, and not the report that torchrun prints below it. Python and grep use the pattern.
LAST_WORDS = '^error: .|^[A-Za-z_.]+(Error|Exception): .'
CONFIG = 'the config'
FAILURES = ('failed_before.txt', 'failed.txt')  # last messages of the last two failed starts
LOG_TAIL = 5000  # bytes
# Files of a run that pages and the terminal show.
SHOWN = (*FAILURES, CHOICE, 'asked/config.yaml', 'asked.json', 'log.txt', 'result.json')


@dataclass(frozen=True, eq=False)
class Run:
    """A row from one seed, in its own folder.

    Args:
        row: The row.
        seed: The seed, or the number of the search.
        folder: The run's folder.
        tasks: The tasks to measure.
        needs: Folders of the runs whose weights or scores this run uses.
        part: 'compared'; in a search also 'published' or 'trial'.
        asked: The request to the worker.
        config: The config, as YAML.
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
        """The name for schedulers."""
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
        """Why the run's scores are stale; '' if they are current or there are none."""
        result = self.result
        if result is None:
            return ''
        return self.changed_since_start or stale_reason(self.folder, result, self.asked)

    @property
    def changed_since_start(self) -> str:
        """What has changed since the run started: its config, the source of a module that it imports, or nothing ('')."""
        config = self.folder / 'asked' / 'config.yaml'
        if self.config and config.is_file() and not same_config(read_text(config), self.config):
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
        """Whether a process on any node has locked the folder."""
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
    """Return the state of a run according to its folder, and a message, such as the last line of its log."""
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
    return timedelta(seconds=max(0, seconds))  # the clock of a node may be ahead


def require_own_files(runs: Sequence[Run], study: Path) -> None:
    """Raise if a file that a page would show is a link that leads out of the study's folder."""
    for run in runs:
        for name in SHOWN:
            if (run.folder / name).exists():
                require_inside(run.folder / name, study)


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are not done, and those that use their results, because the results may change."""
    selected: set[Run] = set()
    more = {run for run in runs if not run.done}
    while not more <= selected:
        selected |= more
        changing = {run.folder for run in selected}
        more = {run for run in runs if changing & set(run.needs)}
    return [run for run in runs if run in selected]


def settle_failed_trials(runs: Sequence[Run]) -> list[Run]:
    """Record trials that failed twice with the same error as the worst of their search, and return them.

    At least one trial of the search must have finished. If all trials fail, their settings are not the cause.
    """
    settled = {}
    for run in runs:
        is_open = run.part == 'trial' and run.result is None
        message = is_open and repeated_failure(run.folder)
        if message and _any_trial_finished(run.folder.parent):
            settled[run] = message
    # Results are written after the loop, because a settled trial must not count as finished for the others.
    for run, message in settled.items():
        labels = {task: task for task in run.tasks}
        result = RunResult(labels=labels, diverged=f'failed twice: {message}')
        write_json(run.folder / 'result.json', result)
    return list(settled)


def _any_trial_finished(search: Path) -> bool:
    """Return True if a trial of a search has a result. Folders that were set aside do not count."""
    return any(path.parent.name.isdecimal() for path in search.glob('*/result.json'))


def repeated_failure(folder: Path) -> str:
    """Return the last message of a run if its last two starts failed with the same error; else ''.

    Numbers in an error may differ, such as those of free memory. The last log line of a killed run must be the same.
    """
    before, last = (_text_of(folder / name) for name in FAILURES)
    varying = r'[\d.]+' if re.search(LAST_WORDS, last) else '$'
    return last if re.sub(varying, '', last) == re.sub(varying, '', before) else ''


def _text_of(path: Path) -> str:
    return read_text(path, errors='replace').strip() if path.is_file() else ''
