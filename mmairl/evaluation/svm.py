"""One linear SVM a class on frozen features, in full and with few positives (Goyal et al. 2019, VOC07).

Scores are the average precision of scikit-learn; where Goyal's code interpolates it or counts an image that is
'difficult' for a class as a negative in training, ours does neither.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from joblib import Parallel, delayed
from mmengine.logging import print_log
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold
from sklearn.svm import LinearSVC
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.features import Features, progress
from mmairl.evaluation.metrics import ap11, average_precision, mean_ap, require_labels, scores_of

# The published grid: powers of ten from 1e-7 to 100 and of two from 2^-19 to 2^-4. Of equal costs the smallest is taken.
COSTS = tuple(sorted([10.0**power for power in range(-7, 3)] + [2.0**power for power in range(-19, -3)]))
SHOTS = (1, 2, 4, 8, 16, 32, 64, 96)
LOW_SHOT_COST = 0.5  # fixed, for k positives are too few to choose by and the test set is not for choosing
FOLDS = 3
ITERATIONS = 2000


@dataclass(frozen=True)
class SVMResult:
    """Test scores in percent: mAP, VOC2007's 11-point mAP, each class's AP; and the cost each class chose.

    `accuracy` is that of the class with the highest decision value, None where an image can be of several.
    """

    map: float
    map11: float
    per_class: dict[int, float]
    cost: dict[int, float]
    accuracy: float | None


def svm(train: Features, test: Features, costs: Sequence[float] = COSTS, seed: int = 0, jobs: int = 1) -> SVMResult:
    """Choose each class's cost by 3-fold average precision on the training images, fit on all, score on test.

    >>> svm(train, test, jobs=16).per_class[14]  # doctest: +SKIP
    """
    y, y_test = label_matrices(train, test)
    for label, column in enumerate(y.T):
        for kind, value in (('of', 1), ('not of', 0)):
            rows = (column == value).numpy()
            if train.groups is not None and len({*train.groups[rows]}) == 1:
                raise UserError(
                    f'the training images {kind} class {label} are all of one group, so that a fold has none to learn from; '
                    'add images of another group or leave the class out'
                )
            if (count := int(rows.sum())) < FOLDS:
                raise UserError(
                    f'{count} training images are {kind} class {label}, and its SVM chooses the cost by {FOLDS} folds '
                    f'with one in each; add images or leave the class out.'
                )
    x, x_test = unit(train.x), unit(test.x)
    fitted = _in_parallel(
        _fit_class, [(x, column.numpy(), sorted(costs), seed, train.groups) for column in y.T], 'SVM', jobs
    )
    if unfinished := [label for label, (model, _) in enumerate(fitted) if model.n_iter_ >= ITERATIONS]:
        print_log(f'the SVMs of classes {unfinished} stopped at {ITERATIONS} iterations', logger='current')
    decisions = torch.tensor(np.stack([model.decision_function(x_test) for model, _ in fitted], axis=1))
    ap = {label: _ap(decisions[:, label], y_test[:, label]) for label in _shown(y_test)}
    return SVMResult(
        map=float(np.mean(list(ap.values()))),
        map11=100 * mean_ap(decisions, y_test, ap11),
        per_class=ap,
        cost={label: cost for label, (_, cost) in enumerate(fitted)},
        accuracy=scores_of('top-1', decisions, test.y)['top-1'] if test.y.ndim == 1 else None,
    )


def low_shot(
    train: Features,
    test: Features,
    shots: Sequence[int] = SHOTS,
    samples: int = 5,
    cost: float = LOW_SHOT_COST,
    seed: int = 0,
    jobs: int = 1,
) -> dict[str, dict[int, float]]:
    """Mean and standard deviation over `samples` independent draws of the test mAP in percent, by k.

    Each class learns from k positives and (classes - 1) k negatives, or all there are. Within a draw the images of a
    smaller k are among those of a larger one. A k that some class has too few positives for is left out.
    """
    y, y_test = label_matrices(train, test)
    shots, shown, others = _possible(shots, y), _shown(y_test), max(1, y.shape[1] - 1)
    x, x_test = unit(train.x), unit(test.x)
    tasks = [
        (rows, x, y[:, label], x_test, y_test[:, label], cost, seed)
        for sample in range(samples)
        for label in shown
        for rows in draw(y[:, label], shots, others, (seed, sample, label))
    ]
    scored = _in_parallel(_ap_from, tasks, 'low-shot SVM', jobs)
    maps = np.array(scored).reshape(samples, len(shown), len(shots)).mean(axis=1)
    return {
        'mean': dict(zip(shots, maps.mean(axis=0).tolist())),
        'std': dict(zip(shots, maps.std(axis=0).tolist())),
    }


def draw(labels: Tensor, shots: Sequence[int], others: int, seed: tuple[int, ...]) -> list[np.ndarray]:
    """Rows of k positives and `others` k negatives of a class, or all there are, for each k of `shots`."""
    generator = np.random.default_rng(seed)
    positive, negative = (generator.permutation(np.flatnonzero(labels == value)) for value in (1, 0))
    return [np.concatenate([positive[:shot], negative[: others * shot]]) for shot in shots]


def unit(x: Tensor) -> np.ndarray:
    """Rows of length 1 in float64, which is what liblinear computes in."""
    return torch.nn.functional.normalize(x.double()).numpy()


def label_matrices(train: Features, test: Features) -> tuple[Tensor, Tensor]:
    """Labels of shape (images, classes): 1, 0, or -1 where an image is not counted; single labels become one-vs-rest."""
    if train.y.ndim == 2:
        return train.y, test.y
    classes = int(train.y.max()) + 1
    require_labels(test.y, classes)
    return tuple(torch.nn.functional.one_hot(data.y, classes) for data in (train, test))


def classifier(cost: float, seed: int) -> LinearSVC:
    """Goyal's SVM, where positives weigh twice; solved in the dual when there are fewer images than features."""
    return LinearSVC(C=cost, class_weight={1: 2, -1: 1}, max_iter=ITERATIONS, dual='auto', random_state=seed)


