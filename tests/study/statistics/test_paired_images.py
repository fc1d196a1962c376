"""McNemar's exact test of two checkpoints."""

import pytest
import scipy.stats

from mmairl.study.statistics.paired_images import compare_images


def test_exact_test_ignores_images_on_which_both_agree():
    first = [True] * 9 + [False] * 2 + [True] * 50
    second = [False] * 9 + [True] * 2 + [True] * 50
    found = compare_images(first, second)
    assert found.p == pytest.approx(scipy.stats.binomtest(2, 11).pvalue)
    assert found[:3] == (61, 9, 2)


def test_equal_answers_have_no_difference():
    assert compare_images([True, False], [True, False]).p == 1.0
