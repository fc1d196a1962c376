"""One measurement, start to end: who is measured (a checkpoint or a baseline), on what, by which protocol."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine import Config
from mmengine.dist import barrier
from mmengine.logging import print_log
from torch import nn
from torch.utils.data import Dataset

from mmairl.data.subsets import HELD_OUT
from mmairl.data.views import require_channels
from mmairl.engine.distributed import start_processes
from mmairl.errors import UserError, printable
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Extraction, Features, on_main_process, require_labelled_images, stored
from mmairl.evaluation.identity import (
    claim,
    code_identity,
    config_identity,
    data_identity,
    key_of,
    weights_identity,
)
from mmairl.evaluation.knn import TEMPERATURE, knn_right
from mmairl.evaluation.logreg import STRENGTHS, logistic_regression
from mmairl.evaluation.metrics import packed, unpacked
from mmairl.evaluation.training import recipe_of, refit, train_and_test, with_views
from mmairl.registry import DATASETS
from mmairl.weights.norms import looks_lars_trained
from mmairl.weights.read import Backbone, read_backbone
from mmairl.weights.write import write_backbone

BASELINES = ('random', 'pixels')
ON_FEATURES = ('knn', 'logreg', 'svm')
BY_TRAINING = ('linear', 'finetune')
# Of a recipe, what decides which classifier is trained; the rest says where the run lives and what it prints.
OF_RECIPE = (
    *('model', 'train_view', 'total_batch_size', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'custom_hooks'),
    *('grid', 'randomness', 'fast'),
)


@dataclass(frozen=True)
class Result:
    """One row of a results table: a subject, its scores in percent by name, and the seconds it took.

    `identity` is what the scores depend on (`evaluation.identity`).
    """

    subject: str
    scores: dict[str, float]
    seconds: float
    details: dict = field(default_factory=dict)
    identity: dict = field(default_factory=dict)


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
    standardise: bool = False
    work_dir: Path = Path('work_dirs/evaluation')
    launcher: str = 'none'
    seed: int | None = None  # of a classifier that is trained, in place of the recipe's


def default_device() -> str:
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def evaluate(
    cfg: Config, protocol: str, subject: str | Path, part: str = 'student', settings: Settings | None = None
) -> Result:
    """Measure one subject by one protocol.

    >>> evaluate(cfg, 'knn', 'work_dirs/demo/epoch_10.pth').scores  # doctest: +SKIP
    {'k-NN, k = 20': 71.3, 'k-NN, k = 200': 69.8}
    """
    settings, began = settings or Settings(), time.perf_counter()
    start_processes(settings.launcher)
    found = None if subject in BASELINES else read_backbone(subject, part)
    datasets, recipe = evaluation_sets(cfg, protocol), _recipe(cfg, protocol, settings, found)
    identity = on_main_process(lambda: identity_of(cfg, protocol, found or str(subject), settings, datasets=datasets))
    if recipe is not None:
        if subject == 'pixels':
            cfg = cfg.copy()
            image = datasets['test'][1][0]['inputs'][0]
            cfg.model.backbone, cfg.model.in_channels = dict(type='Pixels'), image.numel()
        print_log(f'{protocol} by the recipe {Path(recipe.filename).stem}', logger='current')
        print_log(f'network under test: {found or name_of(subject, part)}', logger='current')
        start = on_main_process(lambda: _start(settings.work_dir, identity, found))
        scores, details = train_and_test(
            cfg, recipe, start, settings.work_dir, settings.sweep, settings.workers, settings.launcher
        )
        scores = {f'{protocol}, {name}': value for name, value in scores.items()}
        details = {'recipe': Path(recipe.filename).stem, 'work_dir': str(settings.work_dir), **details}
    else:
        backbone = None if subject == 'pixels' else load_backbone(cfg, found)
        scores, details = _on_features(cfg, protocol, backbone, settings, datasets, identity)
    return Result(name_of(subject, part), scores, time.perf_counter() - began, details, identity)


def _start(folder: Path, identity: dict[str, Any], found: Backbone | None) -> dict | None:
    """Take the folder for this evaluation, and put the weights there that all of its runs start from."""
    claim(folder, identity)
    if found is None:
        return None
    if not (folder / 'start.pth').is_file():
        write_backbone(found, folder / 'start.pth')
    return dict(type='PretrainedBackbone', checkpoint=str(folder / 'start.pth'))


def identity_of(
    cfg: Config,
    protocol: str,
    found: Backbone | str,
    settings: Settings,
    data: Callable[..., dict] = data_identity,
    datasets: dict[str, tuple[dict, Dataset]] | None = None,
) -> dict[str, Any]:
    """What a result of `evaluate` depends on, and nothing that changes no number.

    `found` is a checkpoint's backbone or a baseline's name; `data` may know the data sets' identities already.
    """
    chosen: dict[str, Any] = dict(name=protocol)
    datasets = datasets or evaluation_sets(cfg, protocol)
    if recipe := _recipe(cfg, protocol, settings, found):
        chosen['recipe'] = config_identity({key: recipe[key] for key in OF_RECIPE if key in recipe})
        chosen['sweep'] = config_identity(recipe.sweep) if settings.sweep else False
        if (settings.sweep or recipe.get('grid')) and 'val' not in datasets:
            chosen['held_out'] = cfg.evaluation.get('held_out', HELD_OUT)
    elif protocol == 'knn':
        chosen.update(ks=list(settings.ks), temperature=settings.temperature)
    elif protocol == 'logreg':
        chosen.update(standardise=settings.standardise, strengths=len(STRENGTHS))
    elif protocol == 'svm':
        chosen.update(low_shot=settings.low_shot)
    network = {key: value for key, value in cfg.model.backbone.items() if key != 'init_cfg'}
    normal = cfg.model.data_preprocessor
    return dict(
        protocol=chosen,
        weights=found if isinstance(found, str) else weights_identity(found.weights),
        network='none' if found == 'pixels' else config_identity(network),
        input=dict(mean=list(normal.mean), std=list(normal.std)),
        data={name: data(described, dataset) for name, (described, dataset) in datasets.items()},
        code=code_identity(),
    )


def _recipe(cfg: Config, protocol: str, settings: Settings, found: Backbone | str | None) -> Config | None:
    """The recipe asked for or the config's; if the config names no optimizer, LARS is guessed from the weights' norms."""
    if protocol not in BY_TRAINING:
        return None
    name, known = settings.recipe, 'optim_wrapper' in cfg or 'linear' in cfg.get('recipes', {})
    if name is None and protocol == 'linear' and not known and isinstance(found, Backbone):
        name = 'linear_lars_80e' if looks_lars_trained(found.weights) else None
    recipe = recipe_of(cfg, protocol, name)
    if settings.seed is not None:
        recipe.randomness = dict(recipe.get('randomness', {}), seed=settings.seed)
    return recipe


def evaluation_sets(cfg: Config, protocol: str = 'knn') -> dict[str, tuple[dict, Dataset]]:
    """The protocol's data sets by name, each as its config and built: train, test and, where a choice is made, val."""
    settings = cfg.get('evaluation')
    if not settings or 'train' not in settings or 'test' not in settings:
        raise UserError(f'{cfg.filename} names no data to evaluate on; add evaluation = dict(train=..., test=...)')
    # Nothing is chosen by k-NN, nor by the SVM outside of its training images.
    named = {'train': refit(settings), 'test': settings.test}
    if protocol not in ('knn', 'svm') and 'val' in settings:
        named |= {'train': settings.train, 'val': settings.val}
    if protocol in settings.get('views', {}):
        named = {name: with_views(described, [settings.views[protocol]]) for name, described in named.items()}
    datasets = {name: (described, DATASETS.build(described)) for name, described in named.items()}
    for _, dataset in datasets.values():
        require_labelled_images(dataset)
        require_channels(dataset, cfg.model.data_preprocessor.mean)
    classes = [list(map(str, getattr(dataset, 'classes', ()))) for _, dataset in datasets.values()]
    for name, other in zip(datasets, classes):
        if other != classes[0]:
            odd = sorted(set(other) ^ set(classes[0]))
            raise UserError(
                f'the {name} images have {len(other)} classes and the training images {len(classes[0])}, and '
                f'{odd[0] if odd else "their order"!r} is not the same in both; give folders with the same classes'
            )
    return datasets


