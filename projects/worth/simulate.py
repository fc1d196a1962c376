"""How often the verdict of `mmairl.worth` is wrong where the truth is planted: python -m projects.worth.simulate.

Four classes are clouds around four points; how far these are apart is how good a candidate's features are.
"""

from collections import Counter

import numpy as np

from mmairl.own.few_labels import Verdict, class_weights, draw, judged, prepared, recognised_by_draw
from mmairl.report.table import print_table

STUDIES = 1000
OWN = ('own', 'own from weights')
CASES = {  # distances of the own pre-trainings, and of the rest; labels, and images of a group, which are alike
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


def verdict(
    seed: int, own: tuple[float, ...], rest: tuple[float, ...], labels: int = 160, together: int = 1
) -> Verdict:
    """Return the verdict of a study with so many labelled images, half of them for the test, in groups of so many."""
    random, groups = np.random.default_rng(seed), np.arange(labels) // together
    y = groups % 4
    pool, test = np.arange(labels // 2), np.arange(labels // 2, labels)
    # Half of the labels and all: at which a verdict looks.
    points, right = dict([*draw(y, pool, seed, groups=groups).items()][-2:]), {}
    for name, distance in zip([*OWN[: len(own)], *map(str, rest)], [*own, *rest]):
        x = distance * np.eye(8)[y] + random.normal(size=(labels, 8))
        if together > 1:  # and as far apart from other groups as images are
            x += random.normal(size=(labels, 8))[groups]
        x = prepared(x, pool)
        right[f'{name} {len(right)}' if name not in OWN else name] = recognised_by_draw(x, y, points, test)
    return judged(right, class_weights(y[test]), OWN[: len(own)], labels, groups[test])


def main() -> None:
    rows = []
    for name, case in CASES.items():
        found = [verdict(seed, *case) for seed in range(STUDIES)]
        count, gain = Counter(one.word for one in found), np.mean([one.gain for one in found])
        shares = [f'{100 * count[word] / STUDIES:.1f}' for word in ('pays', 'keep', 'undecided')]
        rows.append((name, [f'{gain:+.1f}', *shares]))
    print_table(['mean gain', 'pays, %', 'keep, %', 'undecided, %'], rows, head='truth')


if __name__ == '__main__':
    main()
