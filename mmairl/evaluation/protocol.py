"""One measurement, start to end: who is measured (a checkpoint or a baseline), on what, by which protocol."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from mmengine import Config
from torch import nn
from torch.utils.data import Dataset

from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Features, extract
from mmairl.evaluation.knn import knn_accuracy
from mmairl.evaluation.linear import linear_probe
from mmairl.registry import DATASETS

BASELINES = ('random', 'pixels')


@dataclass(frozen=True)
class Result:
    """One row of a results table: a subject, its scores in percent by name, and the seconds it took."""

    subject: str
    scores: dict[str, float]
    seconds: float
    details: dict = field(default_factory=dict)


def default_device() -> str:
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def evaluation_data(cfg: Config) -> tuple[Dataset, Dataset]:
    """The labelled training and test sets that the config names for evaluation."""
    settings = cfg.get('evaluation')
    if not settings or 'train' not in settings or 'test' not in settings:
        raise UserError(f'{cfg.filename} names no data to evaluate on; add evaluation = dict(train=..., test=...)')
    return DATASETS.build(settings.train), DATASETS.build(settings.test)


def subject_backbone(cfg: Config, subject: str | Path, part: str = 'student', seed: int = 0) -> nn.Module | None:
    """The network of a subject: 'pixels' has none, 'random' is the untrained one, anything else is a checkpoint."""
    if subject == 'pixels':
        return None
    return load_backbone(cfg, None if subject == 'random' else subject, part, seed)


def features_of(
    cfg: Config, backbone: nn.Module | None, data: Sequence[Dataset], device: str, workers: int = 0
) -> tuple[Features, ...]:
    """Features of each data set, normalised as in the config's training."""
    normal = cfg.model.data_preprocessor
    batch_size = cfg.evaluation.get('batch_size', 256)
    return tuple(extract(backbone, part, normal.mean, normal.std, batch_size, device, workers) for part in data)


def measure(
    protocol: str, train: Features, test: Features, ks: Sequence[int], device: str
) -> tuple[dict[str, float], dict]:
    """Scores in percent by name, and the details that the JSON keeps, of one protocol on given features."""
    if protocol == 'knn':
        return {f'k-NN, k = {k}': score for k, score in knn_accuracy(train, test, ks, device=device).items()}, {}
    probe = linear_probe(train, test, device=device)
    return {'linear': probe.accuracy}, {'strength': probe.strength, 'held_out': probe.held_out}


def evaluate(
    cfg: Config,
    protocol: str,
    subject: str | Path,
    part: str = 'student',
    ks: Sequence[int] = (20, 200),
    device: str = 'cpu',
    workers: int = 0,
) -> Result:
    """Measure one subject by one protocol, 'knn' or 'linear'.

    >>> evaluate(cfg, 'knn', 'work_dirs/demo/epoch_10.pth').scores  # doctest: +SKIP
    {'k-NN, k = 20': 71.3, 'k-NN, k = 200': 69.8}
    """
    start = time.perf_counter()
    backbone = subject_backbone(cfg, subject, part)
    train, test = features_of(cfg, backbone, evaluation_data(cfg), device, workers)
    scores, details = measure(protocol, train, test, ks, device)
    sizes = {'train_images': len(train.x), 'test_images': len(test.x), 'dimensions': train.x.shape[1]}
    return Result(name_of(subject, part), scores, time.perf_counter() - start, {**sizes, **details})


def name_of(subject: str | Path, part: str) -> str:
    """How a table calls a subject."""
    names = {'pixels': 'raw pixels', 'random': 'random initialisation'}
    return names.get(str(subject), f'{part} of {Path(subject).name}')
