"""The base class of evaluation protocols, and `evaluate`, which scores one model by one protocol.

A protocol is a dataclass registered in `PROTOCOLS`. Its fields are its settings.
"""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from mmengine import Config
from mmengine.dist import is_main_process
from torch.utils.data import Dataset

from mmairl.checkpoints.architecture import tensors_of
from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.engine.distributed import start_processes
from mmairl.errors import UserError, closest, explained
from mmairl.evaluation.features import Readable, on_main_process
from mmairl.evaluation.identity import identity_of, key_of
from mmairl.evaluation.metrics import chance, interval
from mmairl.evaluation.sets import evaluation_sets, leaked_images, prepared_config
from mmairl.hardware import cores
from mmairl.io import read_json, write_json
from mmairl.registry import PROTOCOLS

BASELINES = {'pixels': 'raw pixels', 'random': 'random initialization'}
Scores = dict[str, float]
# An outcome has the scores, details, and the numbers of excluded images by reason.
Outcome = tuple[Scores, dict, dict[str, int]]
Sets = Mapping[str, tuple[dict, Dataset]]


@dataclass(frozen=True)
class Result:
    """The scores of one subject. A subject is a model or a baseline.

    Attributes:
        subject: Name of the subject in tables.
        scores: Scores by name, in percent unless their protocol states otherwise. The first is the
            main score.
        seconds: Duration of the measurement in seconds.
        details: Further values, such as the hyperparameters that the protocol chose. Every result
            has `image_size`, `test_images` and `copies`, the number of test images that are exact
            copies of training images. Accuracies have `chance` and a 95 % `interval`.
        identity: Everything that the scores depend on (`mmairl.evaluation.identity`).
        left_out: How many images are unreadable, by part.
    """

    subject: str
    scores: Scores
    seconds: float
    details: dict = field(default_factory=dict)
    identity: dict = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """One way to score a model on labeled images. The fields of the dataclass are its settings.

    Subclass `FeatureProtocol` or `TrainingProtocol`, and register the class with a name::

        @PROTOCOLS.register_module('ncm')
        @dataclass(frozen=True)
        class NearestClassMean(FeatureProtocol): ...

    Class attributes:
        validation: How the config's validation images are used. ``'join'`` adds them to the training
            images if both are splits of one data set, ``'choose'`` chooses hyperparameters on them,
            and ``'recipe'`` lets the recipe decide.
        labels: Supported kinds of labels: ``'single'`` (one class per image), ``'multi'`` (several
            classes per image) and ``'dense'`` (one value per pixel).
        metric: ``'dataset'`` if the data set defines the metric, the name of the metric if the
            protocol defines it, or ``'none'`` if the protocol uses no labels.
        null_rows: The baselines that a study adds to this protocol's tables.
        columns: Dictionary from the ImageNet columns in the tables of the ECCV 2022 paper (see
            README.md) to the names of the protocol's scores.
        unit: Unit of the scores.

    Args:
        device: Device of the feature extraction.
        workers: Number of processes that load images.
        launcher: mmengine's name of the launcher of a distributed evaluation. Default: 'none'.
        cache: Folder for stored features and scores. Stored scores of the same identity are
            returned. If it is None, nothing is kept.
        work_dir: Folder for training runs.
    """

    device: str = 'cpu'
    workers: int = 0
    launcher: str = 'none'
    cache: Path | None = None
    work_dir: Path = Path('work_dirs/evaluation')

    validation: ClassVar[Literal['join', 'choose', 'recipe']] = 'join'
    labels: ClassVar[tuple[str, ...]] = ('single', 'multi')
    metric: ClassVar[str] = 'dataset'
    null_rows: ClassVar[tuple[str, ...]] = tuple(BASELINES)
    columns: ClassVar[Mapping[str, str]] = {}
    unit: ClassVar[str] = '%'

    @property
    def name(self) -> str:
        """Return the name under which the class is registered."""
        return next(name for name, kind in PROTOCOLS.module_dict.items() if kind is type(self))

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        """Return the settings that can change a score: those that a subclass adds.

        Override this method if a default depends on the config.
        """
        neutral = {shared.name for shared in fields(Protocol)}
        names = [own.name for own in fields(self) if own.name not in neutral]
        return {name: getattr(self, name) for name in names}

    def chooses(self, cfg: Config) -> bool:
        """Return whether hyperparameters are chosen on the images of `sets.held_out`."""
        return self.validation == 'choose'

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        """Return the scores, details as plain values, and the numbers of excluded images."""
        raise NotImplementedError


