"""The runs of a study: laid out as folders, started beside each other, and never done twice."""

import copy
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from msgspec.structs import replace

from mmairl.config import config_text, same_config
from mmairl.errors import UserError
from mmairl.evaluation.sets import SPLITS, held_out
from mmairl.evaluation.sources import changed_sources, outside_sources
from mmairl.hardware import cores
from mmairl.io import appending, read_json, read_text, write_json, write_text
from mmairl.registry import PROTOCOLS
from mmairl.signals import AGAIN, SIGNALS, start, stop
from mmairl.study.external import checkpoint_path, require_networks, stated_factors
from mmairl.study.measure import forget
from mmairl.study.schema import Asked, Chosen, RunResult, set_aside
from mmairl.study.search import FIRST, Search, trial_options
from mmairl.study.spec import Row, Study
from mmairl.study.stale import stale_reason
from mmairl.study.task_names import is_local, is_measured, recipe, trains_classifier
from mmairl.study.trials import trial_counts
from mmairl.transfer.tasks import require_platform

# The last message of a failed run, without torchrun's own below it. The pattern works in Python and in grep.
LAST_WORDS = '^error: .|^[A-Za-z_.]+(Error|Exception): .'
CONFIG = 'the config'
FAILURES = ('failed_before.txt', 'failed.txt')  # last messages of the last two failed starts
# A run that does not handle signals yet is ended by one.
STOPPED = (AGAIN, *(-number for number in SIGNALS))
LOG_TAIL = 5000  # characters
POLL = 0.2  # seconds


@dataclass(frozen=True, eq=False)
class Run:
    """A row from one seed, in a folder of its own.

    Args:
        row: The row.
        seed: The seed, or the number of the search.
        folder: The run's folder.
        tasks: Tasks that measure it.
        needs: Folders of the runs whose weights, or whose choice, it uses.
        part: 'compared'; in a search also 'published' or 'trial'.
        asked: What its worker reads.
        config: Its config, as YAML.
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
        """A name for schedulers."""
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
        """What has changed since the folder was begun: the config, or the source of modules that it imports."""
        config = self.folder / 'asked' / 'config.yaml'
        if self.config and config.is_file() and not same_config(read_text(config), self.config):
            return CONFIG
        path = self.folder / 'asked.json'
        if not path.is_file():
            return ''
        begun = read_json(path, Asked)
        if begun.trains != self.asked.trains:
            return CONFIG
        return changed_sources(begun.sources, self.asked.sources)

    @property
    def is_running(self) -> bool:
        """Whether a process, on whatever node, holds the lock of the folder."""
        lock = self.folder / '.lock_0'
        if not lock.is_file():
            return False
        try:
            with FileLock(lock, timeout=0):
                return False
        except Timeout:
            return True


def status(run: Run) -> tuple[str, str]:
    """Return the state of a run, by its folder alone, and the last line of its log."""
    if run.done:
        return 'done', ''
    line = _last_line(run)
    if run.is_running:
        return 'running', f'{line} ({_log_age(run)} ago)' if line else ''
    failed = run.folder / 'failed.txt'
    if failed.is_file():
        return 'failed', read_text(failed).strip()
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
    lines = log.read_text(errors='replace')[-LOG_TAIL:].strip().splitlines()
    return lines[-1] if lines else ''


def _log_age(run: Run) -> timedelta:
    seconds = round(time.time() - (run.folder / 'log.txt').stat().st_mtime)
    return timedelta(seconds=max(0, seconds))  # a node's clock may be ahead


def plan_runs(
    study: Study, configs: dict[str, Config], seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Return the runs, seeds outermost, so that every row has a result early."""
    if study.search:
        return list(_plan_search(study, configs, seeds, tuple(tasks), out))
    return [
        run for seed in seeds for run in _of_seed(study, configs, seed, tuple(tasks), out / 'runs')
    ]


def prepare_runs(
    study: Study, configs: dict[str, Config], seeds: Sequence[int], tasks: Sequence[str], out: Path
) -> list[Run]:
    """Plan the runs, and write each run's config and request into its folder.

    The config is in a folder of its own, because mmengine writes the config that it runs into the work dir under the same
    name.
    """
    require_networks(study.rows, configs)
    runs = plan_runs(study, configs, seeds, tasks, out)
    changes = {run: run.changed_since_start for run in runs}
    for run, change in changes.items():
        if change == CONFIG:
            raise UserError(
                f'{run.folder} was begun with another config; set --out to another folder, or remove this one to start again',
                code='other-config',
            )
    for run, change in changes.items():
        if change:
            set_changed_run_aside(run, change)
        write_text(run.folder / 'asked' / 'config.yaml', run.config)
        write_json(run.folder / 'asked.json', _with_known_sources(run))
    settle_failed_trials(runs)
    return runs


