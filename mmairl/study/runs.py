"""The runs of a study: laid out as folders, started beside each other, and never done twice."""

import copy
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from msgspec.structs import replace

from mmairl.config import config_text
from mmairl.errors import UserError
from mmairl.evaluation.protocol import is_protocol, protocol_class
from mmairl.evaluation.sets import SPLITS, held_out
from mmairl.evaluation.sources import changed_sources, outside_sources
from mmairl.hardware import cores
from mmairl.io import appending, read_json, read_text, write_json, write_text
from mmairl.registry import PROTOCOLS
from mmairl.signals import AGAIN, SIGNALS, start, stop
from mmairl.study.external import require_networks, stated_factors, whole_path
from mmairl.study.measure import forget, is_local, measures, outdated, protocol_name, recipe
from mmairl.study.schema import Asked, Chosen, Result
from mmairl.study.search import FIRST, Search, Tune, trial_options
from mmairl.study.spec import Row, Study
from mmairl.study.trials import trial_counts
from mmairl.transfer.tasks import require_platform

# Of a run that has failed; what torchrun says below it is left out. Python's and grep's patterns in one.
LAST_WORDS = '^error: .|^[A-Za-z_.]+(Error|Exception): .'
CONFIG = 'the config'
FAILURES = ('failed_before.txt', 'failed.txt')  # the last words of the last two starts that failed
# A run that does not listen for a signal yet ends by it.
STOPPED = (AGAIN, *(-number for number in SIGNALS))


@dataclass(frozen=True, eq=False)
class Run:
    """A row from one seed, in a folder of its own."""

    row: Row
    seed: int
    folder: Path
    tasks: tuple[str, ...]
    needs: tuple[Path, ...] = ()  # folders of the runs whose weights, or whose choice, it takes
    part: str = 'compared'  # or, in a search: 'published', 'trial'
    asked: Asked = field(default_factory=lambda: Asked(0))
    config: str = ''  # as YAML

    @property
    def name(self) -> str:
        if self.part == 'trial':
            return f'{self.row.name}, search {self.seed - FIRST}, trial {self.folder.name}'
        return f'{self.row.name}, seed {self.seed}{" as published" if self.part == "published" else ""}'

    @property
    def slug(self) -> str:
        """A name for schedulers."""
        part = {'trial': f'_trial_{self.folder.name}', 'published': '_published'}.get(self.part, '')
        return f'{self.row.slug}_seed_{self.seed}{part}'

    @property
    def ready(self) -> bool:
        return all((folder / 'result.json').is_file() for folder in self.needs)

    @property
    def result(self) -> Result | None:
        path = self.folder / 'result.json'
        return read_json(path, Result) if path.is_file() else None

    @property
    def done(self) -> bool:
        result = self.result
        return result is not None and set(self.tasks) <= result.labels.keys() and not self.outdated

    @property
    def outdated(self) -> str:
        """Name what the run's scores depend on and has changed; '' where nothing has, and for a run without scores."""
        if self.result is None:
            return ''
        return self.begun_otherwise or outdated(self.folder, self.result, self.asked)

    @property
    def begun_otherwise(self) -> str:
        """Name what the folder was begun with and has changed: the config, or the source of modules that it imports."""
        config, asked = self.folder / 'asked' / 'config.yaml', self.folder / 'asked.json'
        if self.config and config.is_file() and read_text(config) != self.config:
            return CONFIG
        if not asked.is_file():
            return ''
        begun = read_json(asked, Asked)
        if begun.trains != self.asked.trains:
            return CONFIG
        return changed_sources(begun.sources, self.asked.sources)

    @property
    def is_running(self) -> bool:
        """Whether a process, on whatever node, holds the lock of the folder."""
        lock = self.folder / '.lock_0'
        try:
            with FileLock(lock, timeout=0) if lock.is_file() else nullcontext():
                return False
        except Timeout:
            return True


