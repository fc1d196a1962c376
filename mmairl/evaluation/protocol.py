"""The base class of evaluation protocols, and `evaluate`, which scores one model by one protocol.

A protocol is a dataclass registered in `PROTOCOLS`. Its fields are its settings.
docs/how-to/add_data_and_protocols.md explains how to add a protocol.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from mmengine import Config
from torch.utils.data import Dataset

from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.data.view_sets import expand_named_views
from mmairl.engine.distributed import start_processes
from mmairl.errors import UserError, closest
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import config_identity, data_identity, identity_of
from mmairl.evaluation.sets import (
    described_sets,
    evaluation_sets,
    innermost,
    require_no_test_images,
    with_views,
)
from mmairl.hardware import cores
from mmairl.registry import PROTOCOLS

BASELINES = ('random', 'pixels')
Scores = dict[str, float]
# An outcome has the scores, details, and the numbers of excluded images and classes by reason.
Outcome = tuple[Scores, dict, dict[str, int]]
Sets = Mapping[str, tuple[dict, Dataset]]
NEUTRAL = {'neutral': True}  # This metadata marks a setting that cannot change a score.
# This text is added to the name of a model if its training run measured k-NN accuracy on test images.
WATCHED = ', whose run watched the test images'


@dataclass(frozen=True)
class Result:
    """The scores of one subject. A subject is a model or a baseline.

    Attributes:
        subject: Name of the subject in tables.
        scores: Scores by name, in percent unless their protocol states otherwise. The first is the main score.
        seconds: Duration of the measurement in seconds.
        details: Further values of the protocol, such as the hyperparameters that it chose.
        identity: Everything that the scores depend on (`mmairl.evaluation.identity`).
        left_out: How many images are unreadable, and how many classes have no image. Keys describe what is counted.
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
        validation: How the config's validation images are used. ``'join'`` adds them to the training images if both are splits
            of one data set, ``'choose'`` chooses hyperparameters on them, and ``'recipe'`` lets the recipe decide.
        labels: Supported kinds of labels: ``'single'`` (one class per image), ``'multi'`` (several classes per image),
            ``'dense'`` (one value per pixel) and ``'queries'`` (the queries that an image matches).
        metric: ``'dataset'`` if the data set defines the metric, the name of the metric if the protocol defines it, or
            ``'none'`` if the protocol uses no labels.
        null_rows: The baselines that a study adds to this protocol's tables.
        trains: Whether the protocol trains a network by a recipe.
        columns: Dictionary from the ImageNet columns in the tables of the ECCV 2022 paper (see README.md) to the names of
            the protocol's scores.
        published: Dictionary from the names of published ImageNet scores to the names of the protocol's scores that a study
            shows next to them. An empty string means the main score.
        unit: Unit of the scores.

    Args:
        device: Device of the feature extraction.
        workers: Number of processes that load images.
        launcher: mmengine's name of the launcher of a distributed evaluation, such as 'pytorch'. Default: 'none'.
        remeasure: Whether to replace stored features or finished runs.
        cache: Folder for stored features. If it is None, features are not kept.
        work_dir: Folder for training runs.
    """

    device: str = field(default='cpu', metadata=NEUTRAL)
    workers: int = field(default=0, metadata=NEUTRAL)
    launcher: str = field(default='none', metadata=NEUTRAL)
    remeasure: bool = field(default=False, metadata=NEUTRAL)
    cache: Path | None = field(default=None, metadata=NEUTRAL)
    work_dir: Path = field(default=Path('work_dirs/evaluation'), metadata=NEUTRAL)

    validation: ClassVar[Literal['join', 'choose', 'recipe']] = 'join'
    labels: ClassVar[tuple[str, ...]] = ('single', 'multi')
    metric: ClassVar[str] = 'dataset'
    null_rows: ClassVar[tuple[str, ...]] = BASELINES
    trains: ClassVar[bool] = False
    columns: ClassVar[Mapping[str, str]] = {}
    published: ClassVar[Mapping[str, str]] = {}
    unit: ClassVar[str] = '%'

    @property
    def name(self) -> str:
        """Return the name under which the class is registered."""
        return next(name for name, kind in PROTOCOLS.module_dict.items() if kind is type(self))

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        """Return the settings that can change a score. Override this method if a default depends on the config."""
        chosen = {
            own.name: getattr(self, own.name)
            for own in fields(self)
            if not own.metadata.get('neutral')
        }
        return config_identity(chosen)

    def chooses(self, cfg: Config, trials: bool = False) -> bool:
        """Return whether hyperparameters are chosen on the held-out images of `sets.held_out`.

        `trials` is True if a study tunes hyperparameters in several trials.
        """
        return self.validation == 'choose' and bool(cfg.get('evaluation', {}).get('val'))

    def images_seen(self, cfg: Config, images: int | None, trials: int | None = None) -> int | None:
        """Return how many training images pass through the network in total, or None if this is unknown.

        The plan of a study estimates the duration from this number.

        Args:
            cfg: The config to evaluate.
            images: Number of images in the training set.
            trials: Number of trials, if a study tunes hyperparameters.
        """
        return images

    def input_size(self, cfg: Config) -> int | None:
        """Return the side of the images that the network receives, or None if the config does not state it."""
        tested = innermost(described_sets(cfg, self.name)['test'])
        views = expand_named_views(tested.get('views') or [])
        steps = chain([tested], *views)
        sizes = [step['size'] for step in steps if 'size' in step]
        return sizes[-1] if sizes else None

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        """Score the subject, and return the scores, details, and the numbers of excluded images and classes.

        The details are plain values. The excluded images and classes are counted by reason.
        """
        raise NotImplementedError


def protocol_class(name: str) -> type[Protocol]:
    """Return the class of a registered protocol, or raise a `UserError` if the name is unknown."""
    if not is_protocol(name):
        known = PROTOCOLS.names()
        raise UserError(
            f"protocol: unknown name ('{name}'); expected one of {', '.join(known)}, or one that the config's `custom_imports` "
            f'registers{closest(name, known)}',
            code='unknown-protocol',
        )
    return PROTOCOLS.get(name)


def is_protocol(name: str) -> bool:
    """Return whether a protocol is registered under this name."""
    return name in PROTOCOLS.names()


def settings_for(protocol: str, cfg: Config | None = None, **options: Any) -> Protocol:
    """Return a protocol with these settings. An option that is None keeps its default.

    Args:
        protocol: Name of a registered protocol.
        cfg: A config whose `evaluation.settings[protocol]` replaces defaults.
        **options: The settings. They take precedence over those of the config.

    Raises:
        UserError: If the protocol or a setting is unknown.

    Example:
        >>> settings_for('knn', ks=[20], temperature=None).ks
        [20]
    """
    kind = protocol_class(protocol)
    chosen = {}
    if cfg:
        chosen.update(cfg.get('evaluation', {}).get('settings', {}).get(protocol, {}))
    chosen.update((name, value) for name, value in options.items() if value is not None)
    settings = [own.name for own in fields(kind)]
    for name in chosen:
        if name not in settings:
            own = settings[len(fields(Protocol)) :]
            raise UserError(
                f"{protocol}: unknown setting ('{name}'); the settings of this protocol are: {', '.join(own) or 'none'}",
                code='unknown-setting',
            )
    return kind(**chosen)


def evaluate(
    cfg: Config,
    protocol: str,
    subject: str | Path | Backbone,
    part: str = 'student',
    settings: Protocol | None = None,
    asked: Mapping[str, Any] | None = None,
    prefix: str | None = None,
) -> Result:
    """Score one model or baseline with one protocol.

    Args:
        cfg: The config that defines the network as `model.backbone` and the data as `evaluation`.
        protocol: Name of a registered protocol.
        subject: A checkpoint, a `Backbone` from `read_backbone`, or a baseline: 'random' or 'pixels'.
        part: 'student' or 'teacher'.
        settings: The protocol's settings, from `settings_for`. Default: those of the config.
        asked: Further facts that the result depends on. They become part of the result's identity.
        prefix: Prefix of the backbone's keys in the checkpoint. Default: detect it.

    Returns:
        The scores, with the identity of the result.

    Raises:
        UserError: If the protocol is unknown, or if the checkpoint or the data do not fit the config.

    Example:
        >>> evaluate(cfg, 'knn', 'work_dirs/demo/epoch_10.pth').scores  # doctest: +SKIP
        {'k-NN, k = 20': 71.3, 'k-NN, k = 200': 69.8}
    """
    settings = settings or settings_for(protocol, cfg)
    if not isinstance(settings, protocol_class(protocol)):
        raise UserError(
            f"{protocol}: the settings are those of another protocol; create them by settings_for('{protocol}', cfg)",
            code='other-settings',
        )
    began = time.perf_counter()
    start_processes(settings.launcher)
    loaded = subject
    if not isinstance(subject, Backbone) and subject not in BASELINES:
        loaded = read_backbone(subject, part, prefix, tensors_of_config(cfg))
    sets = evaluation_sets(cfg, protocol)
    if settings.validation == 'choose' and 'val' in sets:
        on_main_process(
            lambda: require_no_test_images(cfg.evaluation, sets['val'][1], sets['test'][1])
        )
    built = {_data_key(described): dataset for described, dataset in sets.values()}

    def identity_of_data(described: Mapping) -> dict[str, Any]:
        return data_identity(described, built.get(_data_key(described)))

    identity = on_main_process(lambda: identity_of(cfg, settings, loaded, asked, identity_of_data))
    scores, details, left_out = settings.run(cfg, loaded, sets, identity)
    identity = details.pop('identity', identity)
    seconds = time.perf_counter() - began
    name = subject_name(subject, part)
    if isinstance(loaded, Backbone) and watched_test_images(loaded.settings):
        name += WATCHED
    return Result(name, scores, seconds, details, identity, left_out)


def watched_test_images(settings: Mapping[str, Any]) -> bool:
    """Return whether a training run with these settings measured k-NN accuracy on test images.

    The settings are a dictionary with dotted keys, such as 'custom_hooks.0.type'.
    """
    for key, value in settings.items():
        hook = key.removesuffix('.type')
        if 'OnlineKNN' in str(value) and settings.get(f'{hook}.images') == 'test':
            return True
    return False


def _data_key(described: Mapping) -> str:
    return str(with_views(described, None))


def default_device() -> str:
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def default_workers() -> int:
    """Return the default number of processes that load images: one per core, at most 8.

    Without a GPU, it is 0, because the network needs every core.
    """
    return min(8, cores()) if torch.cuda.is_available() else 0


def subject_name(subject: str | Path | Backbone, part: str) -> str:
    """Return the name of a subject in tables."""
    names = {'pixels': 'raw pixels', 'random': 'random initialisation'}
    if isinstance(subject, Backbone):
        subject = subject.path
    return names.get(str(subject), f'{part} of {Path(subject).name}')
