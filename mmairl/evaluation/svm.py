"""Train one linear SVM per class on frozen features, with all or with few training images (Goyal et al. 2019, VOC07).

The score is scikit-learn's average precision. Goyal's code differs in two points: it interpolates the precision, and an
image that is 'difficult' for a class is a negative example in training.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.features import Features, show_progress
from mmairl.evaluation.metrics import ap11, average_precision, mean_ap, require_labels, scores_of
from mmairl.evaluation.neighbors import unit_rows
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

# Importing scikit-learn takes a second, so it is imported only in the functions that use it.
if TYPE_CHECKING:
    from sklearn.svm import LinearSVC

# The published grid has the powers of ten from 1e-7 to 100 and the powers of two from 2^-19 to 2^-4. If several costs are
# equally good, the smallest one is chosen.
TENS = [10.0**power for power in range(-7, 3)]
TWOS = [2.0**power for power in range(-19, -3)]
COSTS = tuple(sorted(TENS + TWOS))
SHOTS = (1, 2, 4, 8, 16, 32, 64, 96)
# This cost is fixed, because a few positive images are not enough to choose one.
LOW_SHOT_COST = 0.5
FOLDS = 3
ITERATIONS = 2000


@PROTOCOLS.register_module('svm')
@dataclass(frozen=True)
class LinearSVM(FeatureProtocol):
    """Train one linear SVM for each class against all other classes (the VOC07 protocol).

    The cost of each SVM is chosen by 3-fold cross-validation on the training images. Therefore, each class needs at least
    three images. The scores are mAP, 11-point mAP and, if each image has one class, top-1 accuracy.

    Args:
        low_shot: Whether to also train SVMs on few positive images per class. Default: False.
        seed: Seed for the folds and for the samples of few images. Default: 0.
    """

    low_shot: bool = False
    seed: int = 0

    metric: ClassVar = 'mAP'

    def score(self, split: Split) -> tuple[Scores, dict]:
        jobs = max(1, self.workers)
        fitted = svm(split.train, split.test, seed=self.seed, jobs=jobs)
        scores = {'SVM, mAP': fitted.map, 'SVM, mAP (11 points)': fitted.map11}
        if fitted.accuracy is not None:
            scores['SVM, top-1'] = fitted.accuracy
        details = {'cost': fitted.cost, 'per_class': fitted.per_class}
        if self.low_shot:
            details['low_shot'] = low_shot_map(split.train, split.test, seed=self.seed, jobs=jobs)
        return scores, details


@dataclass(frozen=True)
class SVMResult:
    """Test scores in percent, and the chosen costs.

    Attributes:
        map: Mean average precision.
        map11: Mean of VOC2007's 11-point average precision.
        per_class: Average precision of each class with a test image.
        cost: The chosen cost of each class.
        accuracy: Top-1 accuracy of predicting the class with the highest decision value. None if images can have several
            classes.
    """

    map: float
    map11: float
    per_class: dict[int, float]
    cost: dict[int, float]
    accuracy: float | None


def svm(
    train: Features, test: Features, costs: Sequence[float] = COSTS, seed: int = 0, jobs: int = 1
) -> SVMResult:
    """Choose the cost of each class by cross-validation, fit on all training images, and score the test images.

    Raises:
        UserError: If a class has too few training images, or too few groups of images, for cross-validation.

    Example:
        >>> svm(train, test, jobs=16).per_class[14]  # doctest: +SKIP
    """
    y, y_test = label_matrices(train, test)
    if train.groups is not None and (count := len(set(train.groups))) < FOLDS:
        raise UserError(
            f'svm: the training images are in only {count} groups, but each of {FOLDS} folds requires one; add images of other '
            'groups',
            code='few-groups',
        )
    for label, column in enumerate(y.T):
        _require_folds(column, label, train.groups)
    x = unit_rows(train.x.double()).numpy()
    x_test = unit_rows(test.x.double()).numpy()
    tasks = [(x, column.numpy(), sorted(costs), seed, train.groups) for column in y.T]
    fitted = _in_parallel(_fit_class, tasks, 'SVM', jobs)
    models, chosen = zip(*fitted)
    unfinished = [label for label, model in enumerate(models) if model.n_iter_ >= ITERATIONS]
    if unfinished:
        print_log(
            f'the SVMs of classes {unfinished} stopped after {ITERATIONS} iterations without converging',
            logger='current',
        )
    columns = [model.decision_function(x_test) for model in models]
    decisions = torch.tensor(np.stack(columns, axis=1))
    ap = {}
    for label in _classes_with_test_image(y_test):
        ap[label] = _ap(decisions[:, label], y_test[:, label])
    accuracy = None
    if test.y.ndim == 1:
        accuracy = scores_of('top-1', decisions, test.y)['top-1']
    return SVMResult(
        map=float(np.mean(list(ap.values()))),
        map11=100 * mean_ap(decisions, y_test, ap11),
        per_class=ap,
        cost=dict(enumerate(chosen)),
        accuracy=accuracy,
    )


def _require_folds(labels: Tensor, label: int, groups: np.ndarray | None) -> None:
    """Raise unless the class and all other classes together have enough images, and more than one group each.

    If all images of the class were in one group, one fold would be trained without them.
    """
    for kind, value in (('of', 1), ('not of', 0)):
        rows = (labels == value).numpy()
        if groups is not None and len(set(groups[rows])) == 1:
            raise UserError(
                f'svm: all training images {kind} class {label} are in one group, but each fold requires some of them; '
                'add images of another group or leave the class out',
                code='one-group',
            )
        count = int(rows.sum())
        if count < FOLDS:
            raise UserError(
                f'svm: only {count} training images are {kind} class {label}, but each of {FOLDS} folds requires one; '
                'add images or leave the class out',
                code='few-images',
            )


def low_shot_map(
    train: Features,
    test: Features,
    shots: Sequence[int] = SHOTS,
    samples: int = 5,
    cost: float = LOW_SHOT_COST,
    seed: int = 0,
    jobs: int = 1,
) -> dict[str, dict[int, float]]:
    """Train SVMs on random samples with k positive images per class, and return their test mAP in percent.

    For each k of `shots`, the result has the mean and the standard deviation over `samples` random samples. Each SVM is
    trained on k positives and (classes - 1) * k negatives, or on all negatives if there are fewer. The sample for one k
    includes the samples for all smaller k. If some class has fewer than k positives, this k is skipped.
    """
    y, y_test = label_matrices(train, test)
    shots = _possible_shots(shots, y)
    classes = _classes_with_test_image(y_test)
    others = max(1, y.shape[1] - 1)
    x = unit_rows(train.x.double()).numpy()
    x_test = unit_rows(test.x.double()).numpy()
    tasks = []
    for sample, label in product(range(samples), classes):
        labels = y[:, label]
        for rows in draw_shots(labels, shots, others, (seed, sample, label)):
            tasks.append((rows, x, labels, x_test, y_test[:, label], cost, seed))
    scored = _in_parallel(_ap_from, tasks, 'low-shot SVM', jobs)
    by_class = np.array(scored).reshape(samples, len(classes), len(shots))
    maps = by_class.mean(axis=1)
    return {
        'mean': dict(zip(shots, maps.mean(axis=0).tolist())),
        'std': dict(zip(shots, maps.std(axis=0).tolist())),
    }


def draw_shots(
    labels: Tensor, shots: Sequence[int], others: int, seed: tuple[int, ...]
) -> list[np.ndarray]:
    """Return, for each k of `shots`, the row indices of k random positives and up to `others` * k random negatives."""
    generator = np.random.default_rng(seed)
    positive = generator.permutation(np.flatnonzero(labels == 1))
    negative = generator.permutation(np.flatnonzero(labels == 0))
    draws = []
    for shot in shots:
        rows = [positive[:shot], negative[: others * shot]]
        draws.append(np.concatenate(rows))
    return draws


def label_matrices(train: Features, test: Features) -> tuple[Tensor, Tensor]:
    """Return the labels of training and test images as matrices (images, classes).

    The values are 1 for yes, 0 for no, and -1 for images that do not count.
    """
    if train.y.ndim == 2:
        return train.y, test.y
    classes = int(train.y.max()) + 1
    require_labels(test.y, classes)
    return F.one_hot(train.y, classes), F.one_hot(test.y, classes)


def classifier(cost: float, seed: int) -> 'LinearSVC':
    """Return an SVM with Goyal's settings, not yet trained.

    Positives have weight 2, and the dual problem is solved if there are fewer images than features.
    """
    from sklearn.svm import LinearSVC

    return LinearSVC(
        C=cost, class_weight={1: 2, -1: 1}, max_iter=ITERATIONS, dual='auto', random_state=seed
    )


def _in_parallel(compute: Callable, tasks: Sequence[tuple], label: str, jobs: int) -> list:
    from joblib import Parallel, delayed

    calls = (delayed(compute)(*task) for task in tasks)
    results = Parallel(jobs, return_as='generator')(calls)
    return list(show_progress(results, label, len(tasks)))


def _fit_class(
    x: np.ndarray, labels: np.ndarray, costs: Sequence[float], seed: int, groups: np.ndarray | None
) -> tuple['LinearSVC', float]:
    """Train the SVM of one class, and return it with the cost that cross-validation chose."""
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold

    counted = labels != -1
    y = np.where(labels[counted] == 1, 1, -1)
    if groups is None:
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    else:
        folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
        groups = groups[counted]
    model = classifier(1.0, seed)
    grid = GridSearchCV(model, {'C': costs}, scoring='average_precision', cv=folds)
    _fit(grid, x[counted], y, groups=groups)
    return grid.best_estimator_, grid.best_params_['C']


def _fit(model: Any, *data: np.ndarray, **options: Any) -> None:
    """Fit a model, and suppress the warning that the fit stopped after ITERATIONS iterations.

    In the published protocol, fits with the largest costs also stop before they converge.
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ConvergenceWarning)
        model.fit(*data, **options)


