"""Simulate how often `projects.worth` is wrong about whether pre-training pays: python -m projects.worth.simulate

A candidate is a network whose features a classifier uses. Its simulated features of the four classes are clouds around four
points, and the distance between the points sets the quality of the features.
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
    bootstrap_accuracies,
    class_weights,
    classify_by_draw,
    decide,
    draw,
    labels_needed,
    saved_labels,
    standardize,
)

STUDIES = 1000
OWN = ('own', 'own from weights')
# For each case: the distances between the classes for the candidates with pre-training, the distances for the other
# candidates, the number of labels (default: 160), and the number of similar images in a group (default: 1).
CASES = {
    'equal': ((2.0,), (2.0, 0.0)),
    'equal, two with pre-training and three without': ((2.0, 2.0), (2.0, 2.0, 2.0)),
    'equal, 40 labels': ((2.0,), (2.0, 0.0), 40),
    'equal, 20 patients of 8 images': ((2.0,), (2.0,), 160, 8),
    'equal, 40 patients of 8 images': ((2.0,), (2.0,), 320, 8),
    'nothing to be learned': ((0.0,), (0.0, 0.0)),
    'own a little better': ((2.1,), (2.0,)),
    'own better': ((3.0,), (2.0, 0.0)),
    'own worse': ((1.0,), (2.0, 0.0)),
}
# For simulations of learning curves: values as in CASES.
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
        x = standardize(x, pool)
        right[f'{name} {len(right)}' if name not in OWN else name] = classify_by_draw(
            x, y, points, test
        )
    return Simulated(
        right, OWN[: len(own)], np.array([*points]), class_weights(y[test]), groups[test]
    )


def verdict(
    seed: int, own: tuple[float, ...], rest: tuple[float, ...], labels: int = 160, together: int = 1
) -> Verdict:
    """Return the verdict of a study that was evaluated with half of the labels and with all labels."""
    simulated = study(seed, own, rest, labels, together, last=2)
    return decide(simulated.right, simulated.weight, simulated.own, labels, simulated.groups)


def bands(*case: Any, studies: int = 200) -> tuple[np.ndarray, float]:
    """Return how often 95 % intervals contain the truth.

    The first result is an array (candidates, points) for the intervals of the learning curves. The second result is for the
    interval of the number of labels that the second candidate needs to be as accurate as the first.
    """
    simulations = [study(seed, *case) for seed in range(studies)]
    means = [
        np.array(
            [100 * (hits * simulation.weight).mean((1, 2)) for hits in simulation.right.values()]
        )
        for simulation in simulations
    ]
    truth, curve_covers, saving_covers = np.mean(means, 0), [], []
    for seed, (simulation, mean) in enumerate(zip(simulations, means)):
        samples = bootstrap_accuracies(simulation.right, simulation.weight, seed, simulation.groups)
        low, high = np.percentile(samples, [2.5, 97.5], axis=0)
        curve_covers.append((low <= truth) & (truth <= high))
        own_labels, _, low_labels, high_labels = saved_labels(
            mean, samples, simulation.labels, 0, 1
        )
        point = simulation.labels.tolist().index(own_labels)
        true_labels = labels_needed(truth[1], simulation.labels, truth[0][point])
        saving_covers.append(low_labels <= true_labels <= high_labels)
    return np.mean(curve_covers, 0), float(np.mean(saving_covers))


def main() -> None:
    rows = []
    for name, case in CASES.items():
        outcomes = [verdict(seed, *case) for seed in range(STUDIES)]
        count, gain = (
            Counter(outcome.word for outcome in outcomes),
            np.mean([outcome.gain for outcome in outcomes]),
        )
        shares = [f'{100 * count[word] / STUDIES:.1f}' for word in ('pays', 'keep', 'undecided')]
        rows.append((name, [f'{gain:+.1f}', *shares]))
    print_table(['mean gain', 'pays, %', 'keep, %', 'undecided, %'], rows, head='truth')
    rows = []
    for name, case in CURVES.items():
        curve_coverage, saving_coverage = bands(*case)
        rows.append(
            (
                name,
                [
                    f'{100 * curve_coverage.min():.0f} to {100 * curve_coverage.max():.0f}',
                    f'{100 * saving_coverage:.0f}',
                ],
            )
        )
    print_table(['bands hold, %', 'labels saved, %'], rows, head='2.6 against 2.0')


if __name__ == '__main__':
    main()
