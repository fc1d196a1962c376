"""Count how many labels a race (sequential test) and a fixed sample need to find the best simulated classifier.

python -m projects.label_next.simulate
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import binom

from mmairl.report.table import print_table
from projects.label_next.race import Race

STUDIES = 200
IMAGES = 2000
CLASSES = 10
# For each simulated case, the accuracies of the classifiers. The first is the highest.
CASES = ((0.70, 0.64), (0.70, 0.60), (0.85, 0.80), (0.70, 0.64, 0.60), (0.70, 0.70))
POWER = 90  # report how many labels decide this percentage of the studies
SIZES = range(50, IMAGES + 1, 50)


def simulate_classifiers(accuracies: Sequence[float], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the predictions of simulated classifiers, whose errors are correlated, and the labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=IMAGES)
    noise = random.normal(size=(IMAGES, len(accuracies)))
    difficulty = random.normal(size=(IMAGES, 1)) + 0.7 * noise
    places = difficulty.argsort(axis=0).argsort(axis=0) / IMAGES
    wrong = labels[:, None] + random.integers(1, CLASSES, size=places.shape)
    return np.where(places < accuracies, labels[:, None], wrong % CLASSES), labels


def race_labels(predictions: np.ndarray, labels: np.ndarray, seed: int) -> tuple[int, list[int]]:
    """Return how many labels a race requires, and the classifiers that it does not eliminate."""
    race = Race(predictions, seed=seed)
    while (image := race.next_image()) is not None:
        race.add(image, labels[image])
    return int(race.is_labeled.sum()), race.remaining


def fixed_decides(predictions: np.ndarray, labels: np.ndarray, images: np.ndarray) -> list[bool]:
    """Return for each sample size whether exact paired tests at the 5 % level show that the first classifier is best."""
    is_right = predictions[images] == labels[images, None]
    level = 0.05 / (predictions.shape[1] - 1)
    decisions = []
    for size in SIZES:
        gains = is_right[:size, :1].astype(int) - is_right[:size, 1:]
        wins = (gains > 0).sum(axis=0)
        losses = (gains < 0).sum(axis=0)
        values = binom.cdf(losses, wins + losses, 0.5)
        decisions.append(2 * values.max() <= level)
    return decisions


def labels_for_power(decided: Sequence[Sequence[bool]]) -> float:
    """Return the smallest sample size with which POWER percent of the studies find the best classifier."""
    enough = 100 * np.mean(decided, axis=0) >= POWER
    return SIZES[enough.argmax()] if enough.any() else np.inf


def simulate(accuracies: Sequence[float], studies: int = STUDIES) -> list[float]:
    """Return the results of races and fixed samples over simulated studies.

    Returns:
        Five numbers: the percentage of races that eliminate a best classifier, the mean number of labels of a race, the
        number of labels within which `POWER` percent of the races end, and two sizes of a fixed sample with which `POWER`
        percent of the studies find the best classifier. The first size is for samples of all images, and the second for
        samples of images on which the classifiers disagree.
    """
    wrong = 0
    race_counts = []
    all_decisions = []
    disagreeing_decisions = []
    for seed in range(studies):
        predictions, labels = simulate_classifiers(accuracies, seed)
        count, remaining = race_labels(predictions, labels, seed)
        race_counts.append(count)
        scores = (predictions == labels[:, None]).sum(axis=0)
        best = np.flatnonzero(scores == scores.max())
        wrong += not {*best} <= {*remaining}
        order = np.random.default_rng(seed).permutation(IMAGES)
        all_decisions.append(fixed_decides(predictions, labels, order))
        differ = (predictions != predictions[:, :1]).any(axis=1)
        disagreeing_decisions.append(fixed_decides(predictions, labels, order[differ[order]]))
    return [
        100 * wrong / studies,
        float(np.mean(race_counts)),
        float(np.percentile(race_counts, POWER)),
        labels_for_power(all_decisions),
        labels_for_power(disagreeing_decisions),
    ]


def main() -> None:
    columns = ['wrong, %', 'race, mean', f'race, {POWER} %', 'fixed', 'fixed, disagreeing only']
    rows = []
    for accuracies in CASES:
        name = ', '.join(f'{accuracy:.0%}' for accuracy in accuracies)
        rows.append((name, [f'{value:.1f}' for value in simulate(accuracies)]))
    print_table(columns, rows, f'labels over {STUDIES} studies of {IMAGES} images')


if __name__ == '__main__':
    main()