def set_changed_run_aside(run: Run, change: str) -> None:
    """Keep a run that other source code trained in another folder, so that it is trained again and nothing is lost."""
    if run.is_running:
        raise UserError(
            f'{run.name} is running, and {change} has changed; stop it, or wait for its end, and start the study again',
            code='source-changed-while-running',
        )
    earlier = set_aside(run.folder)
    print(
        f'{run.name}: {change} has changed; the earlier run is kept in {earlier}', file=sys.stderr
    )


def _with_known_sources(run: Run) -> Asked:
    """Return a run's request. A run that an earlier version began keeps its sources unknown."""
    path = run.folder / 'asked.json'
    begun = path.is_file() and (run.folder / 'last_checkpoint').is_file()
    return replace(run.asked, sources=read_json(path, Asked).sources) if begun else run.asked


def measure_again(runs: Sequence[Run]) -> None:
    """Remove the scores of finished runs. Trained weights are kept."""
    for run in runs:
        if run.is_running:
            raise UserError(
                f'--remeasure: {run.name} is running; wait for its end, or stop it',
                code='remeasure-running',
            )
    for run in runs:
        (run.folder / 'result.json').unlink(missing_ok=True)
        for task in run.tasks:
            forget(run.folder, task)


def settle_failed_trials(runs: Sequence[Run]) -> list[Run]:
    """Count trials that failed twice with the same error as the worst of their search, and return them.

    Only if another trial of that search has finished: if all of them fail, their settings are not the cause.
    """
    settled = []
    for run in runs:
        if run.part != 'trial' or run.result is not None:
            continue
        message = repeated_failure(run.folder)
        if message and _any_trial_finished(run.folder.parent):
            settled.append((run, message))
    for run, message in settled:  # after all are known, because a settled trial has not finished
        labels = {task: task for task in run.tasks}
        write_json(
            run.folder / 'result.json',
            RunResult(labels=labels, diverged=f'failed twice: {message}'),
        )
    return [run for run, _ in settled]


def _any_trial_finished(search: Path) -> bool:
    """Return True if a trial of a search has a result. Trials that were set aside do not count."""
    return any(path.parent.name.isdecimal() for path in search.glob('*/result.json'))


def repeated_failure(folder: Path) -> str:
    """Return the last message of a run whose last two starts failed with the same error, apart from numbers; else ''."""
    before, last = (_text_of(folder / name) for name in FAILURES)
    if not re.search(LAST_WORDS, last):  # a line of its log, if it was killed
        return last if last == before else ''
    return last if re.sub(r'[\d.]+', '', last) == re.sub(r'[\d.]+', '', before) else ''