def _ap_from(
    rows: np.ndarray,
    x: np.ndarray,
    labels: Tensor,
    x_test: np.ndarray,
    test_labels: Tensor,
    cost: float,
    seed: int,
) -> float:
    """Train the SVM of one class on these rows, and return its test AP in percent."""
    model = classifier(cost, seed)
    _fit(model, x[rows], np.where(labels.numpy()[rows] == 1, 1, -1))
    return _ap(torch.tensor(model.decision_function(x_test)), test_labels)


def _ap(decisions: Tensor, labels: Tensor) -> float:
    counted = labels != -1
    return 100 * average_precision(decisions[counted], labels[counted])


def _possible_shots(shots: Sequence[int], labels: Tensor) -> list[int]:
    """Return the numbers in `shots` for which every class has enough positive images."""
    positives = (labels == 1).sum(dim=0)
    scarce = int(positives.argmin())
    least = int(positives[scarce])
    possible = [shot for shot in shots if shot <= least]
    reason = f'class {scarce} has {least} positive training images'
    if not possible:
        raise UserError(
            f'svm: low-shot SVMs require {min(shots)} or more positive training images per class, but {reason}; add images or '
            'leave the class out',
            code='few-images',
        )
    dropped = [shot for shot in shots if shot > least]
    if dropped:
        print_log(
            f'low-shot SVMs with {dropped} positives per class are left out, because {reason}',
            logger='current',
        )
    return possible


def _classes_with_test_image(labels: Tensor) -> list[int]:
    """Return the classes that have a test image. Log the other classes, because their average precision is undefined."""
    present = (labels == 1).any(dim=0)
    absent = (~present).nonzero().squeeze(1).tolist()
    if absent:
        print_log(
            f'classes {absent} have no test image and are left out of the mean', logger='current'
        )
    return present.nonzero().squeeze(1).tolist()