def is_protocol(name: str) -> bool:
    """Return whether a protocol is registered under this name."""
    return name in PROTOCOLS.names()


def protocol_class(name: str) -> type[Protocol]:
    """Return the class of a registered protocol, or raise a `UserError`."""
    if is_protocol(name):
        return PROTOCOLS.get(name)
    known = PROTOCOLS.names()
    raise UserError(
        f"protocol: unknown name ('{name}'); use one of {', '.join(known)}, or one that the config's "
        f'`custom_imports` registers{closest(name, known)}',
        code='unknown-protocol',
    )


def settings_for(protocol: str, cfg: Config | None = None, **options: Any) -> Protocol:
    """Return a protocol with these settings. An option that is None keeps its default.

    Args:
        protocol: Name of a registered protocol.
        cfg: A config whose `evaluation.settings[protocol]` replaces defaults.
        **options: The settings. They take precedence over those of the config.

    Raises:
        UserError: If the protocol or a setting is unknown.

    Example:
        >>> settings_for('knn', ks=[20]).ks
        [20]
    """
    kind = protocol_class(protocol)
    data = (cfg or {}).get('evaluation') or {}
    chosen = dict(data.get('settings', {}).get(protocol, {}))
    chosen |= {name: value for name, value in options.items() if value is not None}
    known = ', '.join(own.name for own in fields(kind))
    fault = f'{protocol}: unknown setting'
    with explained(fault, f'use {known}', (TypeError,), code='unknown-setting'):
        return kind(**chosen)


def evaluate(
    cfg: Config,
    protocol: str,
    subject: str | Path | Backbone,
    part: str = 'student',
    settings: Protocol | None = None,
) -> Result:
    """Score one model or baseline with one protocol.

    Args:
        cfg: The config that defines the network as `model.backbone` and the data as `evaluation`.
        protocol: Name of a registered protocol.
        subject: A checkpoint, a `Backbone` from `read_backbone`, or a baseline: 'random' or
            'pixels'.
        part: 'student' or 'teacher'.
        settings: The protocol's settings, from `settings_for`. Default: those of the config.

    Returns:
        The scores, with the identity of the result.

    Raises:
        UserError: If the protocol is unknown, or if the checkpoint or the data do not fit.

    Example:
        >>> evaluate(cfg, 'knn', 'work_dirs/demo/epoch_10.pth').scores  # doctest: +SKIP
        {'k-NN, k = 20': 71.3, 'k-NN, k = 200': 69.8}
    """
    settings = settings or settings_for(protocol, cfg)
    began = time.perf_counter()
    start_processes(settings.launcher)
    is_baseline = isinstance(subject, str) and subject in BASELINES
    if not is_baseline and not isinstance(subject, Backbone):
        subject = read_backbone(subject, part, network=tensors_of(cfg.model.backbone))
    name = BASELINES[subject] if is_baseline else f'{part} of {Path(subject.path).name}'
    cfg = prepared_config(cfg, subject)
    sets = evaluation_sets(cfg, protocol)
    identity = on_main_process(lambda: identity_of(cfg, settings, subject, sets))
    stored = settings.cache and Path(settings.cache, f'{protocol}_{key_of(identity)}.json')
    if stored and on_main_process(stored.is_file):
        return replace(Result(**read_json(stored)), subject=name)
    copies = on_main_process(lambda: leaked_images(cfg, settings, sets))
    scores, details, left_out = settings.run(cfg, subject, sets, identity)
    details = facts(settings, scores, sets['test'][1]) | dict(copies=copies) | details
    result = Result(name, scores, time.perf_counter() - began, details, identity, left_out)
    if stored and is_main_process():
        write_json(stored, dataclasses.asdict(result))
    return result


def facts(settings: Protocol, scores: Scores, test: Dataset) -> dict[str, Any]:
    """Return what a reader of a score must know: image size, test images, chance and interval."""
    image = Readable(test)[0]['inputs'][0]
    found: dict[str, Any] = dict(test_images=len(test), image_size=list(image.shape[-2:]))
    metric = test.metric if settings.metric == 'dataset' else settings.metric
    if metric in ('top-1', 'mean per class', '11-point mAP'):
        found['chance'] = chance(metric, test.labels)
        if metric != '11-point mAP':
            found['interval'] = list(interval(next(iter(scores.values())), len(test)))
    return found


def default_device() -> str:
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def default_workers() -> int:
    """Return the default number of processes that load images: one per core, at most 8.

    Without a GPU, it is 0, because the network needs every core.
    """
    return min(8, cores()) if torch.cuda.is_available() else 0
