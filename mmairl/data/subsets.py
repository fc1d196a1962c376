"""Data sets that select images of another data set."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmairl.data.datasets import ViewDataset
from mmairl.data.splits import HELD_OUT, Groups, groups_of, image_names, split_by_class
from mmairl.errors import UserError, explained
from mmairl.registry import DATASETS


@DATASETS.register_module()
class Subset(ViewDataset):
    """Selects images by their class, by a list of files, or at random.

    If classes are selected, they get new indices from 0, in the order of the data set, so that a
    classifier has no unused outputs. With the same seed, a smaller random selection is part of a
    larger one.

    Args:
        dataset: Config of the data set.
        classes: A file with one class name per line, or the fraction of classes to select at
            random. Default: all classes.
        files: A text file with one image per line: a file name, or a path relative to the root,
            such as SimCLR's lists of 1 % and 10 % of ImageNet. Default: all images.
        fraction: Fraction of each class to select at random. Default: all images.
        seed: Seed of the random selections.

    Raises:
        UserError: If a name in a list does not match, or if nothing is selected.

    Example:
        >>> data = dict(type='ImageFolder', root='imagenet/train')
        >>> Subset(data, classes='imagenet100.txt')  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: dict,
        classes: str | Path | float | None = None,
        files: str | Path | None = None,
        fraction: float | None = None,
        seed: int = 0,
    ) -> None:
        self.dataset = DATASETS.build(dataset)
        self.metric = self.dataset.metric
        self.views = self.dataset.views
        self.classes = self.dataset.classes
        self.select(torch.arange(len(self.dataset)))
        if files is not None:
            # Shards store names without an extension.
            members = [os.path.splitext(name)[0] for name in image_names(self.dataset)]
            rows = {os.path.basename(member): row for row, member in enumerate(members)}
            rows |= {member: row for row, member in enumerate(members)}
            names = [os.path.splitext(name)[0] for name in read_lines(files)]
            self.select(torch.tensor(sorted({rows[name] for name in known(names, rows, files)})))
        if fraction is not None:
            _, held = split_by_class(self.labels, seed, fraction)
            self.select(self.indices[held])
        if classes is not None:
            self._select_classes(classes, seed)

    def _select_classes(self, classes: str | Path | float, seed: int) -> None:
        names = self.classes
        if isinstance(classes, float):
            random = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(names), generator=random).tolist()
            chosen = {names[label] for label in order[: max(1, round(classes * len(names)))]}
        else:
            chosen = set(known(read_lines(classes), names, classes))
        self.classes = [name for name in names if name in chosen]
        self.rename([self.classes.index(name) if name in chosen else -1 for name in names])
        selected = self.labels >= 0
        self.indices, self.labels = self.indices[selected], self.labels[selected]

    def select(self, indices: Tensor) -> None:
        self.indices = indices
        self.labels = self.dataset.labels[indices]

    def rename(self, numbers: Sequence[int]) -> None:
        """Map each label to a new label: `numbers` lists the new labels in the order of the old."""
        # Label -1 (unlabeled) indexes the last entry.
        self.labels = torch.tensor([*numbers, -1])[self.labels]

    def name(self, index: int) -> str:
        return self.dataset.name(int(self.indices[index]))

    def member(self, index: int) -> str:
        return self.dataset.member(int(self.indices[index]))

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(int(self.indices[index]))

    def content(self, index: int) -> bytes:
        return self.dataset.content(int(self.indices[index]))

    def sizes(self) -> np.ndarray | None:
        sizes = self.dataset.sizes()
        return None if sizes is None else sizes[self.indices.numpy()]


@DATASETS.register_module()
class Part(Subset):
    """Selects one side of a random split: the images to fit on, or the held-out images.

    Args:
        dataset: Config of the data set.
        held: Whether to select the held-out images.
        seed: Seed of the split. Use the same seed for both sides.
        fraction: Fraction of the images to hold out, or the number per class if it is 1 or more.
        groups: How to group images (see `mmairl.data.splits.groups_of`). All images of a group are
            on the same side.
    """

    def __init__(
        self,
        dataset: dict,
        held: bool,
        seed: int = 0,
        fraction: float = HELD_OUT,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(dataset)
        names = groups and groups_of(image_names(self.dataset), groups)
        self.select(split_by_class(self.labels, seed, fraction, names)[held])


def known(names: Sequence[str], expected: Collection[str], path: str | Path) -> Sequence[str]:
    """Return the names of a list. Raise if the data set lacks one of them."""
    if unknown := [name for name in names if name not in expected]:
        raise UserError(
            f'{path}: {len(unknown)} of {len(names)} lines match nothing in the data set (the first: '
            f"'{unknown[0]}'); write names such as '{next(iter(expected))}'",
            code='unknown-name',
        )
    return names


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a list, without blank lines and comments."""
    with explained(f'{path}: the list cannot be read', 'save it in UTF-8', code='bad-list'):
        lines = [line.strip() for line in Path(path).read_text('utf-8-sig').splitlines()]
    return [line for line in lines if line and not line.startswith('#')]
