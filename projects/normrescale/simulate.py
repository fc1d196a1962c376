"""Simulate how often the 95 % interval of NormRescale's benefit contains the true number of tuning trials.

    python -m projects.normrescale.simulate

The score of a simulated network falls off on both sides of its best fine-tuning rate. The rescaled network is measured only
at the recipe's rate.
"""

from collections.abc import Mapping

import numpy as np

from mmairl.report.table import print_table
from projects.normrescale.trials import TrialBenefit, trial_benefit

STUDIES = 1000  # simulated studies of each case
MANY = 4000  # simulated networks from which the true number of trials is computed
TRIALS, SEEDS = 5, (3, 5, 10)
RATES = np.log(
    [1 / 100, 10]
)  # logarithms of the lowest and the highest rate, relative to the recipe's rate
CHANCE = 8.3  # score of random guesses, in points
RUN = 1.0  # standard deviation between runs, in points
HALF = 1.5  # standard deviation between scores on different halves of the images, in points
# For each case: the mean and the standard deviation of the original network's best score, the mean and the standard
# deviation of the logarithm of its best rate relative to the recipe's, and by how many points the best score of the
# rescaled network is higher.
CASES = {
    'equally good': (30, 3, 0, 0.5, 0),
    'a lower rate suffices': (30, 3, -1.5, 0.7, -0.5),
    'a lower rate helps': (30, 3, -2, 0.7, 2),
    'no rate suffices': (30, 3, 0, 0.5, 4),
    'seeds differ much': (20, 7, -1, 1, 0),
}


def networks(
    random: np.random.Generator,
    many: int,
    trials: int,
    height: float,
    spread: float,
    best: float,
    wide: float,
) -> np.ndarray:
    """Return simulated scores (networks, trials, halves of the images). The first trial has the recipe's rate."""
    places = np.c_[np.zeros(many), random.uniform(*RATES, (many, trials - 1))]
    top, peak = (
        height + spread * random.normal(size=(many, 1)),
        best + wide * random.normal(size=(many, 1)),
    )
    score = np.maximum(CHANCE, top - (places - peak) ** 2) + RUN * random.normal(size=places.shape)
    return score[..., None] + HALF * random.normal(size=(*places.shape, 2))


def study(random: np.random.Generator, case: str, seeds: int) -> TrialBenefit:
    """Return the benefit that a simulated study estimates from this number of seeds."""
    height, spread, best, wide, gain = CASES[case]
    rescaled = networks(random, seeds, 1, height + gain, spread, 0, wide)[:, 0]
    return trial_benefit(networks(random, seeds, TRIALS, height, spread, best, wide), rescaled)


def holds(estimate: TrialBenefit, truth: TrialBenefit) -> bool:
    """Return True if the interval contains the true number of trials. None means more trials than were simulated."""
    low, true, high = (
        estimate.most + 1 if end is None else end
        for end in (estimate.low, truth.trials, estimate.high)
    )
    return low <= true <= high


def coverage(case: str, seeds: int, studies: int = STUDIES) -> Mapping[str, float]:
    """Return the fraction of studies whose interval contains the truth, and the fraction whose interval is one number."""
    random = np.random.default_rng(0)
    truth, benefits = (
        study(random, case, MANY),
        [study(random, case, seeds) for _ in range(studies)],
    )
    return dict(
        holds=np.mean([holds(benefit, truth) for benefit in benefits]),
        decided=np.mean([benefit.low == benefit.high for benefit in benefits]),
    )


def main() -> None:
    rows = []
    for case in CASES:
        coverages = [coverage(case, seeds) for seeds in SEEDS]
        truth = study(np.random.default_rng(0), case, MANY).trials
        shares = [
            f'{100 * rates[part]:.1f} %' for part in ('holds', 'decided') for rates in coverages
        ]
        rows.append((case, [f'more than {TRIALS - 1}' if truth is None else str(truth), *shares]))
    columns = [f'{part}, {seeds} seeds' for part in ('holds', 'decided') for seeds in SEEDS]
    print_table(['truth', *columns], rows)


if __name__ == '__main__':
    main()