def status(run: Run) -> tuple[str, str]:
    """Return what a run does, by its folder alone, and the last line of its log; a node that holds its lock works on it."""
    if run.done:
        return 'done', ''
    log = run.folder / 'log.txt'
    text = log.read_text(errors='replace')[-5000:] if log.is_file() else ''
    said = (text.strip().splitlines() or [''])[-1]
    if run.is_running:
        seconds = max(0, round(time.time() - log.stat().st_mtime)) if said else 0  # a node's clock may be ahead
        return 'running', f'{said} ({timedelta(seconds=seconds)} ago)' if said else ''
    failed = run.folder / 'failed.txt'
    if failed.is_file():
        return 'failed', read_text(failed).strip()
    if changed := run.begun_otherwise or run.outdated:
        return 'stale', changed
    if run.result is not None:
        return 'not measured', ', '.join(sorted(set(run.tasks) - run.result.labels.keys()))
    return ('stopped', said) if said else ('waiting' if run.needs and not run.ready else 'not begun', '')


def plan_runs(
    study: Study, configs: dict[str, Config], seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Return the runs, seeds outermost, to see rows early."""
    if study.search:
        return list(_plan_search(study, configs, seeds, tuple(tasks), out))
    return [run for seed in seeds for run in _of_seed(study, configs, seed, tuple(tasks), out / 'runs')]


def lay_out(*planned: Any) -> list[Run]:
    """Lay the config of each run that is planned, as data, and what is asked of it into its folder.

    The config lies in a folder of its own, since mmengine writes the one that it runs into the work dir under the same name.
    """
    study, configs, *_ = planned
    require_networks(study.rows, configs)
    runs = plan_runs(*planned)
    changes = {run: run.begun_otherwise for run in runs}
    if other := next((run for run, change in changes.items() if change == CONFIG), None):
        raise UserError(
            f'{other.folder} was begun with another config; give --out another folder, or remove this one to begin it anew'
        )
    for run, change in changes.items():
        if change:
            set_aside(run, change)
        write_text(run.folder / 'asked' / 'config.yaml', run.config)
        write_json(run.folder / 'asked.json', _with_known_sources(run))
    settle_failed_trials(runs)
    return runs


def set_aside(run: Run, change: str) -> None:
    """Rename the folder of a run that was trained by other source code, so that it is trained again and nothing is lost."""
    if run.is_running:
        raise UserError(
            f'{run.name} is running, and {change} has changed; stop it, or wait for its end, and start the study again',
            code='source-changed-while-running',
        )
    number = next(number for number in itertools.count(1) if not _aside(run, number).exists())
    run.folder.rename(_aside(run, number))
    print(f'{run.name}: {change} has changed; the earlier run is kept in {_aside(run, number)}', file=sys.stderr)


def _aside(run: Run, number: int) -> Path:
    return run.folder.with_name(f'{run.folder.name}_set_aside_{number}')


def _with_known_sources(run: Run) -> Asked:
    """Return what is asked of a run; one that was begun by an earlier version keeps that its sources are unknown."""
    path = run.folder / 'asked.json'
    begun = path.is_file() and (run.folder / 'last_checkpoint').is_file()
    return replace(run.asked, sources=read_json(path, Asked).sources) if begun else run.asked


def measure_again(runs: Sequence[Run]) -> None:
    """Remove the scores of finished runs; trained weights are kept."""
    if busy := next((run for run in runs if run.is_running), None):
        raise UserError(f'--remeasure: {busy.name} is running; wait for its end, or stop it', code='remeasure-running')
    for run in runs:
        (run.folder / 'result.json').unlink(missing_ok=True)
        for task in run.tasks:
            forget(run.folder, task)


def settle_failed_trials(runs: Sequence[Run]) -> list[Run]:
    """Let trials that failed twice alike count as the worst of their search, and return them.

    Only where another trial of that search has finished: if all of them fail, the cause is not in their settings.
    """
    settled = []
    for run in runs:
        words = failed_twice(run.folder) if run.part == 'trial' and run.result is None else ''
        if words and list(run.folder.parent.glob('*/result.json')):
            labels = {task: task for task in run.tasks}
            settled.append((run, Result(labels=labels, diverged=f'failed twice: {words}')))
    for run, result in settled:  # after all are known: one that counts as the worst has not finished
        write_json(run.folder / 'result.json', result)
    return [run for run, _ in settled]


def failed_twice(folder: Path) -> str:
    """Return the last words of a run whose last two starts failed with the same error, numbers in it aside; else ''."""
    before, last = (path.read_text().strip() if path.is_file() else '' for path in map(folder.joinpath, FAILURES))
    if not re.search(LAST_WORDS, last):  # a line of its log, where it was killed
        return last if last == before else ''
    return last if re.sub(r'[\d.]+', '', last) == re.sub(r'[\d.]+', '', before) else ''


def _of_seed(
    study: Study,
    configs: Mapping[str, Config],
    seed: int,
    tasks: tuple[str, ...],
    out: Path,
    part: str = 'compared',
    trials: Mapping[str, Sequence[Run]] | None = None,
) -> Iterator[Run]:
    """Yield the runs of all rows from one seed, by the best of each row's `trials` where there are any."""
    folders = {row.name: out / row.slug / f'seed_{seed}' for row in study.rows}
    tuned = {task: tune for task, tune in study.tune.items() if task in tasks}

    def trials_of(row: Row, number: int) -> dict[str, tuple[dict[str, Any], ...]]:
        return {task: _of_recipe(tune, row, configs[row.name], task, number) for task, tune in tuned.items()}

    for row in study.rows:
        if (row.untrained or row.weights) and (seed != min(study.seeds) or part != 'compared'):
            continue  # one run of it is enough, and seeds from elsewhere are their own
        for number in row.weights:
            folder, given = out / row.slug / f'seed_{number}', whole_path(row, number)
            asked = Asked(number, tasks, given=given, stated=stated_factors(row), tuned=trials_of(row, number))
            yield Run(row, number, folder, tasks, (), part, asked, config_text(configs[row.name]))
        if row.weights:
            continue
        needs = {key: folders[name] for key, name in row.others.items()}
        absolute = {key: str(path.absolute()) for key, path in needs.items()}
        asked: dict[str, Any] = dict(untrained=row.untrained)
        asked |= {way: replace(source, **absolute) for way in ('rescaled', 'along') if (source := getattr(row, way))}
        if tried := [run.folder for run in (trials or {}).get(row.name, ())]:
            published = folders[row.name].parents[2] / 'runs' / row.slug / f'seed_{seed}'
            paths = tuple(str(folder.absolute()) for folder in tried)
            asked['chosen'] = Chosen(paths, study.search.criterion, str(published.absolute()))
        asked['tuned'] = trials_of(row, seed)
        asked['sources'] = outside_sources(configs[row.name]) if row.trains else None
        own = tuple(task for task in tasks if measures(row.untrained, task))
        asked, needed = Asked(seed, own, **asked), (*needs.values(), *tried)
        yield Run(row, seed, folders[row.name], own, needed, part, asked, config_text(configs[row.name]))


def _of_recipe(tune: Tune, row: Row, cfg: Config, task: str, number: int) -> tuple[dict[str, Any], ...]:
    """Return the trials of a task's recipe: the same relative points for every row."""
    if not is_local(task):
        require_platform([task])
    own = recipe(cfg, task)
    trains = is_local(task) and protocol_class(protocol_name(task)).trains
    if not trains and 'held_out' not in own:
        known = ', '.join(name for name in PROTOCOLS.names() if protocol_class(name).trains)
        raise UserError(
            f'`tune` is for {known}, and tasks whose config has `held_out` images to choose by, and not '
            f"for '{task}'; leave it out"
        )
    return tuple(trial_options(tune, row, own, number, tune.trials))


def _plan_search(
    study: Study, configs: dict[str, Config], searches: Sequence[int], tasks: tuple[str, ...], out: Path
) -> Iterator[Run]:
    """Yield the rows as published, the trials of each search, and its winners, which are compared.

    A winner's seed is its search's number, so that a study which was begun without a search keeps its runs as published.
    """
    counts = trial_counts(study, configs)
    searched = [row for row in study.rows if row.trains]
    for number in searches:
        yield from _of_seed(study, configs, number, tasks, out / 'runs', 'published')
        trials = {
            row.name: list(_trials(study.search, row, configs[row.name], number, counts[row.name], out))
            for row in searched
        }
        # A trial of every row before the second of any, so that a search that is cut off has tried all rows alike.
        yield from (trial for turn in zip_longest(*trials.values()) for trial in turn if trial)
        yield from _of_seed(study, configs, number, tasks, out / 'tuned', 'compared', trials)


def _trials(search: Search, row: Row, cfg: Config, number: int, count: int, out: Path) -> Iterator[Run]:
    """Yield the trials of a row in one search, measured on images that are held out of the training labels."""
    splits = {key: value for key, value in cfg.to_dict()['evaluation'].items() if key in SPLITS}
    for trial, options in enumerate(trial_options(search, row, cfg, number, count)):
        changed = copy.deepcopy(cfg)
        changed.merge_from_dict(options)
        fit, held = held_out(cfg.evaluation)
        others = {key: value for key, value in cfg.evaluation.items() if key != 'val'}
        changed.evaluation = dict(others, train=fit, test=held)
        folder = out / 'trials' / row.slug / f'search_{number}' / str(trial)
        tasks = (search.criterion,) if is_protocol(search.criterion) else ()
        sources = outside_sources(changed)
        asked = Asked(FIRST + number, tasks, trial=options, splits=splits, sources=sources)
        yield Run(row, asked.seed, folder, asked.tasks, (), 'trial', asked, config_text(changed))


def commands(run: Run, devices: int) -> list[list[str]]:
    """Return the command that trains and measures a run, and the one that transfers it."""
    worker = [sys.executable, '-m', 'mmairl.study.worker', str(run.folder.absolute())]
    first = worker
    if devices > 1:
        torchrun = [sys.executable, '-m', 'mmairl.engine.launcher', f'--nproc_per_node={devices}']
        first = [*torchrun, '--max-restarts=3', *worker[1:], '--launcher', 'pytorch']
    local = all(is_local(task) for task in run.tasks)
    return [first] if local else [first, [*worker, '--transfer', str(devices)]]


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are not done, with those that take something from them: it may change."""
    found = [run for run in runs if not run.done]
    while more := [run for run in runs if run not in found and {other.folder for other in found} & set(run.needs)]:
        found += more
    return [run for run in runs if run in found]


def execute(runs: Sequence[Run], jobs: int, devices: int, report: Callable[[Run, str], None]) -> None:
    """Start what is not done, `jobs` at a time on `devices` GPUs each; what fails is reported and the rest goes on.

    A run that was stopped is left as it is: the next call goes on with it.
    """
    waiting, active = unfinished(runs), []

    def ready() -> list[Run]:
        changing = {run.folder for run in [*waiting, *(work.run for work in active)]}
        return [run for run in waiting if run.ready and not changing & set(run.needs)]

    shares = _shares(jobs, devices, needed=min(jobs, len(waiting)))
    try:
        while waiting or active:
            for run in ready()[: len(shares)]:
                waiting.remove(run)
                active.append(Work(run, commands(run, devices), shares.pop(0)))
                report(run, 'running')
            for work in list(active):
                if (code := work.poll()) is not None:
                    active.remove(work)
                    shares.append(work.share)
                    report(work.run, work.ended(code))
            if not active and not ready():
                settled = settle_failed_trials(runs)
                for run in settled:
                    report(run, 'failed twice alike, so it counts as the worst trial')
                if not settled:
                    break  # what is left needs a run that has failed
            time.sleep(0.2)
    finally:
        with suppress(OSError):  # a terminal that is closed
            for work in active:
                report(work.run, 'stopping')
        stop([work.process for work in active])


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
    """A run in progress, on its share of the machine: its commands one after the other, with their output in its log."""

    def __init__(self, run: Run, commands: Sequence[Sequence[str]], share: dict[str, str]) -> None:
        self.run, self.share = run, share
        self.log, self.left = run.folder / 'log.txt', list(commands)
        self.begins = self.log.stat().st_size if self.log.is_file() else 0
        self._next()

    def _next(self) -> None:
        with appending(self.log) as log:
            self.process = start(self.left.pop(0), self.share, stdout=log, stderr=log)

    def poll(self) -> int | None:
        """The exit code of the last command, or of the one that failed; None as long as there is something to do."""
        code = self.process.poll()
        if code == 0 and self.left:
            self._next()
            return None
        return code

    def ended(self, code: int) -> str:
        """Name a run's end by its exit code; a run that failed leaves its last words, of this start, in failed.txt."""
        failed = self.run.folder / 'failed.txt'
        if code == 0:
            failed.unlink(missing_ok=True)
            return 'done'
        if code in STOPPED:
            return 'stopped'
        output = self.log.read_bytes()[self.begins :].decode(errors='replace')
        lines = [line for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(LAST_WORDS, line)]
        said = (errors or lines or [f'exit code {code}'])[-1]
        if failed.is_file():
            failed.replace(self.run.folder / FAILURES[0])
        write_text(failed, said)
        return f'failed: {said}'
