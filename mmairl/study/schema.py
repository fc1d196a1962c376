"""The files in a run's folder, as types: what was asked, what training left, and what was measured.

A field whose name in the file differs from its name here is declared with `field(name=...)`. Names in files do not change.
"""

import itertools
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from mmairl.evaluation.identity import key_of
from mmairl.io import read_text
from mmairl.study.spec import Along, Rescaled, Untrained

CHOICE = 'chosen.json'
# Files that belong to a run's place in the study rather than to what was trained.
REQUEST_AND_LOGS = ('asked*', 'log.txt', 'failed*.txt', 'job.*', 'begun.txt', '.lock*')


class Chosen(Struct):
    """The run uses the options of the best of these trials."""

    trials: tuple[str, ...]  # folders
    criterion: str
    published: str = ''  # the folder of the row as published, from the same seed


class Branch(Struct, frozen=True):
    """The run continues the state of its trunk, the run in another folder, after an epoch."""

    trunk: str
    epoch: int


class Asked(Struct, omit_defaults=True, frozen=True):
    """asked.json, next to the config in asked/config.yaml. In `rescaled` and `along` the rows are run folders."""

    seed: int
    tasks: tuple[str, ...] = ()
    rescaled: Rescaled | None = None
    along: Along | None = None
    fork: Branch | None = None
    fork_points: tuple[int, ...] = ()  # epochs after which branches continue this run
    untrained: Untrained | None = None
    external: str = field(default='', name='given')  # a checkpoint that was trained elsewhere
    stated: dict[str, str] = {}  # factors of an external checkpoint, as its author states them
    trial: dict[str, Any] | None = (
        None  # of a search: the config keys that it changes; the config has them already
    )
    splits: dict[
        str, Any
    ] = {}  # of a trial: the row's own data, whose test images the trial must not see
    chosen: Chosen | None = None
    tuned: dict[str, tuple[dict[str, Any], ...]] = {}  # by task: the trials of its recipe
    sources: dict[str, str] | None = (
        None  # digests of outside modules that training imports; None: not recorded
    )

    @property
    def trains(self) -> bool:
        return not (self.rescaled or self.along or self.untrained or self.external)


class EarlierAnalyses(Struct):
    """The part of study.json that the next record carries over: finished runs at each analysis so far."""

    finished_runs: list[int] = field(default_factory=list, name='looks')


class Choice(Struct):
    """chosen.json: the trial whose options a run was trained with."""

    trial: str
    options: dict[str, Any]
    score: float


class TrainingStart(Struct):
    """start.json: digests of what training started from."""

    weights: str
    shapes: str
    order: str | None = None


class Trained(Struct, kw_only=True):
    """trained.json, which exists once training has ended."""

    seconds: float | None = None
    device_seconds: float | None = None
    steps: int | None = None
    images_seen: int | None = None
    start: TrainingStart | None = None
    made: dict[str, Any] = {}  # `reuse.origin`: how, and from which weights, without training
    sources: dict[str, str] | None = None  # as in asked.json, when training began


class RunResult(Trained, omit_defaults=True, kw_only=True):
    """result.json: everything that the page shows of a run."""

    checkpoint: str = ''
    scores: dict[str, float] = {}  # by task
    labels: dict[str, str] = {}
    further: dict[str, float] = {}  # other scores of the tasks
    identities: dict[str, dict[str, Any]] = {}  # by task, of `evaluation.identity`
    sha256: str = ''  # of the checkpoint's file
    weights: str = ''  # the identity of its model, which other files can share
    file: tuple[int, ...] = ()  # size and modification time of the checkpoint
    git: str = ''
    versions: dict[str, str] = {}
    hardware: str = ''
    evaluation: str = ''
    curves: dict[str, Any] = {}
    hidden: dict[str, str] = {}
    left_out: dict[str, dict[str, int]] = {}  # by task: unreadable images, missing classes
    tuned: dict[str, dict[str, Any]] = {}  # by task, if its recipe was tuned
    diverged: str = ''  # why a trial has no score and counts as the worst
    excluded: str = ''  # why a branch was not trained and has no score


class Measured(Struct):
    """TASK_KEY.json: the scores of one task by name."""

    scores: dict[str, float]
    identity: dict[str, Any]
    right: dict[str, Any] | None = None  # the test images that are recognized
    tuned: dict[
        str, Any
    ] = {}  # the choice among trials of the recipe, and their scores on held-out images
    left_out: dict[str, int] = {}  # unreadable images, missing classes


def result_file(folder: Path, task: str, identity: Mapping[str, Any]) -> Path:
    return folder / f'{task}_{key_of(identity)}.json'


def last_checkpoint(folder: Path) -> Path:
    return folder / Path(read_text(folder / 'last_checkpoint').strip()).name


def set_aside(folder: Path, keep: Collection[str] = (), last: str = '') -> Path:
    """Move what a run has left into a new folder next to its own and return that folder.

    Args:
        folder: The run's folder.
        keep: Patterns of files that stay. Without any, the folder itself is renamed.
        last: The file that is moved last, so that an interrupted move is repeated by whoever checks for it.
    """
    names = (folder.with_name(f'{folder.name}_set_aside_{number}') for number in itertools.count(1))
    target = next(path for path in names if not path.exists())
    if not keep:
        return folder.rename(target)
    target.mkdir()
    moved = [
        path
        for path in folder.iterdir()
        if not any(fnmatch(path.name, pattern) for pattern in keep)
    ]
    for path in sorted(moved, key=lambda path: path.name == last):
        path.rename(target / path.name)
    return target
