"""Compare candidates, such as checkpoints, by how well a classifier on their features recognizes images with few labels.

All candidates get the same random draws of training labels and are tested on the same images. `right` maps each candidate to
a boolean array of shape (points, draws, test images) that marks the test images classified correctly. The points of a
learning curve are increasing numbers of labels; the last two points are half of the labels and all labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy import stats

from mmairl.study.statistics.compare_rows import LEVEL, holm, interval

# Learning curves are measured at these numbers of labels per class.
LABELS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
STRENGTHS = np.logspace(-6, 1, 15)  # ridge penalties to select from, for features of unit length
DRAWS, RESAMPLED = 20, 1000
MARGIN = 2.0  # in points; a smaller gain does not justify pre-training
POWER = 0.8  # with as many labels as `more_labels` returns, the test decides with this probability
Right = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """The decision whether pre-training on the custom images pays.

    `word` is 'pays', 'keep' (keep the best weights that need no training) or 'undecided'. `own` is the best candidate that
    was pre-trained on the custom images, and `best` is the best other candidate. `gain` is the accuracy of `own` minus that
    of `best`, in points.
    """

    word: str
    own: str
    best: str
    gain: float
    low: float  # lower end of the 95 % interval of the gain
    high: float
    more: int = 0  # if undecided: how many additional labels would lead to a decision


def standardize(x: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Standardize features by the mean and deviation of the training images, and scale them to unit length on average.

    If there are more dimensions than images, a rotation reduces the dimensions to the number of images.
    """
    mean, std = x[pool].mean(0), x[pool].std(0)
    x = (x - mean) / np.where(std > 1e-6, std, np.inf) / np.sqrt(x.shape[1])
    if x.shape[1] <= len(x):
        return x
    u, s, _ = np.linalg.svd(x, full_matrices=False)  # a rotation does not change the predictions
    return u * s


def draw(
    y: np.ndarray, pool: np.ndarray, seed: int, draws: int = DRAWS, groups: np.ndarray | None = None
) -> dict[float, list[np.ndarray]]:
    """Return the training images at each point of the learning curve, as one array of indices per draw.

    The points are numbers of labels per class. Within a draw, each point contains the images of all smaller points. The last
    two points are half of the labels and all labels. Half of the labels means the labels of half of the groups (such as
    patients), because groups are the independent units.
    """
    random, groups = np.random.default_rng(seed), np.arange(len(y)) if groups is None else groups
    classes = [pool[y[pool] == label] for label in np.unique(y[pool])]
    halves = [
        [_half(members, groups[members], random) for members in classes] for _ in range(draws)
    ]
    half_count, full_count = (
        sum(map(len, chain(*parts))) / len(parts) / len(classes) for parts in (halves, [classes])
    )
    small_points = {
        n: [[order[:n] for order in orders] for orders in halves] for n in LABELS if n < half_count
    }
    points = {**small_points, half_count: halves, full_count: [classes] * draws}
    return {
        float(n): [np.concatenate(parts) for parts in draw_parts]
        for n, draw_parts in points.items()
    }


