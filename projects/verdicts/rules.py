"""Decision rules of papers and libraries, applied to simulated tables with and without a difference.

A table has a baseline and six other rows. For each of these rows, a rule decides whether it is better than the baseline.
"""

from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

from mmairl.study.statistics.compare_rows import (
    DIFFERS,
    collapse_limit,
    tested,
    verdicts,
)
from projects.verdicts.simulate import NULL, scores

ROWS = 7
SPREAD = 4.0  # standard deviation in points between runs of one row, as in the demo's studies
EPOCHS = 10  # epochs of a run that are measured on the test set
WOBBLE = 1.5  # standard deviation in points between epochs of one run
RESAMPLES = 500
TABLES = 1000
SCORES = (
    'normal',
    'skewed (gamma of shape 4, the tail below)',
    'heavy tails (t of 3 degrees of freedom)',
    'one run in ten collapses',
)
# A rule receives the scores (table, row, seed), whose first row is the baseline, and a random generator. It returns an array
# (table, other row) that states which of the other rows win.
Rule = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def highest_mean(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    means = table.mean(-1)
    return means[:, 1:] > means[:, :1]


def best_epoch(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Score each run by its best epoch on the test set. A row wins if its mean is above the baseline's."""
    epochs = table[..., None] + WOBBLE * draw.normal(size=(*table.shape, EPOCHS))
    return highest_mean(epochs.max(-1), draw)


def separate_deviations(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A row wins if its mean - standard deviation is above the baseline's mean + standard deviation."""
    means, deviations = table.mean(-1), table.std(-1, ddof=1)
    return (means - deviations)[:, 1:] > (means + deviations)[:, :1]


def welch(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A row wins if it is better by Welch's t-test at the 5 % level. The six comparisons are not corrected."""
    test = stats.ttest_ind(table[:, 1:], table[:, :1], axis=-1, equal_var=False)
    return (test.pvalue < 0.05) & (test.statistic > 0)


def interquartile_means(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A row wins if the 95 % bootstrap interval of its interquartile mean is above the baseline's interval (rliable)."""
    seeds = table.shape[-1]
    cut = seeds // 4
    low, high = [], []
    for row in range(table.shape[1]):
        places = draw.integers(seeds, size=(len(table), RESAMPLES, seeds))
        samples = np.take_along_axis(table[:, row, None], places, -1)
        means = np.sort(samples, -1)[..., cut : seeds - cut].mean(-1)
        ends = np.quantile(means, (0.025, 0.975), axis=-1)
        low.append(ends[0])
        high.append(ends[1])
    return np.stack(low[1:], 1) > np.stack(high[:1], 1)


def probability_of_improvement(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A row wins if the 95 % bootstrap interval of the probability of improvement is above one half (rliable)."""
    seeds = table.shape[-1]
    better = []
    for row in range(1, table.shape[1]):
        one, two = (
            np.take_along_axis(
                table[:, place, None], draw.integers(seeds, size=(len(table), RESAMPLES, seeds)), -1
            )
            for place in (row, 0)
        )
        pairs = one[..., :, None] - two[..., None, :]
        chance = ((pairs > 0) + 0.5 * (pairs == 0)).mean((-2, -1))
        better.append(np.quantile(chance, 0.025, axis=-1) > 0.5)
    return np.stack(better, 1)


def median_of_best_trials(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Score each run by the best of its five trials. A row wins if its median is above the baseline's (AlgoPerf)."""
    trials = table[..., None] + SPREAD / 2 * draw.normal(size=(*table.shape, 5))
    medians = np.median(trials.max(-1), -1)
    return medians[:, 1:] > medians[:, :1]


def ours(table: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """A row wins if it is better by a t-test with Holm's correction, without its collapsed runs (mmairl).

    A second test compares how many runs have collapsed.
    """
    limits = collapse_limit(table, NULL)
    base = np.broadcast_to(table[:, :1], table[:, 1:].shape)
    base_limits = np.broadcast_to(limits[:, :1], limits[:, 1:].shape)
    *numbers, share = tested(table[:, 1:], base, (limits[:, 1:], base_limits), blocks=False)
    differs = verdicts(*numbers, margin=1.0, share=share) == DIFFERS
    return differs & (numbers[0] > 0)


RULES: Mapping[str, Rule] = {
    'highest mean wins': highest_mean,
    'best epoch on the test set': best_epoch,
    'median of the best trials': median_of_best_trials,
    'mean ± std do not overlap': separate_deviations,
    'rliable: probability of improvement': probability_of_improvement,
    'rliable: intervals of the IQM': interquartile_means,
    "Welch's test, uncorrected": welch,
    'mmairl': ours,
}


def rates(rule: Rule, kind: str, seeds: int, gain: float, tables: int = TABLES) -> float:
    """Return the fraction of tables for which a rule declares a winner.

    Args:
        rule: The rule.
        kind: The distribution of the scores.
        seeds: Runs of each row.
        gain: By how many points the last row is better than the others. With 0, all rows are equal and any winner counts.
            Otherwise, only the last row counts as a winner.
        tables: Number of simulated tables.
    """
    draw = np.random.default_rng(seeds)
    table = scores(draw, kind, np.full(ROWS, SPREAD), seeds, tables, blocks=False)
    table[:, -1] += gain
    better = rule(table, draw)
    return float((better[:, -1] if gain else better.any(-1)).mean())
