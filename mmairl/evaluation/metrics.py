"""Compute classification metrics from class scores and labels, and provide them to mmengine's evaluator."""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor

from mmairl.errors import Diverged, UserError
from mmairl.registry import METRICS

MANY = 100  # A class with more training images than this is many-shot.
FEW = 20  # A class with fewer training images than this is few-shot.
LARGEST_MATRIX = 50  # With more classes than this, a confusion matrix is hard to read.
# A score whose name contains one of these words is better if it is lower. A protocol with another such score adds its name.
LOWER_IS_BETTER = {'RMSE', 'AbsRel', 'uniformity', 'error'}


def higher_is_better(score: str) -> bool:
    """Return the direction of a score from its name. All tables, plots and verdicts use this function.

    >>> higher_is_better('k-NN, k = 20'), higher_is_better('depth_probe, RMSE (m)')
    (True, False)
    """
    return not any(word in score for word in LOWER_IS_BETTER)


def scores_of(metric: str, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the scores in percent that are usually reported for a data set with this metric.

    Args:
        metric: The data set's metric: 'top-1', 'mean per class', '11-point mAP' or 'any label'.
        scores: Class scores, (images, classes).
        labels: Class of each image. If images can have several classes, (images, classes) with 1 for yes, 0 for no, and -1
            for labels that do not count.

    Raises:
        Diverged: If a score is not finite.
        UserError: If images have one class each and a label is out of range or the metric is unknown. If images can have
            several classes: if no image belongs to any class.
    """
    require_finite(scores)
    classes = scores.shape[1]
    if labels.ndim == 1:
        require_labels(labels, classes)
        scores = best_five(scores)
    return ranked_scores(metric, scores, labels, classes)


def packed(right: Tensor) -> dict[str, Any]:
    """Encode, in a form that JSON can store, which images are classified correctly. Each image takes one bit."""
    bits = np.packbits(right.cpu().numpy())
    return dict(images=len(right), bits=base64.b64encode(bits).decode())


def unpacked(bitmap: Mapping[str, Any]) -> np.ndarray:
    """Decode the result of `packed` into an array of booleans.

    >>> unpacked(packed(torch.tensor([True, False, True])))
    array([ True, False,  True])
    """
    bits = np.frombuffer(base64.b64decode(bitmap['bits']), np.uint8)
    return np.unpackbits(bits, count=bitmap['images']).astype(bool)


def confusion(predicted: Tensor, y: Tensor, classes: Sequence[str]) -> dict[str, Any] | None:
    """Return the confusion matrix, or None if there are too many classes.

    Rows are the true classes, and columns are the predicted classes.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), ['cat', 'dog'])
    {'classes': ['cat', 'dog'], 'counts': [[1, 1], [0, 1]]}
    """
    size = len(classes)
    if size > LARGEST_MATRIX:
        return None
    counts = (y * size + predicted).bincount(minlength=size**2)
    matrix = counts.view(size, size)
    return dict(classes=list(map(str, classes)), counts=matrix.tolist())


def best_five(scores: Tensor) -> Tensor:
    """Return, for each image, the five classes with the highest scores, best first, or all classes if there are fewer."""
    return scores.topk(min(5, scores.shape[-1]), dim=-1).indices


def ranked_scores(metric: str, best: Tensor, y: Tensor, classes: int) -> dict[str, float]:
    """Return the scores in percent for a metric.

    `best` lists the best classes of each image. If images can have several classes, it contains the class scores instead.
    With five classes or fewer, there is no top-5 score.
    """
    if metric == 'any label':
        predicted = best.argmax(dim=1, keepdim=True)
        return {'top-1': mean_percent(y.gather(1, predicted) == 1)}
    if y.ndim == 2:
        by_eleven = mean_ap(best, y, ap11)
        return {'mAP (11 points)': 100 * by_eleven, 'mAP': 100 * mean_ap(best, y)}
    if metric == 'mean per class':
        of_classes = list(recalls(best[:, 0], y).values())
        return {metric: mean_percent(torch.stack(of_classes))}
    if metric != 'top-1':
        raise UserError(
            f"metric: unknown metric of the data set ('{metric}'); expected top-1, mean per class, 11-point mAP or any label",
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


def recalls(predicted: Tensor, y: Tensor) -> dict[int, Tensor]:
    """Return the recall of each class that occurs in `y`.

    >>> recalls(torch.tensor([0, 0, 0]), torch.tensor([0, 0, 1]))
    {0: tensor(1., dtype=torch.float64), 1: tensor(0., dtype=torch.float64)}
    """
    labels, position = y.unique(return_inverse=True)
    is_right = (predicted == y).double()
    recall = position.bincount(weights=is_right) / position.bincount()
    return dict(zip(labels.tolist(), recall))


def shot_report(predicted: Tensor, y: Tensor, train_counts: Tensor) -> dict[str, float]:
    """Return the mean accuracy in percent of many-shot, medium-shot and few-shot classes (Liu et al. 2019).

    A many-shot class has more than 100 training images, and a few-shot class has fewer than 20.
    """
    require_labels(y, len(train_counts))
    groups: dict[str, list[Tensor]] = {'many': [], 'medium': [], 'few': []}
    for label, recall in recalls(predicted, y).items():
        count = int(train_counts[label])
        name = 'many' if count > MANY else 'few' if count < FEW else 'medium'
        groups[name].append(recall)
    return {name: mean_percent(torch.stack(group)) for name, group in groups.items() if group}


def average_precision(scores: Tensor, y: Tensor) -> float:
    """Return the average precision: the mean of the precisions P_n, weighted by the increases of recall R_n - R_{n-1}.

    >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]))
    0.8333333333333333
    """
    # The import is local, because it takes a second.
    from sklearn.metrics import average_precision_score

    is_positive = y.numpy() == 1
    return float(average_precision_score(is_positive, scores.numpy()))


def ap11(scores: Tensor, y: Tensor) -> float:
    """Return the 11-point average precision of VOC2007.

    It is the mean of 11 values. For each r = 0, 0.1, ..., 1, the value is the best precision at a recall of at least r.
    """
    from sklearn.metrics import precision_recall_curve

    is_positive = y.numpy() == 1
    precision, recall, _ = precision_recall_curve(is_positive, scores.numpy())
    # The last point of scikit-learn's curve, a precision of 1 at a recall of 0, belongs to no image, so it is removed.
    precision = precision[:-1]
    recall = recall[:-1]
    reached = [precision[recall >= tenth / 10].max() for tenth in range(11)]
    return float(sum(reached)) / 11


def mean_ap(
    scores: Tensor, labels: Tensor, measure: Callable[[Tensor, Tensor], float] = average_precision
) -> float:
    """Return the mean of `measure` over the classes. The default measure is the average precision.

    An image with label -1 for a class (VOC's 'difficult') does not count for that class. Classes without a positive image do
    not enter the mean.
    """
    is_present = (labels == 1).any(dim=0)
    present = is_present.nonzero().squeeze(1).tolist()
    if not present:
        raise UserError(
            'average precision: no test image belongs to any class; check the labels of the test data',
            code='no-positives',
        )
    each = []
    for label in present:
        of_class = labels[:, label]
        rows = of_class != -1
        each.append(measure(scores[rows, label], of_class[rows]))
    return sum(each) / len(each)


@METRICS.register_module()
class HeadAccuracy(BaseMetric):
    """Score a classifier on a data set, in percent.

    Predictions are collected image by image, so that the scores do not depend on padding or on the number of processes.
    Unreadable images are counted but not scored. If the classifier has several heads, the name of each score ends in ``@``
    and the index of the head.

    Args:
        metric: The data set's metric. Default: 'top-1'.
        train_counts: Number of training images of each class. If it is set, the accuracies of many-, medium- and few-shot
            classes are added to a top-1 accuracy.
        halves: Whether to add the main score on each half of the images (see `half_of`). Hyperparameters can then be
            chosen on one half and scored without bias on the other. Default: False.
        columns: For each class of the data set, the index of the classifier's output for this class. Other outputs are
            ignored. Default: the outputs are the classes of the data set, in order.
    """

    default_prefix = ''

    def __init__(
        self,
        metric: str = 'top-1',
        train_counts: Sequence[int] | None = None,
        halves: bool = False,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.metric = metric
        self.train_counts = train_counts
        self.halves = halves
        self.columns = columns

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        samples = data_batch.get('data_samples', {})
        for outputs in data_samples:
            scores = outputs['scores'].cpu()
            labels = outputs['label'].cpu()
            if self.columns is not None:
                scores = scores[:, :, self.columns]
            require_finite(scores.flatten(1))
            self.classes = scores.shape[2]
            if labels.ndim == 1:
                # Only the five best classes of each image are kept. For ImageNet, their indices take a hundredth of the
                # memory that the scores of all 1000 classes would take.
                scores = best_five(scores)
            readable = samples.get('readable', torch.ones(len(labels)))
            self.results += zip(scores, labels, readable.bool().cpu())

    def compute_metrics(self, results: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
        ranked, labels, readable = map(torch.stack, zip(*results))
        ranked = ranked[readable]
        labels = labels[readable]
        heads = ranked.shape[1]
        scores = {}
        for head in range(heads):
            suffix = f'@{head}' if heads > 1 else ''
            of_head = self._head_scores(ranked[:, head], labels)
            scores |= {f'{name}{suffix}': value for name, value in of_head.items()}
        if not readable.all():
            scores['unreadable test images'] = float((~readable).sum())
        return scores

    def _head_scores(self, best: Tensor, labels: Tensor) -> dict[str, float]:
        scores = ranked_scores(self.metric, best, labels, self.classes)
        if self.halves:
            for half in (0, 1):
                rows = half_of(labels) == half
                of_half = ranked_scores(self.metric, best[rows], labels[rows], self.classes)
                scores[f'half {half}'] = next(iter(of_half.values()))
        if self.train_counts is not None and self.metric == 'top-1':
            counts = torch.as_tensor(self.train_counts)
            shots = shot_report(best[:, 0], labels, counts)
            scores |= {f'{group}-shot': value for group, value in shots.items()}
        return scores


def half_of(labels: Tensor) -> Tensor:
    """Assign each image to half 0 or half 1 of the data set.

    Within each class, the halves alternate. If images can have several classes, the halves alternate over all images.

    >>> half_of(torch.tensor([1, 0, 1, 0])).tolist()
    [0, 0, 1, 1]
    """
    number = torch.arange(len(labels))
    order = labels.argsort(stable=True) if labels.ndim == 1 else number
    half = torch.empty_like(number)
    half[order] = number % 2
    return half


def require_finite(scores: Tensor) -> None:
    is_broken = ~scores.isfinite().all(dim=1)
    broken = int(is_broken.sum())
    if broken:
        raise Diverged(
            f'{broken} of {len(scores)} images have NaN or infinite scores, because the training diverged; reduce the learning '
            'rate',
            code='scores-not-finite',
        )


def require_labels(y: Tensor, classes: int) -> None:
    """Raise unless each label is one of the classes."""
    wrong = y[(y < 0) | (y >= classes)]
    if len(wrong):
        raise UserError(
            f"labels: out of range ('{int(wrong[0])}'); the classifier has {classes} classes, 0 to {classes - 1}; check that "
            'the test data have the classes of the training data and a label for every image',
            code='label-out-of-range',
        )
