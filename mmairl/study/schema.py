"""Typed schemas of JSON files, mainly of those in a run's folder: request, training summary, scores.

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with different options.

The keys in the files never change. If the name of a struct's field differs from the key in the file,
`field(name=...)` states the key.
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
# The files that stay in a run's folder when its weights and scores are moved elsewhere.
REQUEST_AND_LOGS = ('asked*', 'log.txt', 'failed*.txt', 'job.*', 'begun.txt', '.lock*')


class Chosen(Struct):
    """The request to choose the best trial of a search, and to train with the options of this trial."""

    trials: tuple[str, ...]  # the folders of the trials
    criterion: str  # the task whose score decides which trial is best
    # The folder of the run with the seed of this run and with the row's own, unchanged options (the row as published).
    published: str = ''


class Branch(Struct, frozen=True):
    """The request to a branch (the run of a fork) to continue the run of another row, the trunk."""

    trunk: str  # the folder of the trunk
    epoch: int  # the trunk's epoch after which the branch continues


class Asked(Struct, omit_defaults=True, frozen=True):
    """asked.json: the request to a run's worker, the process that trains and measures the run.

    In `rescaled` and `along`, `of` and `anchor` hold folders of runs in place of names of rows.
    """

    seed: int
    tasks: tuple[str, ...] = ()
    rescaled: Rescaled | None = None
    along: Along | None = None
    fork: Branch | None = None
    fork_points: tuple[int, ...] = ()  # epochs after which branches continue this run
    untrained: Untrained | None = None
    external: str = field(default='', name='given')  # the path of an external checkpoint
    stated: dict[str, str] = {}  # the factors of an external checkpoint that its authors state
    # The options of a trial. The trial's config already includes them. If the trial is the best of its search, the
    # options are read from this request to train the row again.
    trial: dict[str, Any] | None = None
    # The data sets of the trial's row. The worker raises an error if their held-out images include test images, because
    # trials are measured on these held-out images.
    splits: dict[str, Any] = {}
    chosen: Chosen | None = None
    # For each tuned task, the options of its trials.
    tuned: dict[str, tuple[dict[str, Any], ...]] = {}
    # Digests of the modules that training imports from outside the package. The value is None if the run is not trained, or
    # if an earlier version wrote this request without digests.
    sources: dict[str, str] | None = None

    @property
    def trains(self) -> bool:
        return not (self.rescaled or self.along or self.untrained or self.external)


class EarlierAnalyses(Struct):
    """The entries of an existing study.json that are carried over when it is written again."""

    # The number of finished runs at each analysis of the study so far.
    finished_runs: list[int] = field(default_factory=list, name='looks')


class Choice(Struct):
    """chosen.json: the best trial of a search. The run in this folder is trained with the options of this trial."""

    trial: str  # the folder of the trial
    options: dict[str, Any]
    score: float


class TrainingStart(Struct):
    """start.json: digests of the backbone's initial weights, of their shapes, and of the order of the first images."""

    weights: str
    shapes: str
    order: str | None = None


class Trained(Struct, kw_only=True):
    """trained.json: a summary of the training, written when the run's weights are complete."""

    seconds: float | None = None
    device_seconds: float | None = None
    steps: int | None = None
    images_seen: int | None = None
    start: TrainingStart | None = None
    # The identity of everything from which the weights were created; see `reuse.origin`.
    made: dict[str, Any] = {}
    sources: dict[str, str] | None = None  # the `sources` of asked.json when training began


class RunResult(Trained, omit_defaults=True, kw_only=True):
    """result.json: the scores of a run, and facts about the run for the study's page."""

    checkpoint: str = ''
    # The main score of each task, or all scores of a task of tools/transfer.py.
    scores: dict[str, float] = {}
    labels: dict[str, str] = {}  # the label of each score on the study page
    further: dict[str, float] = {}  # the other scores of the tasks; a key is 'TASK SCORE'
    # For each task, everything that its score depends on.
    identities: dict[str, dict[str, Any]] = {}
    sha256: str = ''  # the digest of the checkpoint's file
    weights: str = ''  # the identity of the model, which does not depend on the file format
    file: tuple[int, ...] = ()  # size and modification time of the checkpoint
    git: str = ''
    versions: dict[str, str] = {}
    hardware: str = ''
    evaluation: str = ''
    curves: dict[str, Curve] = {}
    hidden: dict[str, str] = {}
    # For each task, how many images were unreadable and how many classes had no image.
    left_out: dict[str, dict[str, int]] = {}
    tuned: dict[str, dict[str, Any]] = {}  # for each tuned task, the result of tuning its recipe
    diverged: str = ''  # the reason why this trial counts as the worst of its search
    excluded: str = ''  # the reason why this branch of a trunk was not trained

    def __post_init__(self) -> None:
        if any(len(steps) != len(values) for steps, values in self.curves.values()):
            raise ValueError('curves: a curve must have one value for each step')


class Measured(Struct):
    """TASK_KEY.json: the scores of one task.

    The identity describes everything that the scores depend on, and KEY is its digest.
    """

    scores: dict[str, float]
    identity: dict[str, Any]
    right: dict[str, Any] | None = None  # which test images were classified correctly
    # The recipe's best trial, and the scores of all trials on held-out images.
    tuned: dict[str, Any] = {}
    # How many images were unreadable and how many classes had no image.
    left_out: dict[str, int] = {}


def result_file(folder: Path, task: str, identity: Mapping[str, Any]) -> Path:
    return folder / f'{task}_{key_of(identity)}.json'


def last_checkpoint(folder: Path) -> Path:
    return folder / Path(read_text(folder / 'last_checkpoint').strip()).name


def set_aside(folder: Path, keep: Collection[str] = (), last: str = '') -> Path:
    """Move a run's files into a new folder next to the run's folder, so that the run starts afresh.

    Args:
        folder: The run's folder.
        keep: Patterns of the names of files that stay. If there are no patterns, the folder itself is renamed.
        last: The file to move last. If a move was interrupted, this file is still in place, so the caller sees that it
            must repeat the move.

    Returns:
        The new folder.
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
