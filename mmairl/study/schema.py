"""The files in a run's folder, as types: what was asked of it, what its training left, and what was measured."""

from typing import Any

from msgspec import Struct

from mmairl.study.spec import Along, Rescaled, Untrained


class Chosen(Struct):
    """The run takes what the best of these trials, which are folders, changed in the row's config."""

    trials: tuple[str, ...]
    criterion: str
    published: str = ''  # the folder of the row as published, from the same seed


class Asked(Struct, omit_defaults=True, frozen=True):
    """asked.json, beside the config in asked/config.yaml. In `rescaled` and `along` the rows are the folders of their runs."""

    seed: int
    tasks: tuple[str, ...] = ()
    rescaled: Rescaled | None = None
    along: Along | None = None
    untrained: Untrained | None = None
    given: str = ''  # the checkpoint of a network that was trained elsewhere
    stated: dict[str, str] = {}  # its factors, as its author states them
    trial: dict[str, Any] | None = None  # of a search: the config keys that it changes, which the config has already
    splits: dict[str, Any] = {}  # of a trial: the row's own data, whose test images the trial must not see
    chosen: Chosen | None = None
    tuned: dict[str, tuple[dict[str, Any], ...]] = {}  # by task: the trials of its recipe
    sources: dict[str, str] | None = None  # digests of the outside modules that training imports; None: not recorded

    @property
    def trains(self) -> bool:
        return not (self.rescaled or self.along or self.untrained or self.given)


class Looked(Struct):
    """The part of study.json that the next record takes over: how many runs were finished at each look that was taken."""

    looks: list[int] = []


class Choice(Struct):
    """chosen.json: the trial whose keys a run was trained with."""

    trial: str
    options: dict[str, Any]
    score: float


class Start(Struct):
    """start.json: digests of what training started from."""

    weights: str
    shapes: str
    order: str | None = None


class Trained(Struct, kw_only=True):
    """trained.json, which is there when training has ended."""

    seconds: float | None = None
    device_seconds: float | None = None
    steps: int | None = None
    images_seen: int | None = None
    start: Start | None = None
    made: dict[str, Any] = {}  # `derived.origin`: how, and of which weights, without training
    sources: dict[str, str] | None = None  # as in asked.json, when training began


class Result(Trained, omit_defaults=True, kw_only=True):
    """result.json: all that the page says of a run."""

    checkpoint: str = ''
    scores: dict[str, float] = {}  # by task
    labels: dict[str, str] = {}
    further: dict[str, float] = {}  # other scores of the tasks
    identities: dict[str, dict[str, Any]] = {}  # by task, of `evaluation.identity`
    sha256: str = ''  # of the checkpoint's file
    weights: str = ''  # the identity of its model, which other files can share
    file: tuple[int, ...] = ()  # size and time of change of the checkpoint
    git: str = ''
    versions: dict[str, str] = {}
    hardware: str = ''
    evaluation: str = ''
    curves: dict[str, Any] = {}
    hidden: dict[str, str] = {}
    left_out: dict[str, dict[str, int]] = {}  # by task, what its scores do not tell of
    tuned: dict[str, dict[str, Any]] = {}  # by task, where its recipe was tuned
    diverged: str = ''  # why a trial has no score and counts as the worst


class Measured(Struct):
    """TASK_KEY.json: the scores of one task by name."""

    scores: dict[str, float]
    identity: dict[str, Any]
    right: dict[str, Any] | None = None  # the test images that are recognised
    tuned: dict[str, Any] = {}  # the choice among trials of the recipe, and their scores on held-out images
    left_out: dict[str, int] = {}  # what the scores do not tell of: unreadable images, missing classes
