"""The runs of a study: their plan, their folders, their fingerprints and their states.

A run's folder has the files config.yaml and run.json (written by the planner), trained.json and TASK.json (written by the
worker, the process that trains and measures the run), log.txt, and failed.txt if its last start failed.
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from mmengine.config import Config
from msgspec import Struct

from mmairl.config import config_text
from mmairl.errors import UserError
from mmairl.evaluation.sources import key_of, outside_sources
from mmairl.io import read_json, read_text, read_yaml, write_json, write_text
from mmairl.study.fairness import Prepared, differing_keys, given_file
from mmairl.study.study import Row
from mmairl.study.tasks import is_measured

CONFIG, REQUEST, TRAINED, FAILED = 'config.yaml', 'run.json', 'trained.json', 'failed.txt'
COLLAPSE = 'collapse.json'
STATED = ('interval', 'chance', 'test_images', 'image_size')
# A run has collapsed if its features have a smaller spread, or vary along fewer directions.
LEAST_SPREAD, LEAST_RANK = 0.01, 1.5
SOURCE = 'the source of '  # the keys of modules in a fingerprint begin with these words
NAMED = 4  # an error lists at most this many changed keys


class Request(Struct, frozen=True):
    """run.json: what the worker of a run must train and measure.

    Args:
        fingerprint: Everything that the weights and scores depend on, apart from the package itself; see `digests_of`.
        tasks: The tasks that measure the run.
        folders: The folders of the runs whose weights this run uses, by role (`row` and `anchor`).
        file: The path of an external checkpoint.
    """

    fingerprint: dict[str, Any]
    tasks: tuple[str, ...] = ()
    folders: dict[str, str] = {}
    file: str = ''

    @property
    def untrained(self) -> str | None:
        return self.fingerprint.get('untrained')

    @property
    def trains(self) -> bool:
        return not (self.untrained or self.folders or self.file)


class Start(Struct, frozen=True):
    """Digests of a run's initial backbone weights, of their shapes, and of the order of its images."""

    weights: str
    shapes: str
    order: str | None = None


class Trained(Struct, frozen=True, kw_only=True):
    """trained.json: facts about the weights of a run, written when they are complete."""

    fingerprint: dict[str, Any]
    checkpoint: str
    seconds: float = 0.0
    steps: int | None = None
    images_seen: int | None = None
    start: Start | None = None
    commit: str = ''
    source: str = ''
    versions: dict[str, str] = {}
    hardware: str = ''


class Measured(Struct, frozen=True):
    """TASK.json: the result of one task.

    Args:
        scores: The scores, the task's main score first.
        left_out: How many images were unreadable, and how many classes had no image.
        right: 1 for each test image that was classified correctly, and 0 for each other one.
        details: The entries `STATED` of the details of the result.
    """

    scores: dict[str, float]
    left_out: dict[str, int] = {}
    right: str | None = None
    details: dict[str, Any] = {}


class Health(Struct, frozen=True):
    """collapse.json: the spread and the effective rank of a run's normalized features. Constant features have a spread of 0."""

    spread: float
    rank: float

    @property
    def collapsed(self) -> bool:
        return not (self.spread >= LEAST_SPREAD and self.rank >= LEAST_RANK)


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a study.

    Args:
        row: The row.
        seed: The seed.
        folder: The run's folder.
        request: The request to the run's worker.
        cfg: The run's config.
        needs: The runs whose weights this run uses.
    """

    row: Row
    seed: int
    folder: Path
    request: Request
    cfg: Config
    needs: tuple['Run', ...] = ()

    @property
    def name(self) -> str:
        return f'{self.row.name}, seed {self.seed}'

    @property
    def missing(self) -> list[str]:
        """The tasks that have not been measured."""
        tasks = self.request.tasks
        return [task for task in tasks if not (self.folder / f'{task}.json').is_file()]

    @property
    def done(self) -> bool:
        has_weights = self.row.untrained or (self.folder / TRAINED).is_file()
        return bool(has_weights) and not self.missing

    @property
    def ready(self) -> bool:
        return all(run.done for run in self.needs)

    @property
    def trained(self) -> Trained | None:
        path = self.folder / TRAINED
        return read_json(path, Trained) if path.is_file() else None

    def measured(self, task: str) -> Measured:
        return read_json(self.folder / f'{task}.json', Measured)

    @property
    def is_running(self) -> bool:
        """Whether a process on any node has locked the run's folder."""
        lock = self.folder / '.lock_0'
        if not lock.is_file():
            return False
        try:
            with FileLock(lock, timeout=0):
                return False
        except Timeout:
            return True

    @property
    def change(self) -> str:
        """What has changed since the run was started, as text; '' if nothing has changed or the run has not started."""
        path = self.folder / REQUEST
        begun = [TRAINED, 'last_checkpoint', *(f'{task}.json' for task in self.request.tasks)]
        if not path.is_file() or not any((self.folder / name).is_file() for name in begun):
            return ''
        keys = differing_keys(read_json(path, Request).fingerprint, self.request.fingerprint)
        if 'config' in keys:
            keys = differing_keys(read_yaml(self.folder / CONFIG), self.cfg.to_dict())
        return ', '.join(keys[:NAMED])

    def state(self) -> tuple[str, str]:
        """Return the state of the run according to its files, and a message such as the last line of its log."""
        if self.done:
            return 'done', ''
        log, failed = self.folder / 'log.txt', self.folder / FAILED
        text = log.read_text(errors='replace') if log.is_file() else ''
        line = text.strip().rpartition('\n')[2]
        if self.is_running:
            return 'running', line
        if failed.is_file():
            return 'failed', read_text(failed).strip()
        if line:
            return 'stopped', line
        return ('missing' if self.ready else 'waiting'), ''