def _in_parallel(compute: Callable, tasks: Sequence[tuple], label: str, jobs: int) -> list:
    done = Parallel(jobs, return_as='generator')(delayed(compute)(*task) for task in tasks)
    return list(progress(done, label, len(tasks)))


def _fit_class(
    x: np.ndarray, labels: np.ndarray, costs: Sequence[float], seed: int, groups: np.ndarray | None
) -> tuple[LinearSVC, float]:
    """The SVM of one class, and the cost it was given by cross-validation."""
    x, y = x[labels != -1], np.where(labels[labels != -1] == 1, 1, -1)
    folds = (StratifiedKFold if groups is None else StratifiedGroupKFold)(FOLDS, shuffle=True, random_state=seed)
    groups = groups if groups is None else groups[labels != -1]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ConvergenceWarning)  # the largest costs reach the limit, as published
        grid = GridSearchCV(classifier(1.0, seed), {'C': costs}, scoring='average_precision', cv=folds)
        grid.fit(x, y, groups=groups)
    return grid.best_estimator_, grid.best_params_['C']


def _ap_from(
    rows: np.ndarray, x: np.ndarray, labels: Tensor, x_test: np.ndarray, test_labels: Tensor, cost: float, seed: int
) -> float:
    """Test AP in percent of one class, learnt from these rows of the training images."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ConvergenceWarning)
        model = classifier(cost, seed).fit(x[rows], np.where(labels.numpy()[rows] == 1, 1, -1))
    return _ap(torch.tensor(model.decision_function(x_test)), test_labels)


def _ap(decisions: Tensor, labels: Tensor) -> float:
    """In percent, over the images that count."""
    return 100 * average_precision(decisions[labels != -1], labels[labels != -1])


def _possible(shots: Sequence[int], labels: Tensor) -> list[int]:
    """The numbers of positives that every class can supply."""
    least, scarce = (value.item() for value in (labels == 1).sum(dim=0).min(dim=0))
    possible = [shot for shot in shots if shot <= least]
    why = f'class {scarce} has {least} positive training images'
    if not possible:
        raise UserError(
            f'low-shot SVMs with {list(shots)} positives are not possible, where {why}; add some or leave it out'
        )
    if left_out := [shot for shot in shots if shot not in possible]:
        print_log(f'low-shot SVMs with {left_out} positives are left out: {why}', logger='current')
    return possible


def _shown(labels: Tensor) -> list[int]:
    """The classes with a test image; the others have no average precision, and the log names them."""
    present = (labels == 1).any(dim=0)
    absent = (~present).nonzero().squeeze(1).tolist()
    if absent:
        print_log(f'classes {absent} have no test image and are left out of the mean', logger='current')
    return present.nonzero().squeeze(1).tolist()
