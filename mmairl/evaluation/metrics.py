"""Metrics of classification, from class scores and labels, at once or batch by batch in a runner."""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor

from mmairl.errors import Diverged, UserError
from mmairl.registry import METRICS

MANY, FEW = 100, 20  # training images of a class: many-shot above the one, few-shot below the other


def scores_of(metric: str, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """The scores in percent, by name, that a data set with this `metric` is reported by; `scores` are (images, classes)."""
    require_finite(scores)
    if labels.ndim == 1:
        require_labels(labels, scores.shape[1])
    return ranked_scores(metric, scores if labels.ndim == 2 else best_five(scores), labels, scores.shape[1])


def packed(right: Tensor) -> dict[str, Any]:
    """Pack which images are recognised into a bit an image, for a JSON file."""
    return dict(images=len(right), bits=base64.b64encode(np.packbits(right.cpu().numpy())).decode())


def unpacked(bitmap: Mapping[str, Any]) -> np.ndarray:
    """
    >>> unpacked(packed(torch.tensor([True, False, True])))
    array([ True, False,  True])
    """
    bits = np.frombuffer(base64.b64decode(bitmap['bits']), np.uint8)
    return np.unpackbits(bits, count=bitmap['images']).astype(bool)


def best_five(scores: Tensor) -> Tensor:
    """The classes with the highest scores, best first; fewer where there are fewer."""
    return scores.topk(min(5, scores.shape[-1]), dim=-1).indices


def ranked_scores(metric: str, best: Tensor, y: Tensor, classes: int) -> dict[str, float]:
    """From each image's best classes or, where it can be of several, its scores; of five classes, the five best say nothing."""
    if y.ndim == 2:
        return {'mAP (11 points)': 100 * mean_ap(best, y, ap11), 'mAP': 100 * mean_ap(best, y)}
    if metric == 'mean per class':
        return {metric: 100 * torch.stack(list(recalls(best[:, 0], y).values())).mean().item()}
    if metric != 'top-1':
        raise UserError(
            f"metric={metric!r} of the data set is not known; use 'top-1', 'mean per class' or '11-point mAP'."
        )
    right = best == y[:, None]
    top1 = {'top-1': 100 * right[:, 0].double().mean().item()}
    return top1 | ({'top-5': 100 * right.any(dim=1).double().mean().item()} if classes > 5 else {})


def recalls(predicted: Tensor, y: Tensor) -> dict[int, Tensor]:
    """The fraction recognised of each class in `y`.

    >>> recalls(torch.tensor([0, 0, 0]), torch.tensor([0, 0, 1]))
    {0: tensor(1., dtype=torch.float64), 1: tensor(0., dtype=torch.float64)}
    """
    labels, position = y.unique(return_inverse=True)
    right = position.bincount(weights=(predicted == y).double())
    return dict(zip(labels.tolist(), right / position.bincount()))


def shot_report(predicted: Tensor, y: Tensor, train_counts: Tensor) -> dict[str, float]:
    """Mean accuracy in percent of the classes with many (> 100), medium or few (< 20) training images (Liu et al. 2019)."""
    require_labels(y, len(train_counts))
    groups: dict[str, list[Tensor]] = {'many': [], 'medium': [], 'few': []}
    for label, recall in recalls(predicted, y).items():
        count = int(train_counts[label])
        groups['many' if count > MANY else 'few' if count < FEW else 'medium'].append(recall)
    return {name: 100 * torch.stack(group).mean().item() for name, group in groups.items() if group}


def average_precision(scores: Tensor, y: Tensor) -> float:
    """The precision at every step of recall, weighted by the step: the sum of (R_n - R_{n-1}) P_n.

    >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]))
    0.8333333333333333
    """
    from sklearn.metrics import average_precision_score  # it takes a second, which single labels need not pay

    return float(average_precision_score(y.numpy() == 1, scores.numpy()))


def ap11(scores: Tensor, y: Tensor) -> float:
    """VOC2007's: the mean over the recalls 0, 0.1, ..., 1 of the best precision at that recall or beyond."""
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(y.numpy() == 1, scores.numpy())
    # scikit-learn ends its curve with a precision of 1 that no image has
    reached = [precision[:-1][recall[:-1] >= tenth / 10].max() for tenth in range(11)]
    return float(sum(reached)) / 11


def mean_ap(scores: Tensor, labels: Tensor, measure: Callable[[Tensor, Tensor], float] = average_precision) -> float:
    """Mean over the classes of the average precision, or of `ap11`.

    An image with label -1 for a class (VOC's 'difficult') does not count there; a class without a positive has no
    average precision and is left out.
    """
    shown = (labels == 1).any(dim=0).nonzero().squeeze(1).tolist()
    if not shown:
        raise UserError(
            'no image is of any class, so there is no average precision; check the labels of the test data.'
        )
    counted = {label: labels[:, label] != -1 for label in shown}
    each = [measure(scores[rows, label], labels[rows, label]) for label, rows in counted.items()]
    return sum(each) / len(each)


@METRICS.register_module()
class HeadAccuracy(BaseMetric):
    """The scores of a data set in percent, image by image, so that processes and padded last batches add nothing.

    `train_counts`, the training images of each class, adds the many-, medium- and few-shot classes' accuracies. With
    several heads each score's name ends in @ and the head's number. Images that could not be read are counted instead.
    `halves` adds the first score of each half of every class, so that one can choose and the other report.
    """

    default_prefix = ''

    def __init__(self, metric: str = 'top-1', train_counts: Sequence[int] | None = None, halves: bool = False) -> None:
        super().__init__()
        self.metric, self.train_counts, self.halves = metric, train_counts, halves

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        readable = data_batch.get('data_samples', {}).get('readable')
        for outputs in data_samples:
            scores, labels = outputs['scores'].cpu(), outputs['label'].cpu()
            require_finite(scores.flatten(1))
            self.classes = scores.shape[2]
            if labels.ndim == 1:  # the best suffice, and are a two hundredth of ImageNet's scores
                scores = best_five(scores)
            counts = torch.ones(len(labels), dtype=torch.bool) if readable is None else readable.bool().cpu()
            self.results += list(zip(scores, labels, counts))

    def compute_metrics(self, results: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
        ranked, labels, readable = (torch.stack(column) for column in zip(*results))
        ranked, labels, scored = ranked[readable], labels[readable], {}
        for head in range(ranked.shape[1]):
            best, suffix = ranked[:, head], f'@{head}' if ranked.shape[1] > 1 else ''
            scores = ranked_scores(self.metric, best, labels, self.classes)
            for half in (0, 1) if self.halves else ():
                part = half_of(labels) == half
                own = ranked_scores(self.metric, best[part], labels[part], self.classes)
                scores[f'half {half}'] = next(iter(own.values()))
            if self.train_counts is not None and self.metric == 'top-1':
                shots = shot_report(best[:, 0], labels, torch.as_tensor(self.train_counts))
                scores |= {f'{group}-shot': value for group, value in shots.items()}
            scored |= {f'{name}{suffix}': value for name, value in scores.items()}
        return scored | ({} if readable.all() else {'unreadable test images': float((~readable).sum())})


def half_of(labels: Tensor) -> Tensor:
    """Return 0 or 1 for each image, in turn within its class.

    >>> half_of(torch.tensor([1, 0, 1, 0])).tolist()
    [0, 0, 1, 1]
    """
    order = labels.argsort(stable=True) if labels.ndim == 1 else torch.arange(len(labels))
    half = torch.empty(len(labels), dtype=torch.long)
    half[order] = torch.arange(len(labels)) % 2
    return half


def require_finite(scores: Tensor) -> None:
    broken = int((~scores.isfinite()).any(dim=1).sum())
    if broken:
        raise Diverged(f'{broken} of {len(scores)} images have scores that are NaN or infinite; the training diverged.')


def require_labels(y: Tensor, classes: int) -> None:
    """One class an image, of those that there are."""
    wrong = y[(y < 0) | (y >= classes)]
    if len(wrong):
        raise UserError(
            f'label {int(wrong[0])} is out of range: the classifier has {classes} classes, 0 to {classes - 1}; '
            'check that the test data have the classes of the training data and a label for every image.'
        )
