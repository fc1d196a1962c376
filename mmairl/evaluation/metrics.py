"""What classification is scored by: fractions from scores of shape (images, classes) and the labels."""

import torch
from torch import Tensor

from mmairl.errors import UserError

MANY, FEW = 100, 20  # training images of a class: many-shot above the one, few-shot below the other


def top1(scores: Tensor, y: Tensor) -> float:
    return (scores.argmax(dim=1) == y).double().mean().item()


def top5(scores: Tensor, y: Tensor) -> float:
    """How often the class is among the five with the highest scores."""
    best = scores.topk(min(5, scores.shape[1]), dim=1).indices
    return (best == y[:, None]).any(dim=1).double().mean().item()


def mean_per_class(scores: Tensor, y: Tensor) -> float:
    """The mean over the classes in `y` of the fraction of their images that is recognised.

    >>> mean_per_class(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1]))
    0.5
    """
    return torch.stack(list(recalls(scores.argmax(dim=1), y).values())).mean().item()


def recalls(predicted: Tensor, y: Tensor) -> dict[int, Tensor]:
    """The fraction recognised of each class in `y`."""
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


def curve(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Positives found and images taken at every distinct score, from the highest down.

    Images with the same score are taken together, so that their order in the data changes nothing.
    """
    scores, order = scores.sort(descending=True)
    last = torch.cat([scores[1:] != scores[:-1], scores.new_ones(1, dtype=torch.bool)])
    return (y[order] == 1).cumsum(0)[last], last.nonzero().squeeze(1) + 1


def average_precision(scores: Tensor, y: Tensor) -> float:
    """The precision at every step of recall, weighted by the step: the sum of (R_n - R_{n-1}) P_n.

    >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]))
    0.8333333333333333
    """
    found, taken = curve(scores, y)
    steps = found.diff(prepend=found.new_zeros(1))
    return (steps * (found.double() / taken)).sum().item() / _positives(found)


def ap11(scores: Tensor, y: Tensor) -> float:
    """VOC2007's: the mean over the recalls 0, 0.1, ..., 1 of the best precision at that recall or beyond."""
    found, taken = curve(scores, y)
    precision, positives = found.double() / taken, _positives(found)
    # found / positives >= tenth / 10 in whole numbers, for 0.1 has no exact float
    reached = [precision[10 * found >= tenth * positives].max() for tenth in range(11)]
    return torch.stack(reached).mean().item()


def _positives(found: Tensor) -> int:
    if not len(found) or not found[-1]:
        raise UserError('a class without a positive image has no average precision; add one or leave the class out.')
    return int(found[-1])


def mean_ap(scores: Tensor, labels: Tensor, points: int | None = None) -> float:
    """Mean over the classes of the average precision, or with `points=11` of VOC2007's.

    An image with label -1 for a class (VOC's 'difficult') does not count there; a class without a positive has no
    average precision and is left out.
    """
    measure = {None: average_precision, 11: ap11}[points]
    shown = (labels == 1).any(dim=0).nonzero().squeeze(1).tolist()
    if not shown:
        raise UserError(
            'no image is of any class, so there is no average precision; check the labels of the test data.'
        )
    counted = {label: labels[:, label] != -1 for label in shown}
    each = [measure(scores[rows, label], labels[rows, label]) for label, rows in counted.items()]
    return sum(each) / len(each)


def scores_of(metric: str, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """The scores in percent, by name, that a data set with this `metric` is reported by."""
    require_finite(scores)
    classes = scores.shape[1]
    if metric == '11-point mAP':
        require_multi_labels(labels, classes)
        return {'mAP (11 points)': 100 * mean_ap(scores, labels, 11), 'mAP': 100 * mean_ap(scores, labels)}
    require_labels(labels, classes)
    if metric == 'mean per class':
        return {'mean per class': 100 * mean_per_class(scores, labels)}
    if metric == 'top-1':
        return {'top-1': 100 * top1(scores, labels)} | ({'top-5': 100 * top5(scores, labels)} if classes > 5 else {})
    raise UserError(f"metric={metric!r} of the data set is not known; use 'top-1', 'mean per class' or '11-point mAP'.")


def require_finite(scores: Tensor) -> None:
    broken = int((~scores.isfinite()).any(dim=1).sum())
    if broken:
        raise UserError(
            f'{broken} of {len(scores)} images have scores that are NaN or infinite; the training diverged.'
        )


def require_labels(y: Tensor, classes: int) -> None:
    """One class an image, of those that there are."""
    if y.ndim != 1 or not len(y):
        raise UserError(f'labels of shape {tuple(y.shape)} are not one class an image; check the data and its metric.')
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise UserError(
            f'label {wrong} is out of range: the classifier has {classes} classes, 0 to {classes - 1}; '
            'check that the test data have the classes of the training data and a label for every image.'
        )


def require_multi_labels(labels: Tensor, classes: int) -> None:
    """A row of 1, 0 or -1 an image, an entry for every class."""
    if labels.ndim != 2 or labels.shape[1] != classes or not len(labels):
        raise UserError(
            f'labels of shape {tuple(labels.shape)} do not say yes or no for each of {classes} classes; '
            'check the data and its metric.'
        )
    wrong = labels[(labels != 1) & (labels != 0) & (labels != -1)]
    if len(wrong):
        raise UserError(
            f'label {wrong[0].item()} is out of range: an image is of a class (1), not (0) or uncounted (-1).'
        )
