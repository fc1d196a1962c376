"""One measurement, start to end: who is measured (a checkpoint or a baseline), on what, by which protocol."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from mmengine import Config
from mmengine.config import ConfigDict
from mmengine.dist import barrier, broadcast_object_list, is_main_process
from mmengine.logging import print_log
from torch import nn
from torch.utils.data import Dataset

from mmairl.engine.distributed import start_processes
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.compose import recipe_of
from mmairl.evaluation.features import Extraction, Features, extract
from mmairl.evaluation.knn import TEMPERATURE, knn_accuracy
from mmairl.evaluation.logreg import QUICK, STRENGTHS, logistic_regression
from mmairl.evaluation.store import stored
from mmairl.evaluation.training import refit, train_and_test
from mmairl.registry import DATASETS
from mmairl.weights.norms import looks_lars_trained
from mmairl.weights.read import read_backbone

Answer = TypeVar('Answer')
BASELINES = ('random', 'pixels')
ON_FEATURES = ('knn', 'logreg', 'svm')
BY_TRAINING = ('linear', 'finetune')


@dataclass(frozen=True)
class Result:
    """One row of a results table: a subject, its scores in percent by name, and the seconds it took."""

    subject: str
    scores: dict[str, float]
    seconds: float
    details: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How to measure, beyond the protocol's name; a command line's options."""

    ks: Sequence[int] = (20, 200)
    temperature: float = TEMPERATURE
    device: str = 'cpu'
    workers: int = 0
    cache: Path | None = None
    recipe: str | None = None
    sweep: bool = False
    low_shot: bool = False
    work_dir: Path = Path('work_dirs/evaluation')
    launcher: str = 'none'


def default_device() -> str:
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def evaluate(
    cfg: Config, protocol: str, subject: str | Path, part: str = 'student', settings: Settings | None = None
) -> Result:
    """Measure one subject by one protocol.

    >>> evaluate(cfg, 'knn', 'work_dirs/demo/epoch_10.pth').scores  # doctest: +SKIP
    {'k-NN, k = 20': 71.3, 'k-NN, k = 200': 69.8}
    """
    settings, start = settings or Settings(), time.perf_counter()
    start_processes(settings.launcher)
    measured = _by_training if protocol in BY_TRAINING else _on_features
    scores, details = measured(cfg, protocol, subject, part, settings)
    return Result(name_of(subject, part), scores, time.perf_counter() - start, details)


def _by_training(
    cfg: Config, protocol: str, subject: str | Path, part: str, settings: Settings
) -> tuple[dict[str, float], dict]:
    require_data(cfg)
    recipe = recipe_of(cfg, protocol, settings.recipe or _of_large_norms(cfg, protocol, subject, part))
    print_log(f'{protocol} by the recipe {Path(recipe.filename).stem}', logger='current')
    if subject == 'pixels':
        cfg = _without_network(cfg)
    start = None
    if subject not in BASELINES:
        start = dict(type='PretrainedBackbone', checkpoint=str(subject), part=part)
    scores, details = train_and_test(
        cfg, recipe, start, settings.work_dir, settings.sweep, settings.workers, settings.launcher
    )
    return {f'{protocol}, {name}': value for name, value in scores.items()}, {
        'recipe': Path(recipe.filename).stem,
        'work_dir': str(settings.work_dir),
        **details,
    }


def _of_large_norms(cfg: Config, protocol: str, subject: str | Path, part: str) -> str | None:
    """The linear recipe of LARS-trained networks where only the weights can tell, as in the configs of other data sets."""
    told = 'optim_wrapper' in cfg or 'linear' in cfg.get('recipes', {})
    if protocol != 'linear' or told or subject in BASELINES:
        return None
    return 'linear_lars_80e' if looks_lars_trained(read_backbone(subject, part).weights) else None


def _without_network(cfg: Config) -> Config:
    """The config with an image's pixels in place of the network's features."""
    cfg = cfg.copy()
    image = DATASETS.build(cfg.evaluation.test)[0]['inputs'][0]
    cfg.model.backbone, cfg.model.in_channels = dict(type='Pixels'), image.numel()
    return cfg


def _on_features(
    cfg: Config, protocol: str, subject: str | Path, part: str, settings: Settings
) -> tuple[dict[str, float], dict]:
    """Features of training, test and, where a strength is to be chosen, validation images; then the protocol."""
    described = require_data(cfg)
    # Nothing is chosen by k-NN, nor by the SVM outside of its training images.
    parts = {'train': refit(described), 'test': described.test}
    if protocol == 'logreg' and 'val' in described:
        parts |= {'train': described.train, 'val': described.val}
    backbone = subject_backbone(cfg, subject, part)
    # Without a store the processes still share one, for as long as it takes.
    with nullcontext(settings.cache) if settings.cache else tempfile.TemporaryDirectory() as root:
        shared = [root]
        broadcast_object_list(shared)
        features = stored_features(cfg, backbone, parts, Path(shared[0]), settings)
        train, test = features['train'], features['test']
        metric = getattr(DATASETS.get(cfg.evaluation.test.type), 'metric', 'top-1')
        scores, details = measure(protocol, train, test, settings, features.get('val'), metric)
        sizes = {'train_images': len(train.x), 'test_images': len(test.x), 'dimensions': train.x.shape[1]}
        barrier()
    return scores, {**sizes, **details}


