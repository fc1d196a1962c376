"""Simulate how often `projects.worth` gives a wrong verdict: python -m projects.worth.simulate.

Four classes are clouds around four points. The distance between the points sets the quality of a candidate's features.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmairl.report.table import print_table
from projects.worth.few_labels import (
    Right,
    Verdict,
    class_weights,
    draw,
    judged,
    needed,
    prepared,
    recognised_by_draw,
    resampled,
    saved,
)

STUDIES = 1000
OWN = ('own', 'own from weights')
# For each case: the distances between the classes for the candidates with pre-training, the distances for the other
# candidates, the number of labels (default: 160), and the number of similar images in a group (default: 1).
CASES = {
    'equal': ((2.0,), (2.0, 0.0)),
    'equal, two to pre-train and three to keep': ((2.0, 2.0), (2.0, 2.0, 2.0)),
    'equal, 40 labels': ((2.0,), (2.0, 0.0), 40),
    'equal, 20 patients of 8 images': ((2.0,), (2.0,), 160, 8),
    'equal, 40 patients of 8 images': ((2.0,), (2.0,), 320, 8),
    'nothing to be learned': ((0.0,), (0.0, 0.0)),
    'own a little better': ((2.1,), (2.0,)),
    'own better': ((3.0,), (2.0, 0.0)),
    'own worse': ((1.0,), (2.0, 0.0)),
}
CURVES = {
    '160 labels': ((2.6,), (2.0,)),
    '40 labels': ((2.6,), (2.0,), 40),
    '20 patients of 8 images': ((2.6,), (2.0,), 160, 8),
}


@dataclass(frozen=True)
class Simulated:
    """A simulated study, with the correctly classified test images of each candidate (see projects.worth.few_labels)."""

    right: Right
    own: Sequence[str]
    labels: np.ndarray
    weight: np.ndarray
    groups: np.ndarray  # the group of each test image


def study(
    seed: int,
    own: tuple[float, ...],
    rest: tuple[float, ...],
    labels: int = 160,
    together: int = 1,
    last: int = 0,
) -> Simulated:
    """Simulate a study in which half of the labeled images are test images.

    `own` and `rest` are the distances between the classes for candidates with and without pre-training, and `together` is
    the number of similar images in a group. `last` limits the evaluation to the last points of the learning curve; 0
    evaluates all.
    """
    random, groups = np.random.default_rng(seed), np.arange(labels) // together
    y = groups % 4
    pool, test = np.arange(labels // 2), np.arange(labels // 2, labels)
    points, right = dict([*draw(y, pool, seed, groups=groups).items()][-last:]), {}
    for name, distance in zip([*OWN[: len(own)], *map(str, rest)], [*own, *rest]):
        x = distance * np.eye(8)[y] + random.normal(size=(labels, 8))
        if together > 1:  # groups vary as much as images within a group
            x += random.normal(size=(labels, 8))[groups]
        x = prepared(x, pool)
        right[f'{name} {len(right)}' if name not in OWN else name] = recognised_by_draw(
            x, y, points, test
        )
    return Simulated(
        right, OWN[: len(own)], np.array([*points]), class_weights(y[test]), groups[test]
    )


def verdict(
    seed: int, own: tuple[float, ...], rest: tuple[float, ...], labels: int = 160, together: int = 1
) -> Verdict:
    """Return the verdict of a study that was evaluated with half of the labels and with all labels."""
    found = study(seed, own, rest, labels, together, last=2)
    return judged(found.right, found.weight, found.own, labels, found.groups)


def bands(*case: Any, studies: int = 200) -> tuple[np.ndarray, float]:
    """Return how often 95 % intervals contain the truth.

    The first result is an array (candidates, points) for the intervals of the learning curves. The second result is for the
    interval of the number of labels that the second candidate needs in place of those of the first.
    """
    found = [study(seed, *case) for seed in range(studies)]
    means = [
        np.array([100 * (hits * one.weight).mean((1, 2)) for hits in one.right.values()])
        for one in found
    ]
    truth, held, kept = np.mean(means, 0), [], []
    for seed, (one, mean) in enumerate(zip(found, means)):
        samples = resampled(one.right, one.weight, seed, one.groups)
        low, high = np.percentile(samples, [2.5, 97.5], axis=0)
        held.append((low <= truth) & (truth <= high))
        few, _, least, most = saved(mean, samples, one.labels, 0, 1)
        kept.append(
            least <= needed(truth[1], one.labels, truth[0][one.labels.tolist().index(few)]) <= most
        )
    return np.mean(held, 0), float(np.mean(kept))


def main() -> None:
    rows = []
    for name, case in CASES.items():
        found = [verdict(seed, *case) for seed in range(STUDIES)]
        count, gain = Counter(one.word for one in found), np.mean([one.gain for one in found])
        shares = [f'{100 * count[word] / STUDIES:.1f}' for word in ('pays', 'keep', 'undecided')]
        rows.append((name, [f'{gain:+.1f}', *shares]))
    print_table(['mean gain', 'pays, %', 'keep, %', 'undecided, %'], rows, head='truth')
    rows = []
    for name, case in CURVES.items():
        held, kept = bands(*case)
        rows.append(
            (name, [f'{100 * held.min():.0f} to {100 * held.max():.0f}', f'{100 * kept:.0f}'])
        )
    print_table(['bands hold, %', 'labels saved, %'], rows, head='2.6 beside 2.0')


if __name__ == '__main__':
    main()
