"""Typed schemas of the JSON files in a run's folder: request, training summary, scores.

The keys in the files never change. A field that is named differently here has `field(name=...)`.
"""

import itertools
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from mmairl.engine.curves import Curve
from mmairl.evaluation.identity import key_of
from mmairl.io import read_text
from mmairl.study.spec import Along, Rescaled, Untrained

CHOICE = 'chosen.json'
# Files that belong to a run's folder rather than to its weights.
REQUEST_AND_LOGS = ('asked*', 'log.txt', 'failed*.txt', 'job.*', 'begun.txt', '.lock*')


class Chosen(Struct):
    """The request to train with the options of the best of these trials."""

    trials: tuple[str, ...]  # folders
    criterion: str
    published: str = ''  # the folder of the run of the row as published, from the same seed


class Branch(Struct, frozen=True):
    """The request to continue another run, the trunk, after an epoch."""

    trunk: str  # the folder of the trunk
    epoch: int


class Asked(Struct, omit_defaults=True, frozen=True):
    """asked.json, the request to a worker. In `rescaled` and `along`, run folders take the place of row names."""

    seed: int
    tasks: tuple[str, ...] = ()
    rescaled: Rescaled | None = None
    along: Along | None = None
    fork: Branch | None = None
    fork_points: tuple[int, ...] = ()  # epochs after which branches continue this run
    untrained: Untrained | None = None
    external: str = field(default='', name='given')  # the path of an external checkpoint
    stated: dict[str, str] = {}  # factors of an external checkpoint, as its authors state them
    # The options of a trial, which its config already includes.
    trial: dict[str, Any] | None = None
    # The data sets of a trial's row, by which the worker checks that the trial sees no test images.
    splits: dict[str, Any] = {}
    chosen: Chosen | None = None
    tuned: dict[str, tuple[dict[str, Any], ...]] = {}  # trials of a recipe, by task
    # Digests of the modules outside the package that training imports; None if an earlier version did not record them.
    sources: dict[str, str] | None = None

    @property
    def trains(self) -> bool:
        return not (self.rescaled or self.along or self.untrained or self.external)


class EarlierAnalyses(Struct):
    """The part of study.json that the next record continues."""

    finished_runs: list[int] = field(default_factory=list, name='looks')  # at each analysis so far


class Choice(Struct):
    """chosen.json: the best trial, whose options the run is trained with."""

    trial: str
    options: dict[str, Any]
    score: float


class TrainingStart(Struct):
    """start.json: digests of what training started from."""

    weights: str
    shapes: str
    order: str | None = None


class Trained(Struct, kw_only=True):
    """trained.json: the summary of training, which is written when it ends."""

    seconds: float | None = None
    device_seconds: float | None = None
    steps: int | None = None
    images_seen: int | None = None
    start: TrainingStart | None = None
    made: dict[str, Any] = {}  # `reuse.origin`
    sources: dict[str, str] | None = None  # as in asked.json when training began


class RunResult(Trained, omit_defaults=True, kw_only=True):
    """result.json: everything that the page shows of a run."""

    checkpoint: str = ''
    scores: dict[str, float] = {}  # the main score by task
    labels: dict[str, str] = {}
    further: dict[str, float] = {}  # other scores by 'TASK SCORE'
    identities: dict[str, dict[str, Any]] = {}  # by task
    sha256: str = ''  # of the checkpoint's file
    weights: str = ''  # the identity of the model, independent of the file format
    file: tuple[int, ...] = ()  # size and modification time of the checkpoint
    git: str = ''
    versions: dict[str, str] = {}
    hardware: str = ''
    evaluation: str = ''
    curves: dict[str, Curve] = {}
    hidden: dict[str, str] = {}
    left_out: dict[str, dict[str, int]] = {}  # numbers of unreadable images and missing classes
    tuned: dict[str, dict[str, Any]] = {}  # the outcome of tuning a recipe, by task
    diverged: str = ''  # why a trial counts as the worst
    excluded: str = ''  # why a branch was not trained

    def __post_init__(self) -> None:
        if any(len(steps) != len(values) for steps, values in self.curves.values()):
            raise ValueError('expected a value for each step of a curve')


class Measured(Struct):
    """TASK_KEY.json: the scores of one task by name."""

    scores: dict[str, float]
    identity: dict[str, Any]
    right: dict[str, Any] | None = None  # the correctly classified test images
    tuned: dict[str, Any] = {}  # the chosen trial of the recipe, and all scores on held-out images
    left_out: dict[str, int] = {}  # numbers of unreadable images and missing classes


def result_file(folder: Path, task: str, identity: Mapping[str, Any]) -> Path:
    return folder / f'{task}_{key_of(identity)}.json'


def last_checkpoint(folder: Path) -> Path:
    return folder / Path(read_text(folder / 'last_checkpoint').strip()).name


def set_aside(folder: Path, keep: Collection[str] = (), last: str = '') -> Path:
    """Move the files of a run into a new folder next to the run's, and return the new folder.

    Args:
        folder: The run's folder.
        keep: Patterns of files that stay. Without any, the folder itself is renamed.
        last: The file to move last, so that a caller that finds it in place repeats an interrupted move.
    """
    names = (folder.with_name(f'{folder.name}_set_aside_{number}') for number in itertools.count(1))
    target = next(path for path in names if not path.exists())
    if not keep:
        return folder.rename(target)
    target.mkdir()
    for path in sorted(folder.iterdir(), key=lambda path: path.name == last):
        if not any(fnmatch(path.name, pattern) for pattern in keep):
            path.rename(target / path.name)
    return target