def _half(members: np.ndarray, groups: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the members of a class that belong to a random half of the groups, in random order."""
    order = random.permutation(np.unique(groups))
    positions = np.concatenate(
        [np.flatnonzero(groups == group) for group in order[: (len(order) + 1) // 2]]
    )
    return members[positions if len(order) == len(groups) else random.permutation(positions)]


def classify_correctly(
    x: np.ndarray, y: np.ndarray, fit: np.ndarray, test: np.ndarray
) -> np.ndarray:
    """Return for each test image whether ridge regression classifies it correctly. All classes have the same weight.

    The penalty minimizes the leave-one-out squared error, which has a closed form (Allen, 1974). With one label per class,
    the classifier selects the nearest class.
    """
    target = np.eye(y.max() + 1)[y[fit]]
    weight = 1 / target.sum(0)[y[fit]]
    weight /= weight.sum()
    mean, share, root = weight @ x[fit], weight @ target, np.sqrt(weight)[:, None]
    u, s, v = np.linalg.svd(root * (x[fit] - mean), full_matrices=False)
    along = u.T @ (root * (target - share))

    def left_out_error(strength: float) -> float:
        shrunk = s**2 / (s**2 + strength)
        leverage = weight + u**2 @ shrunk
        residual = root * (target - share) - u @ (shrunk[:, None] * along)
        return np.square(residual / (1 - leverage)[:, None]).sum()

    best = min(STRENGTHS[::-1], key=left_out_error)  # uses the strongest of equally good penalties
    scores = (x[test] - mean) @ v.T @ ((s / (s**2 + best))[:, None] * along) + share
    return scores.argmax(1) == y[test]


def classify_by_draw(
    x: np.ndarray, y: np.ndarray, points: Mapping[float, Sequence[np.ndarray]], test: np.ndarray
) -> np.ndarray:
    """Return which test images a candidate recognizes, as an array (points, draws, test images).

    The last point has all labels and therefore only one possible draw, whose result is repeated.
    """
    *partial, full = points.values()
    hits = [[classify_correctly(x, y, fit, test) for fit in draws] for draws in partial]
    return np.array([*hits, [classify_correctly(x, y, full[0], test)] * len(full)])


def class_weights(y: np.ndarray) -> np.ndarray:
    """Return a weight for each test image, 1 on average, with the same sum for each class."""
    classes, place, count = np.unique(y, return_inverse=True, return_counts=True)
    return len(y) / len(classes) / count[place]


def gain(
    one: np.ndarray, two: np.ndarray, weight: np.ndarray, groups: np.ndarray
) -> tuple[float, float, float]:
    """Return by how many points candidate `one` is better than candidate `two` with all labels, and how certain this is.

    The second value is the standard error, and the third is its degrees of freedom (Satterthwaite). Both the test images and
    the training labels are treated as random samples. The variance due to labels is estimated from draws of half of the
    labels (the delete-half jackknife, Shao and Wu, 1989). Images of one group count as one observation: their differences
    are added (Liang and Zeger, 1986). Following Agresti and Min (2005), one group with a difference is added to the observed
    groups, because a few groups without a difference are weak evidence that the candidates are equal.
    """
    differs = 100 * weight * (one.astype(float) - two)
    _, place = np.unique(groups, return_inverse=True)
    sums = np.bincount(place, differs[-1, 0] - differs[-1, 0].mean())
    count = len(sums)
    image_variance = count / (count - 1) * np.square(sums / weight.size).sum() + (100 / count) ** 2
    label_variance = differs[-2].mean(1).var(ddof=1)
    freedom = (image_variance + label_variance) ** 2 / (
        image_variance**2 / (count - 1) + label_variance**2 / (len(one[0]) - 1)
    )
    return (
        float(differs[-1, 0].mean()),
        float(np.sqrt(image_variance + label_variance)),
        float(freedom),
    )


def decide(
    right: Right,
    weight: np.ndarray,
    own: Sequence[str],
    labelled: int,
    groups: np.ndarray | None = None,
) -> Verdict:
    """Return the verdict on pre-training. For any true difference, it is wrong with a probability of at most 5 %.

    `own` names the candidates that were pre-trained on the custom images. The verdict is `pays` if one of them is better
    than every other candidate. This is tested by one-sided t-tests, of which the least significant counts, with Holm's
    correction over `own`. The verdict is `keep` if each of them is less than MARGIN points better than some other candidate,
    with Bonferroni's correction over the other candidates. If both conditions hold, the gain is real but too small, and the
    verdict is `keep`.
    """
    rivals = [name for name in right if name not in own]
    groups = np.arange(len(weight)) if groups is None else groups
    gains = {o: {b: gain(right[o], right[b], weight, groups) for b in rivals} for o in own}
    p_better = [
        max(stats.t.sf(g / error, freedom) for g, error, freedom in row.values())
        for row in gains.values()
    ]
    p_less = [
        min(stats.t.cdf((g - MARGIN) / error, freedom) for g, error, freedom in row.values())
        for row in gains.values()
    ]
    score = {name: (hits[-1, 0] * weight).mean() for name, hits in right.items()}
    best, better = max(rivals, key=score.get), holm(np.array(p_better)) < LEVEL
    keep, pays = len(rivals) * max(p_less) < LEVEL, bool(better.any())
    leading = max((o for o, fine in zip(own, better) if fine or not pays), key=score.get)
    estimate, error, freedom = gains[leading][best]
    ends = interval(estimate, error, freedom)
    word = 'keep' if keep else 'pays' if pays else 'undecided'
    more = more_labels(estimate, error, labelled) if word == 'undecided' else 0
    return Verdict(word, leading, best, estimate, ends['low'], ends['high'], more)


def more_labels(estimate: float, error: float, labelled: int) -> int:
    """Return how many more labels would lead to a decision if the estimated gain were the true gain."""
    target_error = max(estimate, MARGIN - estimate) / (
        stats.norm.ppf(1 - LEVEL) + stats.norm.ppf(POWER)
    )
    more = max(labelled * ((error / target_error) ** 2 - 1), labelled / 4)
    return int(round(more, 1 - len(str(round(more)))))


def bootstrap_accuracies(
    right: Right, weight: np.ndarray, seed: int, groups: np.ndarray
) -> np.ndarray:
    """Return bootstrap accuracies in percent, as an array (samples, candidates, points).

    Each bootstrap sample selects, with replacement, draws of labels and groups of test images. All candidates share the
    samples.
    """
    random = np.random.default_rng(seed)
    draws, (kinds, place) = (
        next(iter(right.values())).shape[1],
        np.unique(groups, return_inverse=True),
    )
    draw_weights = random.multinomial(draws, np.full(draws, 1 / draws), RESAMPLED) / draws
    image_weights = (
        random.multinomial(len(kinds), np.full(len(kinds), 1 / len(kinds)), RESAMPLED)[:, place]
        * weight
    )
    image_weights /= image_weights.sum(1, keepdims=True)
    accuracy = [
        np.stack([((draw_weights @ point) * image_weights).sum(1) for point in hits], 1)
        for hits in right.values()
    ]
    return 100 * np.stack(accuracy, 1).clip(0, 1)


def labels_needed(curve: np.ndarray, labels: np.ndarray, score: float) -> float:
    """Return the number of labels at which a learning curve reaches a score, interpolated on a log axis.

    Return infinity if the curve does not reach the score.

    >>> round(labels_needed(np.array([40.0, 60.0, 80.0]), np.array([1.0, 4.0, 16.0]), 70.0), 6)
    8.0
    """
    rising = np.maximum.accumulate(curve)
    if score in rising:
        # Where the curve is flat, use the smallest number of labels.
        return float(labels[np.argmax(rising == score)])
    return (
        float(np.exp(np.interp(score, rising, np.log(labels)))) if score <= rising[-1] else np.inf
    )


def saved_labels(
    means: np.ndarray, samples: np.ndarray, labels: np.ndarray, one: int, two: int
) -> tuple[float, float, float, float]:
    """Return a number of labels of candidate `one`, and how many labels candidate `two` needs for the same score.

    The number of labels of `one` is the largest whose score the learning curve of `two` reaches, or the smallest on the
    curve if `two` reaches no score of `one`. The other three values are the number of labels of `two`, and the lower and the
    upper end of its 95 % interval.
    """
    reachable = [
        place
        for place in range(len(labels))
        if np.isfinite(labels_needed(means[two], labels, means[one][place]))
    ]
    point = max(reachable, default=0)
    counts = [labels_needed(curves[two], labels, curves[one][point]) for curves in samples]
    low, high = np.percentile(counts, [2.5, 97.5], method='nearest')
    return (
        float(labels[point]),
        labels_needed(means[two], labels, means[one][point]),
        float(low),
        float(high),
    )