def plan_runs(prepared: Prepared) -> list[Run]:
    """Return the runs of a study without writing to its folder.

    Each run comes after the runs whose weights it uses. The runs of all rows from the first seed come first, so that every row
    soon has a result. Untrained rows have one run, and rows with checkpoint files have one run for each file.
    """
    digests = {name: digests_of(cfg) for name, cfg in prepared.configs.items()}
    planned: dict[tuple[str, int], Run] = {}

    def plan(row: Row, seed: int) -> Run:
        key = row.name, seed
        if key not in planned:
            roles = row.source.rows if row.source else {}
            needs = {role: plan(prepared.rows[name], seed) for role, name in roles.items()}
            planned[key] = _run(prepared, row, seed, needs, digests[row.name])
        return planned[key]

    for number, seed in enumerate(prepared.study.seeds):
        for row in prepared.study.rows:
            if row.trains or (row.source and row.source.row):
                plan(row, seed)
            elif number == 0:
                for file in row.files or (seed,):
                    plan(row, file)
    return list(planned.values())


def _run(
    prepared: Prepared, row: Row, seed: int, needs: Mapping[str, Run], digests: Mapping[str, str]
) -> Run:
    cfg = prepared.configs[row.name]
    if options := prepared.tuned.get(row.name, {}).get(seed):
        cfg = copy.deepcopy(cfg)
        cfg.merge_from_dict(options)
        digests = digests_of(cfg)
    file = given_file(row, seed) if row.files else ''
    settings = dict(seed=seed, untrained=row.untrained, file=prepared.models.get(file))
    if row.source:
        settings |= dict(at=row.source.at, constant=row.source.rescale_by)
    settings |= {role: key_of(run.request.fingerprint) for role, run in needs.items()}
    known = {key: value for key, value in settings.items() if value is not None}
    tasks = tuple(task for task in prepared.tasks if is_measured(row, task))
    folders = {role: str(run.folder.absolute()) for role, run in needs.items()}
    request = Request({**digests, **known}, tasks, folders, file)
    folder = prepared.out / 'runs' / row.slug / f'seed_{seed}'
    return Run(row, seed, folder, request, cfg, tuple(needs.values()))


def digests_of(cfg: Config) -> dict[str, str]:
    """Return a digest of the config, and of each module that it imports from outside the package.

    The fingerprint of a run consists of these digests, its seed and the source of its weights. The text of an assumption has no
    effect, so it is left out.
    """
    values = cfg.to_dict()
    values.pop('assumptions', None)
    return {'config': key_of(json.dumps(values, sort_keys=True, default=str)), **sources_of(cfg)}


def equal_rows(runs: Sequence[Run]) -> list[str]:
    """Return a sentence about each row whose runs equal those of an earlier row."""
    first: dict[str, Row] = {}
    notes = []
    for run in runs:
        same = first.setdefault(key_of(run.request.fingerprint), run.row)
        if same is not run.row:
            notes.append(
                f"'{run.row.name}' equals '{same.name}' at this scale, so their difference is noise"
            )
    return list(dict.fromkeys(notes))


def sources_of(cfg: Config) -> dict[str, str]:
    """Return a digest of each module that a config imports from outside the package."""
    return {f'{SOURCE}{name}': digest for name, digest in outside_sources(cfg).items()}


def lay_out_runs(prepared: Prepared, fresh: bool = False) -> list[Run]:
    """Plan the runs, and write each run's config and the request to its worker into the run's folder.

    Args:
        prepared: The study.
        fresh: If true, move the folders of runs aside whose settings or sources have changed since they were started.

    Raises:
        UserError: If a run was started with other settings or sources, or if such a run is active.
    """
    runs = plan_runs(prepared)
    changes = {run: change for run in runs if (change := run.change)}
    for run, change in changes.items():
        if not fresh or run.is_running:
            raise UserError(
                f'{run.name}: {change} changed after the run was started; use --fresh to move the old run aside and start it '
                'again once it is not running, or set --out (in Python, out=) to another folder',
                code='run-changed',
            )
    for run in changes:
        run.folder.rename(f'{run.folder}_until_{datetime.now():%Y%m%d_%H%M%S}')
    texts: dict[int, str] = {}  # The runs of a row share one config, and YAML is slow to write.
    for run in runs:
        if id(run.cfg) not in texts:
            texts[id(run.cfg)] = config_text(run.cfg)
        write_text(run.folder / CONFIG, texts[id(run.cfg)])
        write_json(run.folder / REQUEST, run.request)
    return runs


def measure_again(runs: Sequence[Run]) -> None:
    """Remove the scores of finished runs, so that they are measured again. The weights stay."""
    for run in runs:
        for task in run.request.tasks:
            (run.folder / f'{task}.json').unlink(missing_ok=True)
            # A task of tools/transfer.py would only read the scores in its folder again.
            shutil.rmtree(run.folder / 'transfer' / task, ignore_errors=True)


def unfinished(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not run.done]
