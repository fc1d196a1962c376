"""Compare two single checkpoints image by image with an exact sign-flip test.

An image is recognized by a checkpoint that classifies it correctly. The null hypothesis is that both checkpoints are equally
good on the distribution of the test images. Swapping the answers of the checkpoints on some groups of images then gives a
result that is as likely as the observed result. The test compares the observed difference in accuracy with the differences
after all 2^n possible swaps of n groups of images. With one image per group, it is McNemar's exact test. The verdict applies
to the two checkpoint files, not to the recipes that trained them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mmairl.study.statistics.compare_rows import LEVEL

DIFFER = 'The checkpoints differ on images from this distribution. The test does not compare training recipes.'
NO_DIFFERENCE = (
    'The test does not show a difference on images from this distribution. '
    'This does not mean that the checkpoints are equal.'
)


@dataclass(frozen=True)
class PairedImages:
    """The comparison of two checkpoints on the same test images.

    Args:
        images: Number of test images.
        groups: Number of groups of images. The answers on all images of a group are swapped together.
        only_one: Number of images that only the first checkpoint recognizes.
        only_other: Number of images that only the second checkpoint recognizes.
        p: Two-sided p-value of the exact test.
    """

    images: int
    groups: int
    only_one: int
    only_other: int
    p: float

    @property
    def difference(self) -> float:
        """The accuracy of the second checkpoint minus that of the first, in points."""
        return 100 * (self.only_other - self.only_one) / self.images

    @property
    def verdict(self) -> str:
        return DIFFER if self.p <= LEVEL else NO_DIFFERENCE


def compare_images(
    one: np.ndarray, other: np.ndarray, groups: Sequence[str] | None = None
) -> PairedImages:
    """Compare which images two checkpoints recognize.

    Args:
        one: (images,) Whether the first checkpoint recognizes each image.
        other: (images,) Whether the second checkpoint recognizes each image.
        groups: The group of each image, such as the patient. If None, each image is a group of its own.

    Example:
        >>> compare_images(np.zeros(8, bool), np.ones(8, bool)).p
        0.0078125
    """
    signs = other.astype(int) - one.astype(int)
    if groups is None:
        differences = signs
    else:
        _, places = np.unique(np.asarray(groups), return_inverse=True)
        differences = np.bincount(places, weights=signs).astype(int)
    return PairedImages(
        images=len(signs),
        groups=len(differences),
        only_one=int((signs < 0).sum()),
        only_other=int((signs > 0).sum()),
        p=sign_flip_p(differences),
    )


def sign_flip_p(differences: np.ndarray) -> float:
    """Return the exact two-sided p-value of a sum of integer differences whose signs are flipped independently."""
    sizes = abs(differences[differences != 0])
    total = int(sizes.sum())
    # chances[total + s] is the probability that the sum is s.
    chances = np.zeros(2 * total + 1)
    chances[total] = 1.0
    for size in sizes:
        chances = (np.roll(chances, size) + np.roll(chances, -size)) / 2
    observed = abs(int(differences.sum()))
    sums = np.arange(-total, total + 1)
    return float(min(1.0, chances[abs(sums) >= observed].sum()))


def paired_lines(name: str, other: str, found: Mapping[str, PairedImages]) -> list[str]:
    """Return one line of text for each score by which two checkpoints are compared."""
    return [
        f'{label}: {other} minus {name} is {pair.difference:+.1f} points. {pair.only_other} images are recognized only by '
        f'{other} and {pair.only_one} only by {name} (exact test, p = {pair.p:.3g}). {pair.verdict}'
        for label, pair in found.items()
    ]