def _on_features(
    cfg: Config,
    protocol: str,
    backbone: nn.Module | None,
    settings: Settings,
    datasets: dict[str, tuple[dict, Dataset]],
    identity: dict[str, Any],
) -> tuple[dict[str, float], dict]:
    """Features of training, test and, where a strength is to be chosen, validation images; then the protocol."""
    how, features = extraction(cfg, settings.device, settings.workers), {}
    with ExitStack() as stack:  # without a store the processes still share one, for as long as it takes
        root = settings.cache or on_main_process(lambda: Path(stack.enter_context(tempfile.TemporaryDirectory())))
        for name, (_, dataset) in datasets.items():
            key = key_of({**identity, 'protocol': 'features', 'data': identity['data'][name]})
            features[name] = stored(Path(root) / f'{key}.npy', backbone, dataset, how)
        train, test, val = (features.get(name) for name in ('train', 'test', 'val'))
        if protocol == 'knn':
            found = knn_right(train, test, settings.ks, settings.temperature, settings.device)
            scores = {f'k-NN, k = {k}': 100 * int(right.sum()) / len(right) for k, right in found.items()}
            details = {'temperature': settings.temperature, 'right': packed(next(iter(found.values())))}
        else:  # the solvers run in one process
            metric = getattr(datasets['test'][1], 'metric', 'top-1')
            scores, details = on_main_process(lambda: _by_solver(protocol, train, test, settings, val, metric))
        if details.get('right') and hasattr(datasets['test'][1], 'sets'):
            scores |= by_set(next(iter(scores)), unpacked(details['right']), datasets['test'][1], test.unreadable)
        sizes = {'train_images': len(train.x), 'test_images': len(test.x), 'dimensions': train.x.shape[1]}
        left_out = {name: _names(datasets[name][1], found.unreadable) for name, found in features.items()}
        barrier()
    return scores, {
        **sizes,
        **{f'unreadable_{name}_images': files for name, files in left_out.items() if files},
        **details,
    }