def require_data(cfg: Config) -> dict:
    """The config's evaluation settings, which name a training and a test set."""
    settings = cfg.get('evaluation')
    if not settings or 'train' not in settings or 'test' not in settings:
        raise UserError(f'{cfg.filename} names no data to evaluate on; add evaluation = dict(train=..., test=...)')
    return settings


def evaluation_data(cfg: Config) -> tuple[Dataset, Dataset]:
    """The labelled training and test sets that the config names for evaluation."""
    settings = require_data(cfg)
    return DATASETS.build(settings.train), DATASETS.build(settings.test)


def subject_backbone(cfg: Config, subject: str | Path, part: str = 'student', seed: int = 0) -> nn.Module | None:
    """The network of a subject: 'pixels' has none, 'random' is the untrained one, anything else is a checkpoint."""
    if subject == 'pixels':
        return None
    return load_backbone(cfg, None if subject == 'random' else subject, part, seed)


def extraction(cfg: Config, device: str = 'cpu', workers: int = 0) -> Extraction:
    """How this config's images become features: normalised as in its training."""
    normal = cfg.model.data_preprocessor
    return Extraction(normal.mean, normal.std, cfg.evaluation.get('batch_size', 256), device, workers)


def features_of(
    cfg: Config, backbone: nn.Module | None, data: Sequence[Dataset], device: str = 'cpu', workers: int = 0
) -> tuple[Features, ...]:
    """Features of each data set, in memory."""
    return tuple(extract(backbone, part, extraction(cfg, device, workers)) for part in data)


def stored_features(
    cfg: Config, backbone: nn.Module | None, parts: dict[str, dict], root: Path, settings: Settings
) -> dict[str, Features]:
    """Features of each part of the evaluation data, from the store below `root` where they are there."""
    how = extraction(cfg, settings.device, settings.workers)
    return {
        name: stored(root, backbone, DATASETS.build(data), ConfigDict(data).to_dict(), how)
        for name, data in parts.items()
    }


def measure(
    protocol: str,
    train: Features,
    test: Features,
    settings: Settings,
    val: Features | None = None,
    metric: str = 'top-1',
    strengths: Sequence[float] = STRENGTHS,
) -> tuple[dict[str, float], dict]:
    """Scores in percent by name, and the details that the JSON keeps, of one protocol on given features."""
    if protocol == 'knn':
        found = knn_accuracy(train, test, settings.ks, settings.temperature, settings.device)
        return {f'k-NN, k = {k}': score for k, score in found.items()}, {'temperature': settings.temperature}
    return _on_main_process(lambda: _by_solver(protocol, train, test, settings, val, metric, strengths))


def _by_solver(
    protocol: str,
    train: Features,
    test: Features,
    settings: Settings,
    val: Features | None,
    metric: str,
    strengths: Sequence[float],
) -> tuple[dict[str, float], dict]:
    if protocol == 'logreg':
        found = logistic_regression(train, test, val, metric, strengths, settings.device)
        scores = {f'logistic regression, {name}': score for name, score in found.scores.items()}
        return scores, {'strength': found.strength, 'held_out': found.held_out}
    from mmairl.evaluation.svm import low_shot, svm  # scikit-learn takes a second, which k-NN need not pay

    jobs = max(1, settings.workers)
    found = svm(train, test, jobs=jobs)
    scores = {'SVM, mAP': found.map, 'SVM, mAP (11 points)': found.map11}
    if found.accuracy is not None:
        scores['SVM, top-1'] = found.accuracy
    details = {'cost': found.cost, 'per_class': found.per_class}
    if settings.low_shot:
        details['low_shot'] = dataclasses.asdict(low_shot(train, test, jobs=jobs))
    return scores, details


def _on_main_process(compute: Callable[[], Answer]) -> Answer:
    """Solvers run in one process, which tells the others what came out, or what went wrong; they wait for a day at most."""
    several = dist.is_available() and dist.is_initialized()
    group = dist.new_group(backend='gloo', timeout=timedelta(days=1)) if several else None
    answer: list = [None, None]
    if is_main_process():
        try:
            answer[0] = compute()
        except UserError as error:
            answer[1] = str(error)
    if several:
        dist.broadcast_object_list(answer, src=0, group=group)
        dist.destroy_process_group(group)
    if answer[1] is not None:
        raise UserError(answer[1])
    return answer[0]


def quick_logreg(train: Features, test: Features, device: str = 'cpu') -> float:
    """Top-1 in percent by logistic regression over a few strengths, for a page that should not be waited for."""
    return next(iter(logistic_regression(train, test, strengths=QUICK, device=device).scores.values()))


def name_of(subject: str | Path, part: str) -> str:
    """How a table calls a subject."""
    names = {'pixels': 'raw pixels', 'random': 'random initialisation'}
    return names.get(str(subject), f'{part} of {Path(subject).name}')