def _text_of(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ''


def _of_seed(
    study: Study,
    configs: Mapping[str, Config],
    seed: int,
    tasks: tuple[str, ...],
    out: Path,
    part: str = 'compared',
    trials: Mapping[str, Sequence[Run]] | None = None,
) -> Iterator[Run]:
    """Yield the runs of all rows from one seed, by the best of each row's `trials` if there are any."""
    # One run of an untrained row is enough, and external checkpoints have seeds of their own.
    runs_once = seed == min(study.seeds) and part == 'compared'
    for row in study.rows:
        cfg = configs[row.name]
        if (row.untrained or row.weights) and not runs_once:
            continue
        if row.weights:
            for number in row.weights:
                yield _external_run(study, row, cfg, number, tasks, out)
        else:
            yield _trained_run(
                study, row, cfg, seed, tasks, out, part, (trials or {}).get(row.name, ())
            )


def _external_run(
    study: Study, row: Row, cfg: Config, number: int, tasks: tuple[str, ...], out: Path
) -> Run:
    asked = Asked(
        number,
        tasks,
        external=checkpoint_path(row, number),
        stated=stated_factors(row),
        tuned=_recipe_trials(study, row, cfg, tasks, number),
    )
    return Run(
        row, number, out / row.slug / f'seed_{number}', tasks, asked=asked, config=config_text(cfg)
    )


def _trained_run(
    study: Study,
    row: Row,
    cfg: Config,
    seed: int,
    tasks: tuple[str, ...],
    out: Path,
    part: str,
    trials: Sequence[Run],
) -> Run:
    slugs = {other.name: other.slug for other in study.rows}
    sources = {key: out / slugs[name] / f'seed_{seed}' for key, name in row.others.items()}
    absolute = {key: str(path.absolute()) for key, path in sources.items()}
    chosen = None
    if trials:
        published = out.parent / 'runs' / row.slug / f'seed_{seed}'
        paths = tuple(str(trial.folder.absolute()) for trial in trials)
        chosen = Chosen(paths, study.search.criterion, str(published.absolute()))
    own = tuple(task for task in tasks if is_measured(row.untrained, task))
    asked = Asked(
        seed,
        own,
        untrained=row.untrained,
        rescaled=row.rescaled and replace(row.rescaled, **absolute),
        along=row.along and replace(row.along, **absolute),
        chosen=chosen,
        tuned=_recipe_trials(study, row, cfg, tasks, seed),
        sources=outside_sources(cfg) if row.trains else None,
    )
    needs = (*sources.values(), *(trial.folder for trial in trials))
    return Run(
        row, seed, out / row.slug / f'seed_{seed}', own, needs, part, asked, config_text(cfg)
    )


def _recipe_trials(
    study: Study, row: Row, cfg: Config, tasks: tuple[str, ...], number: int
) -> dict[str, tuple[dict[str, Any], ...]]:
    """Return the trials of each tuned task's recipe: the same relative points for every row."""
    trials = {}
    for task, tune in study.tune.items():
        if task in tasks:
            own = _tunable_recipe(cfg, task)
            trials[task] = tuple(trial_options(tune, row, own, number, tune.trials))
    return trials


def _tunable_recipe(cfg: Config, task: str) -> Config:
    if not is_local(task):
        require_platform([task])
    own = recipe(cfg, task)
    if not trains_classifier(task) and 'held_out' not in own:
        tunable = [name for name in PROTOCOLS.names() if trains_classifier(name)]
        raise UserError(
            f"tune: '{task}' has no images to choose by; `tune` requires {', '.join(tunable)}, or a task whose config "
            'has `held_out` images',
            code='not-tunable',
        )
    return own


def _plan_search(
    study: Study,
    configs: Mapping[str, Config],
    searches: Sequence[int],
    tasks: tuple[str, ...],
    out: Path,
) -> Iterator[Run]:
    """Yield the rows as published, the trials of each search, and its winners, which are compared.

    A winner's seed is its search's number, so that a study that was begun without a search keeps its runs as published.
    """
    counts = trial_counts(study, configs)
    for number in searches:
        yield from _of_seed(study, configs, number, tasks, out / 'runs', 'published')
        trials = {}
        for row in study.rows:
            if row.trains:
                trials[row.name] = list(
                    _trials(study.search, row, configs[row.name], number, counts[row.name], out)
                )
        # A trial of every row before the second of any, so that an interrupted search has tried all rows alike.
        for turn in zip_longest(*trials.values()):
            yield from filter(None, turn)
        yield from _of_seed(study, configs, number, tasks, out / 'tuned', 'compared', trials)


def _trials(
    search: Search, row: Row, cfg: Config, number: int, count: int, out: Path
) -> Iterator[Run]:
    """Yield the trials of a row in one search, measured on images that are held out of the training labels."""
    splits = {key: value for key, value in cfg.to_dict()['evaluation'].items() if key in SPLITS}
    for trial, options in enumerate(trial_options(search, row, cfg, number, count)):
        changed = copy.deepcopy(cfg)
        changed.merge_from_dict(options)
        fit, held = held_out(cfg.evaluation)
        others = {key: value for key, value in cfg.evaluation.items() if key != 'val'}
        changed.evaluation = dict(others, train=fit, test=held)
        asked = Asked(
            FIRST + number,
            (search.criterion,),
            trial=options,
            splits=splits,
            sources=outside_sources(changed),
        )
        folder = out / 'trials' / row.slug / f'search_{number}' / str(trial)
        yield Run(row, asked.seed, folder, asked.tasks, (), 'trial', asked, config_text(changed))


def commands(run: Run, devices: int) -> list[list[str]]:
    """Return the command that trains and measures a run, and the one for tasks on mmdet and mmseg."""
    module = ['-m', 'mmairl.study.worker', str(run.folder.absolute())]
    worker = [sys.executable, *module]
    first = worker
    if devices > 1:
        launcher = [
            sys.executable,
            '-m',
            'mmairl.engine.launcher',
            f'--nproc_per_node={devices}',
            '--max-restarts=3',
        ]
        first = [*launcher, *module, '--launcher', 'pytorch']
    if all(is_local(task) for task in run.tasks):
        return [first]
    return [first, [*worker, '--transfer', str(devices)]]


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are not done, with the runs that use their results, which may change."""
    selected = {run for run in runs if not run.done}
    before = 0
    while before != len(selected):
        before = len(selected)
        changing = {run.folder for run in selected}
        selected |= {run for run in runs if changing & set(run.needs)}
    return [run for run in runs if run in selected]


def execute(
    runs: Sequence[Run], jobs: int, devices: int, report: Callable[[Run, str], None]
) -> None:
    """Start what is not done, `jobs` at a time on `devices` GPUs each. A failed run is reported and the others continue.

    A stopped run is left as it is: the next call resumes it.
    """
    waiting = unfinished(runs)
    active: list[ActiveRun] = []

    def ready() -> list[Run]:
        changing = {run.folder for run in [*waiting, *(work.run for work in active)]}
        return [run for run in waiting if run.ready and not changing & set(run.needs)]

    shares = _shares(jobs, devices, needed=min(jobs, len(waiting)))
    try:
        while waiting or active:
            for run in ready()[: len(shares)]:
                waiting.remove(run)
                active.append(ActiveRun(run, commands(run, devices), shares.pop(0)))
                report(run, 'running')
            for work in list(active):
                code = work.poll()
                if code is not None:
                    active.remove(work)
                    shares.append(work.share)
                    report(work.run, work.ended(code))
            if not active and not ready():
                settled = settle_failed_trials(runs)
                for run in settled:
                    report(run, 'failed twice with the same error, so it counts as the worst trial')
                if not settled:
                    break  # the rest requires a run that has failed
            time.sleep(POLL)
    finally:
        with suppress(OSError):  # a closed terminal
            for work in active:
                report(work.run, 'stopping')
        stop([work.process for work in active])


def _shares(jobs: int, devices: int, needed: int) -> list[dict[str, str]]:
    """Return the environment of each parallel run: its GPUs, of those that this process may use, or its number of cores."""
    if not torch.cuda.is_available():
        threads = os.environ.get('OMP_NUM_THREADS') or max(1, cores() // (jobs * devices))
        return [{'OMP_NUM_THREADS': str(threads)} for _ in range(jobs)]
    count = torch.cuda.device_count()
    if needed * devices > count:
        raise UserError(
            f'--jobs: {needed} parallel runs on {devices} GPU(s) each require more than {count} GPU(s); reduce --jobs or '
            '--per-run',
            code='too-few-gpus',
        )
    listed = os.environ.get(
        'CUDA_VISIBLE_DEVICES'
    )  # by number or name, if they are not all of the machine's
    names = listed.split(',') if listed else list(map(str, range(count)))
    slots = range(0, min(jobs, count // devices) * devices, devices)
    return [{'CUDA_VISIBLE_DEVICES': ','.join(names[slot : slot + devices])} for slot in slots]


class ActiveRun:
    """A run in progress, on its share of the machine: its commands in order, with their output in its log."""

    def __init__(self, run: Run, commands: Sequence[Sequence[str]], share: dict[str, str]) -> None:
        self.run = run
        self.share = share
        self.log = run.folder / 'log.txt'
        self.left = list(commands)
        self.log_start = self.log.stat().st_size if self.log.is_file() else 0
        self._next()

    def _next(self) -> None:
        with appending(self.log) as log:
            self.process = start(self.left.pop(0), self.share, stdout=log, stderr=log)

    def poll(self) -> int | None:
        """Return the exit code of the last command, or of the one that failed; None while there is something to do."""
        code = self.process.poll()
        if code == 0 and self.left:
            self._next()
            return None
        return code

    def ended(self, code: int) -> str:
        """Describe a run's end by its exit code. A failed run's last message is written to failed.txt."""
        failed = self.run.folder / 'failed.txt'
        if code == 0:
            failed.unlink(missing_ok=True)
            return 'done'
        if code in STOPPED:
            return 'stopped'
        message = self._last_message() or f'exit code {code}'
        if failed.is_file():
            failed.replace(self.run.folder / FAILURES[0])
        write_text(failed, message)
        return f'failed: {message}'

    def _last_message(self) -> str:
        """Return the last error in the output of this start, or else its last line."""
        output = self.log.read_bytes()[self.log_start :].decode(errors='replace')
        lines = [line for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(LAST_WORDS, line)]
        return next(reversed(errors or lines), '')