def by_set(score: str, right: np.ndarray, mixture: Dataset, unreadable: Sequence[int]) -> dict[str, float]:
    """The score of each set's images alone."""
    origins = np.delete(mixture.origins.numpy(), list(unreadable))
    return {f'{score}, {name}': 100 * right[origins == number].mean() for number, name in enumerate(mixture.sets)}


def _names(dataset: Dataset, positions: Sequence[int]) -> list[str]:
    """What these images are called, mostly their files; also in the log."""
    name = getattr(dataset, 'name', 'image {}'.format)
    names = [printable(name(position)) for position in positions]
    if names:
        print_log(f'{len(names)} images cannot be read and are left out: {", ".join(names[:5])}', logger='current')
    return names


def extraction(cfg: Config, device: str = 'cpu', workers: int = 0) -> Extraction:
    """How this config's images become features: normalised as in its training."""
    normal = cfg.model.data_preprocessor
    return Extraction(normal.mean, normal.std, cfg.evaluation.get('batch_size', 256), device, workers)


def _by_solver(
    protocol: str, train: Features, test: Features, settings: Settings, val: Features | None, metric: str
) -> tuple[dict[str, float], dict]:
    if protocol == 'logreg':
        found = logistic_regression(train, test, val, metric, device=settings.device, standardise=settings.standardise)
        scores = {f'logistic regression, {name}': score for name, score in found.scores.items()}
        details = dataclasses.asdict(found)
        del details['scores']
        details['right'] = None if found.right is None else packed(found.right)
        return scores, {'features': 'standardised' if settings.standardise else 'as they are', **details}
    from mmairl.evaluation.svm import low_shot, svm  # scikit-learn takes a second, which k-NN need not pay

    jobs = max(1, settings.workers)
    found = svm(train, test, jobs=jobs)
    scores = {'SVM, mAP': found.map, 'SVM, mAP (11 points)': found.map11}
    if found.accuracy is not None:
        scores['SVM, top-1'] = found.accuracy
    details = {'cost': found.cost, 'per_class': found.per_class}
    if settings.low_shot:
        details['low_shot'] = low_shot(train, test, jobs=jobs)
    return scores, details


def name_of(subject: str | Path, part: str) -> str:
    """How a table calls a subject."""
    names = {'pixels': 'raw pixels', 'random': 'random initialisation'}
    return names.get(str(subject), f'{part} of {Path(subject).name}')
