"""The runs of a study: laid out as folders, started beside each other, and never done twice."""

import copy
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from msgspec.structs import replace

from mmairl.configs import write_config
from mmairl.errors import UserError
from mmairl.evaluation.sets import held_out
from mmairl.files import appending, read_json, write_json, write_text
from mmairl.machine import cores
from mmairl.stopping import AGAIN, SIGNALS, start, stop
from mmairl.study.measure import BY_TRAINING, is_local, outdated, recipe
from mmairl.study.search import FIRST, Search, Tune, trial_options
from mmairl.study.spec import Row, Study
from mmairl.study.stored import Asked, Chosen, Result
from mmairl.study.trials import trial_counts

# Of a run that has failed; what torchrun says below it is left out. Python's and grep's patterns in one.
LAST_WORDS = '^error: .|^[A-Za-z_.]+(Error|Exception): .'
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
        return result is not None and set(self.tasks) <= result.labels.keys() and not outdated(self.folder, result)


Planned = tuple[Run, Config, Asked]


def status(run: Run) -> tuple[str, str]:
    """Return what a run does, by its folder alone, and the last line of its log; a node that holds its lock works on it."""
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
    if run.result is not None:
        lacking = ', '.join(sorted(set(run.tasks) - run.result.labels.keys()))
        return 'not measured', lacking or 'what its scores depend on has changed'
    return ('stopped', said) if said else ('waiting' if run.needs and not run.ready else 'not begun', '')


def lay_out(
    study: Study, configs: dict[str, Config], seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Return every run of a study, and write into its folder its resolved config, as data, and what is asked of it.

    The config lies in a folder of its own, since mmengine writes the one that it runs into the work dir under the same name.
    """
    runs = []
    for run, cfg, asked in plan_runs(study, configs, seeds, tasks, out):
        new, config = run.folder / 'asked' / '.config.yaml', run.folder / 'asked' / 'config.yaml'
        new.parent.mkdir(parents=True, exist_ok=True)
        write_config(cfg, new)
        if config.is_file() and config.read_text() != new.read_text():
            raise UserError(
                f'{run.folder} was begun with another config; give --out another folder, or remove this one to begin it anew'
            )
        os.replace(new, config)
        write_json(run.folder / 'asked.json', asked)
        runs.append(run)
    return runs


def plan_runs(
    study: Study, configs: dict[str, Config], seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> Iterator[Planned]:
    """Yield every run, its config, and what is asked of it; seeds outermost, to see rows early."""
    if study.search:
        yield from _plan_search(study, configs, seeds, tuple(tasks), out)
        return
    for seed in seeds:
        yield from _of_seed(study, configs, seed, tuple(tasks), out / 'runs')


def _of_seed(
    study: Study,
    configs: Mapping[str, Config],
    seed: int,
    tasks: tuple[str, ...],
    out: Path,
    part: str = 'compared',
    trials: Mapping[str, Sequence[Planned]] | None = None,
) -> Iterator[Planned]:
    """Yield the runs of all rows from one seed, by the best of each row's `trials` where there are any."""
    folders = {row.name: out / row.slug / f'seed_{seed}' for row in study.rows}
    for row in study.rows:
        needs = {key: folders[name] for key, name in row.others.items()}
        absolute = {key: str(path.absolute()) for key, path in needs.items()}
        asked = {way: replace(value, **absolute) for way in ('rescaled', 'along') if (value := getattr(row, way))}
        if tried := [run.folder for run, *_ in (trials or {}).get(row.name, ())]:
            asked['chosen'] = Chosen(tuple(str(folder.absolute()) for folder in tried), study.search.criterion)
        asked['tuned'] = {
            task: _of_recipe(tune, row, configs[row.name], task, seed)
            for task, tune in study.tune.items()
            if task in tasks
        }
        run = Run(row, seed, folders[row.name], tasks, (*needs.values(), *tried), part)
        yield run, configs[row.name], Asked(seed, tasks, **asked)


def _of_recipe(tune: Tune, row: Row, cfg: Config, task: str, number: int) -> tuple[dict[str, Any], ...]:
    """Return the trials of a task's recipe: the same relative points for every row."""
    if task.partition('@')[0] not in BY_TRAINING:
        raise UserError(
            f"`tune` is for {' and '.join(BY_TRAINING)}, which train a classifier, and not for '{task}'; leave it out"
        )
    return tuple(trial_options(tune, row, recipe(cfg, task), number, tune.trials))


def _plan_search(
    study: Study, configs: dict[str, Config], searches: Sequence[int], tasks: tuple[str, ...], out: Path
) -> Iterator[Planned]:
    """Yield the rows as published, the trials of each search, and its winners, which are compared.

    A winner's seed is its search's number, so that a study which was begun without a search keeps its runs as published.
    """
    counts = trial_counts(study, configs)
    searched = [row for row in study.rows if not row.others]
    for number in searches:
        yield from _of_seed(study, configs, number, tasks, out / 'runs', 'published')
        trials = {
            row.name: list(_trials(study.search, row, configs[row.name], number, counts[row.name], out))
            for row in searched
        }
        # A trial of every row before the second of any, so that a search that is cut off has tried all rows alike.
        yield from (trial for turn in zip_longest(*trials.values()) for trial in turn if trial)
        yield from _of_seed(study, configs, number, tasks, out / 'tuned', 'compared', trials)


def _trials(search: Search, row: Row, cfg: Config, number: int, count: int, out: Path) -> Iterator[Planned]:
    """Yield the trials of a row in one search, measured on images that are held out of the training labels."""
    for trial, options in enumerate(trial_options(search, row, cfg, number, count)):
        changed = copy.deepcopy(cfg)
        changed.merge_from_dict(options)
        fit, held = held_out(cfg.evaluation)
        others = {key: value for key, value in cfg.evaluation.items() if key != 'val'}
        changed.evaluation = dict(others, train=fit, test=held)
        folder = out / 'trials' / row.slug / f'search_{number}' / str(trial)
        run = Run(row, FIRST + number, folder, (search.criterion,), (), 'trial')
        yield run, changed, Asked(run.seed, run.tasks, trial=options)


def commands(run: Run, devices: int) -> list[list[str]]:
    """Return the command that trains and measures a run, and the one that transfers it."""
    worker = [sys.executable, '-m', 'mmairl.study.worker', str(run.folder.absolute())]
    first = worker
    if devices > 1:
        torchrun = [sys.executable, '-m', 'mmairl.engine.torchrun', f'--nproc_per_node={devices}']
        first = [*torchrun, '--max-restarts=3', *worker[1:], '--launcher', 'pytorch']
    local = all(is_local(task) for task in run.tasks)
    return [first] if local else [first, [*worker, '--transfer', str(devices)]]


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
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join([package, os.environ.get('PYTHONPATH', '')])
        self.environment = {'PYTHONPATH': path, **share}
        self.log, self.left = run.folder / 'log.txt', list(commands)
        self.begins = self.log.stat().st_size if self.log.is_file() else 0
        self._next()

    def _next(self) -> None:
        with appending(self.log) as log:
            self.process = start(self.left.pop(0), self.environment, stdout=log, stderr=log)

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
        write_text(failed, said)
        return f'failed: {said}'
