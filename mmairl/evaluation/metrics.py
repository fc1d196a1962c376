"""Compute classification metrics from class scores and labels, and the direction of each score."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor

from mmairl.errors import Diverged, UserError
from mmairl.registry import METRICS

LARGEST_MATRIX = 50  # With more classes than this, a confusion matrix is hard to read.
DIVERGED = 1e20  # no useful classifier gives such a large score
# A score whose name contains one of these words is better if it is lower. A protocol with another
# such score adds its name.
LOWER_IS_BETTER = {'RMSE', 'AbsRel', 'uniformity', 'error'}


def higher_is_better(score: str) -> bool:
    """Return the direction of a score from its name. All tables, plots and verdicts use it.

    >>> higher_is_better('k-NN, k = 20'), higher_is_better('depth_probe, RMSE (m)')
    (True, False)
    """
    return not any(word in score for word in LOWER_IS_BETTER)


def interval(percent: float, images: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of an accuracy in percent that was measured on test images.

    >>> [round(end, 1) for end in interval(45.0, 80)]
    [34.6, 55.9]
    """
    right = round(percent / 100 * images)
    ends = scipy.stats.binomtest(right, images).proportion_ci(method='wilson')
    return 100 * float(ends.low), 100 * float(ends.high)


def chance(metric: str, labels: Tensor) -> float:
    """Return the score in percent that a classifier reaches without looking at the images.

    It predicts the most frequent class of the test images. The average precision of random scores
    is the fraction of positive images.
    """
    if labels.ndim == 2:
        positive = (labels == 1).sum(0) / (labels >= 0).sum(0).clamp_min(1)
        return mean_percent(positive[positive > 0])
    counts = labels.bincount()
    if metric == 'mean per class':
        return 100 / int((counts > 0).sum())
    return 100 * int(counts.max()) / len(labels)


def scores_of(metric: str, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the scores in percent that are usually reported for a data set with this metric.

    Args:
        metric: The data set's metric: 'top-1', 'mean per class' or '11-point mAP'.
        scores: Class scores, (images, classes).
        labels: Class of each image. If images can have several classes, (images, classes) with 1
            for yes, 0 for no, and -1 for labels that do not count.

    Raises:
        Diverged: If a score is not finite.
        UserError: If the metric is unknown.
    """
    return ranked_scores(metric, ranked(scores, labels), labels, scores.shape[1])


def ranked(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the five best classes of each image or, if images can have several, all scores.

    Five indices take a hundredth of the memory of the scores of 1000 classes.
    """
    if not scores.isfinite().all():
        raise Diverged(
            'the class scores are NaN or infinite, because the training diverged; reduce the '
            'learning rate',
            code='scores-not-finite',
        )
    return scores.topk(min(5, scores.shape[-1])).indices if labels.ndim == 1 else scores


def confusion(predicted: Tensor, y: Tensor, classes: Sequence[str]) -> dict[str, Any] | None:
    """Return the confusion matrix, or None if there are too many classes.

    Rows are the true classes, and columns are the predicted classes.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), ['cat', 'dog'])
    {'classes': ['cat', 'dog'], 'counts': [[1, 1], [0, 1]]}
    """
    from sklearn.metrics import confusion_matrix  # importing it takes a second

    count = len(classes)
    if count > LARGEST_MATRIX:
        return None
    counts = confusion_matrix(y, predicted, labels=range(count)).tolist()
    return dict(classes=list(map(str, classes)), counts=counts)


def ranked_scores(metric: str, best: Tensor, y: Tensor, classes: int) -> dict[str, float]:
    """Return the scores in percent, from the result of `ranked`.

    With five classes or fewer, there is no top-5 score.
    """
    if y.ndim == 2:
        return {'mAP (11 points)': 100 * mean_ap(best, y, ap11), 'mAP': 100 * mean_ap(best, y)}
    if metric == 'mean per class':
        from sklearn.metrics import recall_score

        recall = recall_score(y, best[:, 0], labels=y.unique(), average='macro')
        return {metric: 100 * float(recall)}
    if metric != 'top-1':
        raise UserError(
            f"metric: unknown metric of the data set ('{metric}'); set top-1, mean per class or "
            '11-point mAP',
            code='unknown-metric',
        )
    right = best == y[:, None]
    scores = {'top-1': mean_percent(right[:, 0])}
    if classes > 5:
        scores['top-5'] = mean_percent(right.any(dim=1))
    return scores


def mean_percent(values: Tensor) -> float:
    """Return the mean of numbers or booleans in percent, computed in float64."""
    return 100 * values.double().mean().item()


def ap11(y: np.ndarray, scores: np.ndarray) -> float:
    """Return the 11-point average precision of VOC2007.

    It is the mean over r = 0, 0.1, ..., 1 of the best precision at a recall of at least r.
    """
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(y, scores)
    # The last point of the curve, a precision of 1 at a recall of 0, belongs to no image.
    reached = [precision[:-1][recall[:-1] >= tenth / 10].max() for tenth in range(11)]
    return sum(reached) / 11


def mean_ap(scores: Tensor, labels: Tensor, measure: Callable[..., float] | None = None) -> float:
    """Return the mean over the classes that have a positive image of scikit-learn's average precision.

    An image with label -1 for a class (VOC's 'difficult') does not count for that class.

    Args:
        scores: Class scores, (images, classes).
        labels: Labels, (images, classes).
        measure: Another function of the labels and the scores of a class, such as `ap11`.
    """
    from sklearn.metrics import average_precision_score  # importing it takes a second

    measure = measure or average_precision_score
    each = []
    for label in (labels == 1).any(dim=0).nonzero().flatten().tolist():
        rows = labels[:, label] != -1
        each.append(float(measure(labels[rows, label].numpy(), scores[rows, label].numpy())))
    return sum(each) / len(each)


@METRICS.register_module()
class HeadAccuracy(BaseMetric):
    """Score a classifier on a data set, in percent.

    Predictions are collected image by image, so that the scores do not depend on padding or on the
    number of processes. Unreadable images are counted but not scored. If the classifier has several
    heads, the name of each score ends in ``@`` and the index of the head. A head that has diverged
    gets 0.

    Args:
        metric: The data set's metric. Default: 'top-1'.
    """

    default_prefix = ''

    def __init__(self, metric: str = 'top-1') -> None:
        super().__init__()
        self.metric = metric

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        readable = data_batch['data_samples']['readable']
        for outputs in data_samples:
            scores, labels = outputs['scores'].cpu(), outputs['label'].cpu()
            self.classes = scores.shape[2]
            useful = scores.abs().amax(dim=2) < DIVERGED
            self.results += zip(ranked(scores, labels), labels, readable.cpu(), useful)

    def compute_metrics(self, results: list[tuple[Tensor, ...]]) -> dict[str, float]:
        best, labels, readable, useful = map(torch.stack, zip(*results))
        best, labels = best[readable], labels[readable]
        scores = {}
        for head in range(best.shape[1]):
            suffix = f'@{head}' if best.shape[1] > 1 else ''
            found = ranked_scores(self.metric, best[:, head], labels, self.classes)
            if not useful[:, head].all():
                found = dict.fromkeys(found, 0.0)
            scores |= {f'{name}{suffix}': value for name, value in found.items()}
        if not readable.all():
            scores['unreadable test images'] = float((~readable).sum())
        return scores
