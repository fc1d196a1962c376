"""Bases of the labelled sets whose images are files named by official lists."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mmairl.data.folders import FileDataset
from mmairl.data.splits import HeldOut, Published
from mmairl.errors import UserError


class Listing(NamedTuple):
    """Images as paths below the root, their labels, and the names of the labels."""

    files: list[str]
    labels: list[int] | list[list[int]]
    classes: list[str]

    def pick(self, rows: Iterable[int]) -> 'Listing':
        rows = list(rows)
        return Listing([self.files[row] for row in rows], [self.labels[row] for row in rows], self.classes)

    def __add__(self, other: 'Listing') -> 'Listing':
        return Listing(self.files + other.files, self.labels + other.labels, self.classes)


class ListedDataset(Published, FileDataset):
    """Base of the sets with a list for each split; a child says by `listing` what one of them holds."""

    def __init__(
        self,
        root: str | Path,
        split: str = 'train',
        views: Sequence[Sequence[dict]] | None = None,
        max_unreadable: float = 0.01,
    ) -> None:
        self.require_split(split)
        with self.reading(root):
            listing = self.select(Path(root), split)
        if not listing.files:
            raise UserError(
                f'{type(self).__name__} has no image for split {split!r} in {Path(root).resolve()}; '
                'check that the set is whole.'
            )
        self.classes = listing.classes
        super().__init__(root, listing.files, listing.labels, views, max_unreadable)

    def listing(self, root: Path, part: str) -> Listing:
        """What the list of one part ('train', 'val' or 'test') holds."""
        raise NotImplementedError

    def select(self, root: Path, split: str) -> Listing:
        first, *rest = (self.listing(root, part) for part in split.split('+'))
        for listing in rest:
            first = first + listing
        return first


class HeldOutDataset(ListedDataset):
    """Base of the sets with lists for training and test only: 'val' is held out of the training images by `seed`.

    The published numbers come from one such split, of which only the size is known (BYOL's appendix); ours has that size.
    """

    held_out: HeldOut

    def __init__(
        self,
        root: str | Path,
        split: str = 'train',
        views: Sequence[Sequence[dict]] | None = None,
        max_unreadable: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.seed = seed
        super().__init__(root, split, views, max_unreadable)

    def select(self, root: Path, split: str) -> Listing:
        listing = self.listing(root, 'test' if split == 'test' else 'train')
        return listing.pick(self.held_out.rows(split, len(listing.files), self.seed).tolist())


def below(root: Path, files: Iterable[str | Path]) -> list[str]:
    return [os.path.relpath(file, root) for file in files]
