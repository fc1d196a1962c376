"""Protocols on frozen features: k-NN, logistic regression and linear SVMs."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mmengine import Config
from mmengine.dist import barrier
from mmengine.logging import print_log
from torch.utils.data import Dataset

from mmairl.checkpoints.read import Backbone
from mmairl.errors import printable
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.duplicates import near_duplicates
from mmairl.evaluation.features import Extraction, Features, on_main_process, stored
from mmairl.evaluation.identity import features_key
from mmairl.evaluation.knn import TEMPERATURE, knn_right
from mmairl.evaluation.logreg import STRENGTHS, logistic_regression
from mmairl.evaluation.metrics import packed, unpacked
from mmairl.evaluation.sets import left_out, own_groups, precision_of

PROTOCOLS = ('knn', 'logreg', 'svm')
KS = (20, 200)
Sets = Mapping[str, tuple[dict, Dataset]]


@dataclass(frozen=True)
class FeatureSettings:
    """How k-NN, logistic regression and the SVM measure, then what they do it with; a command line's options."""

    ks: Sequence[int] | None = None  # in place of the config's `evaluation.ks`, or KS
    temperature: float = TEMPERATURE
    standardise: bool = False
    low_shot: bool = False
    near_duplicates: bool = False  # whether those of training images are looked for among the test images
    seed: int = 0  # of what logistic regression holds out, and of the SVM's folds and draws
    device: str = 'cpu'
    workers: int = 0
    cache: Path | None = None
    launcher: str = 'none'
    remeasure: bool = False  # whether stored features are computed again
    implementation: ClassVar[tuple[str, ...]] = ('on_features', 'features', 'backbone')  # files of this folder

    def neighbours(self, cfg: Config) -> list[int]:
        return list(self.ks or cfg.evaluation.get('ks', KS))

    def identity(self, cfg: Config, protocol: str, subject: Backbone | str) -> dict[str, Any]:
        """Return all settings that decide a score, beside the features."""
        if protocol == 'knn':
            return dict(ks=self.neighbours(cfg), temperature=self.temperature)
        if protocol == 'logreg':
            return dict(standardise=self.standardise, strengths=len(STRENGTHS), seed=self.seed)
        return dict(low_shot=self.low_shot, seed=self.seed)


def measure(
    cfg: Config, protocol: str, subject: Backbone | str, settings: FeatureSettings, sets: Sets, identity: dict[str, Any]
) -> tuple[dict[str, float], dict, dict[str, int]]:
    """Features of training, test and, where a strength is to be chosen, validation images; then the protocol."""
    backbone = None if subject == 'pixels' else load_backbone(cfg, None if subject == 'random' else subject)
    how, features = extraction(cfg, settings.device, settings.workers), {}
    with ExitStack() as stack:  # without a store the processes still share one, for as long as it takes
        root = settings.cache or on_main_process(lambda: stack.enter_context(tempfile.TemporaryDirectory()))
        for name, (described, dataset) in sets.items():
            path = Path(root) / f'{features_key(identity, name, described)}.npy'
            if settings.remeasure:
                on_main_process(partial(path.unlink, missing_ok=True))
            features[name] = stored(path, backbone, dataset, how)
        train, test, val = (features.get(name) for name in ('train', 'test', 'val'))
        if (groups := own_groups(cfg, sets['train'][1])) is not None:
            train = dataclasses.replace(train, groups=np.delete(groups, list(train.unreadable)))
        if protocol == 'knn':
            rights = knn_right(train, test, settings.neighbours(cfg), settings.temperature, settings.device)
            scores = {f'k-NN, k = {k}': 100 * int(right.sum()) / len(right) for k, right in rights.items()}
            details = {'temperature': settings.temperature, 'right': packed(next(iter(rights.values())))}
        else:  # the solvers run in one process
            metric = getattr(sets['test'][1], 'metric', 'top-1')
            scores, details = on_main_process(lambda: SOLVERS[protocol](train, test, val, metric, settings))
        if details.get('right') and hasattr(sets['test'][1], 'sets'):
            scores |= by_set(next(iter(scores)), unpacked(details['right']), sets['test'][1], test.unreadable)
        if settings.near_duplicates:
            both = (sets['train'][1], sets['test'][1]), (train, test)
            twins, found = on_main_process(lambda: near_duplicates(*both, settings.device, settings.workers))
            details['near_duplicates'], first = found, next(iter(scores))
            if details.get('right') and not twins.all():
                right, y = unpacked(details['right'])[~twins], test.y.numpy()[~twins]
                if first.endswith('mean per class'):
                    right = [right[y == label].mean() for label in np.unique(y)]
                scores[f'{first}, without near duplicates'] = 100 * np.mean(right)
        sizes: dict[str, Any] = {
            'train_images': len(train.x),
            'test_images': len(test.x),
            'dimensions': train.x.shape[1],
        }
        counts: dict[str, int] = {}
        for name, data in features.items():
            counts |= left_out(name, sets[name][1], data.y, len(data.unreadable))
            if data.unreadable:
                sizes[f'unreadable_{name}_images'] = _names(sets[name][1], data.unreadable)
        barrier()
    return scores, {**sizes, **details}, counts


def extraction(cfg: Config, device: str = 'cpu', workers: int = 0) -> Extraction:
    """How this config's images become features: normalised as in its training."""
    normal = cfg.model.data_preprocessor
    size = cfg.evaluation.get('batch_size', 256)
    return Extraction(normal.mean, normal.std, size, device, workers, precision_of(cfg))


def by_set(score: str, right: np.ndarray, mixture: Dataset, unreadable: Sequence[int]) -> dict[str, float]:
    """The score of each set's images alone."""
    origins = np.delete(mixture.origins.numpy(), list(unreadable))
    return {f'{score}, {name}': 100 * right[origins == number].mean() for number, name in enumerate(mixture.sets)}


def _names(dataset: Dataset, positions: Sequence[int]) -> list[str]:
    """The names of these images, mostly their files; also in the log."""
    name = getattr(dataset, 'name', 'image {}'.format)
    names = [printable(name(position)) for position in positions]
    print_log(f'{len(names)} images cannot be read and are left out: {", ".join(names[:5])}', logger='current')
    return names


def _by_logistic_regression(
    train: Features, test: Features, val: Features | None, metric: str, settings: FeatureSettings
) -> tuple[dict[str, float], dict]:
    fitted = logistic_regression(
        train, test, val, metric, device=settings.device, standardise=settings.standardise, seed=settings.seed
    )
    scores = {f'logistic regression, {name}': score for name, score in fitted.scores.items()}
    details = dataclasses.asdict(fitted)
    del details['scores']
    details['right'] = None if fitted.right is None else packed(fitted.right)
    return scores, {'features': 'standardised' if settings.standardise else 'as they are', **details}


def _by_svm(
    train: Features, test: Features, val: Features | None, metric: str, settings: FeatureSettings
) -> tuple[dict[str, float], dict]:
    from mmairl.evaluation.svm import low_shot, svm  # scikit-learn takes a second, which k-NN need not pay

    how = dict(seed=settings.seed, jobs=max(1, settings.workers))
    fitted = svm(train, test, **how)
    scores = {'SVM, mAP': fitted.map, 'SVM, mAP (11 points)': fitted.map11}
    if fitted.accuracy is not None:
        scores['SVM, top-1'] = fitted.accuracy
    details = {'cost': fitted.cost, 'per_class': fitted.per_class}
    if settings.low_shot:
        details['low_shot'] = low_shot(train, test, **how)
    return scores, details


SOLVERS = dict(logreg=_by_logistic_regression, svm=_by_svm)
