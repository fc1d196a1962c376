"""Comparison of two checkpoints image by image: equal to McNemar's test and to full enumeration, with correct error rates."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy import stats

from mmairl.study.statistics.paired_images import DIFFER, NO_DIFFERENCE, compare_images, paired_lines, sign_flip_p

PAIRS = 8000
LIMIT = 0.05 + 3 * np.sqrt(0.05 * 0.95 / PAIRS)


@pytest.mark.parametrize('seed', range(5))
def test_single_images_give_mcnemars_exact_test(seed):
    draw = np.random.default_rng(seed)
    one, other = draw.random(60) < 0.6, draw.random(60) < 0.7
    comparison = compare_images(one, other)
    expected = stats.binomtest(comparison.only_other, comparison.only_one + comparison.only_other, 0.5).pvalue
    assert comparison.p == pytest.approx(expected)
    assert comparison.difference == pytest.approx(100 * (other.mean() - one.mean()))


def test_groups_are_swapped_together():
    differences = np.array([3, -1, 0, 2, 1, 1])
    sums = [np.dot(signs, differences) for signs in product((-1, 1), repeat=len(differences))]
    assert sign_flip_p(differences) == pytest.approx(np.mean(np.abs(sums) >= differences.sum()))
    one, other = np.zeros(6, bool), np.array([1, 1, 1, 0, 1, 1], bool)
    by_group = compare_images(one, other, groups=['a', 'a', 'a', 'b', 'c', 'c'])
    assert (by_group.groups, by_group.only_other) == (3, 5)
    assert by_group.p == pytest.approx(sign_flip_p(np.array([3, 0, 2]))) and by_group.p > compare_images(one, other).p


def discordant(gain, pairs, images=300, agreement=0.8):
    """Return, for each simulated pair of checkpoints, two counts of images that only one checkpoint recognizes.

    The first count is that of the first checkpoint, the second count that of the second checkpoint.
    A fraction `agreement` of the images is equally hard for both checkpoints.
    """
    draw = np.random.default_rng(0)
    hard = draw.random((pairs, images))
    one, other = (
        np.where(draw.random(hard.shape) < agreement, hard, draw.random(hard.shape)) < level
        for level in (0.6, 0.6 + gain)
    )
    return (one & ~other).sum(1), (other & ~one).sum(1)


@cache
def p_value(losses, gains):
    return sign_flip_p(np.repeat([-1, 1], [losses, gains]))


def rejections(gain):
    """Return the fraction of simulated pairs of checkpoints that differ with p <= 0.05."""
    return np.mean([p_value(*counts) <= 0.05 for counts in zip(*discordant(gain, PAIRS))])


def test_equal_checkpoints_rarely_differ():
    assert rejections(gain=0.0) <= LIMIT


def test_power_is_close_to_the_paired_optimum():
    """The optimal test knows the probabilities of discordant images.

    The power of the exact test may be up to 4 points lower, because its p-values are discrete.
    """
    losses, gains = (counts.sum() / (300 * PAIRS) for counts in discordant(0.1, PAIRS))
    mean = gains - losses
    effect = mean / np.sqrt(gains + losses - mean**2) * np.sqrt(300)
    assert rejections(0.1) >= stats.norm.sf(1.96 - effect) - 0.04


def test_verdict_never_speaks_of_recipes():
    same = compare_images(np.ones(9, bool), np.ones(9, bool))
    apart = compare_images(np.zeros(9, bool), np.ones(9, bool))
    assert (same.p, same.verdict, apart.verdict) == (1.0, NO_DIFFERENCE, DIFFER)
    line = paired_lines('a', 'b', {'k-NN': apart})[0]
    assert 'b minus a is +100.0 points.' in line and line.endswith(DIFFER)
