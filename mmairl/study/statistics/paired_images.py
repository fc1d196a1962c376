"""Compare two checkpoints image by image with McNemar's exact test.

The verdict applies to the two files on images from the distribution of the test images, not to the recipes that trained them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

# scipy imports `scipy.stats` on first use, so commands that only print a plan do not wait for this import.
import scipy


class PairedImages(NamedTuple):
    """How many test images only one of two checkpoints classifies correctly, with the two-sided p-value of the exact test."""

    images: int
    only_first: int
    only_second: int
    p: float


def compare_images(first: Sequence[bool], second: Sequence[bool]) -> PairedImages:
    """Compare which images two checkpoints classify correctly.

    Example:
        >>> compare_images([False] * 8, [True] * 8)
        PairedImages(images=8, only_first=0, only_second=8, p=0.0078125)
    """
    pairs = Counter(zip(first, second, strict=True))
    only_first, only_second = pairs[True, False], pairs[False, True]
    differing = only_first + only_second
    p = float(scipy.stats.binomtest(only_first, differing).pvalue) if differing else 1.0
    return PairedImages(pairs.total(), only_first, only_second, p)
