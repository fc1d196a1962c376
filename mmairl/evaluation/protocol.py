"""One measurement, start to end: a checkpoint or a baseline, on a config's data, by one of five protocols."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mmengine import Config

from mmairl.checkpoints.read import read_backbone
from mmairl.engine.distributed import start_processes
from mmairl.errors import UserError
from mmairl.evaluation import by_training, on_features
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.evaluation.by_training import TrainingSettings
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import NAME, data_identity, identity_of
from mmairl.evaluation.on_features import FeatureSettings
from mmairl.evaluation.sets import CHOOSE_BY_VAL, evaluation_sets, require_no_test_images, with_views
from mmairl.hardware import cores
from mmairl.io import read_json

BASELINES = ('random', 'pixels')
ON_FEATURES, BY_TRAINING = on_features.PROTOCOLS, by_training.PROTOCOLS
Settings = FeatureSettings | TrainingSettings


@dataclass(frozen=True)
class Result:
    """One row of a results table: a subject, its scores in percent by name, and the seconds it took.

    `identity` is what the scores depend on (`evaluation.identity`); `left_out` counts what they do not tell of.
    """

    subject: str
    scores: dict[str, float]
    seconds: float
    details: dict = field(default_factory=dict)
    identity: dict = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)


def settings_for(protocol: str, **options: Any) -> Settings:
    """Return the settings of a protocol out of the options of all; an option that is None is left at its default.

    >>> settings_for('knn', ks=[20], recipe=None, work_dir='a').ks
    [20]
    """
    kind = FeatureSettings if protocol in ON_FEATURES else TrainingSettings
    names = {own.name for own in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in options.items() if name in names and value is not None})


def evaluate(
    cfg: Config,
    protocol: str,
    subject: str | Path,
    part: str = 'student',
    settings: Settings | None = None,
    asked: Mapping[str, Any] | None = None,
    prefix: str | None = None,
) -> Result:
    """Measure one subject by one protocol; `asked` is added to what the result depends on.

    `prefix` is the beginning of the backbone's keys in a checkpoint, which is found if it is None.

    >>> evaluate(cfg, 'knn', 'work_dirs/demo/epoch_10.pth').scores  # doctest: +SKIP
    {'k-NN, k = 20': 71.3, 'k-NN, k = 200': 69.8}
    """
    if protocol not in (known := (*ON_FEATURES, *BY_TRAINING)):
        raise UserError(f"there is no protocol '{protocol}'; say one of {', '.join(known)}")
    settings, began = settings or settings_for(protocol), time.perf_counter()
    start_processes(settings.launcher)
    read = str(subject) if subject in BASELINES else read_backbone(subject, part, prefix, tensors_of_config(cfg))
    sets = evaluation_sets(cfg, protocol)
    if protocol == CHOOSE_BY_VAL and 'val' in sets:
        on_main_process(lambda: require_no_test_images(cfg.evaluation, sets['val'][1], sets['test'][1]))
    built = {str(with_views(described, None)): dataset for described, dataset in sets.values()}

    def looked_at(described: Mapping) -> dict[str, Any]:
        return data_identity(described, built.get(str(with_views(described, None))))

    identity = on_main_process(lambda: identity_of(cfg, protocol, read, settings, asked, looked_at))
    road = on_features if protocol in ON_FEATURES else by_training
    scores, details, left_out = road.measure(cfg, protocol, read, settings, sets, identity)
    if protocol in BY_TRAINING:  # a finished run may be of an earlier version
        identity = read_json(settings.work_dir / NAME)
    return Result(name_of(subject, part), scores, time.perf_counter() - began, details, identity, left_out)


def default_device() -> str:
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def default_workers() -> int:
    """How many processes load images: none on a CPU, whose cores the network takes."""
    return min(8, cores()) if torch.cuda.is_available() else 0


def name_of(subject: str | Path, part: str) -> str:
    """How a table calls a subject."""
    names = {'pixels': 'raw pixels', 'random': 'random initialisation'}
    return names.get(str(subject), f'{part} of {Path(subject).name}')
