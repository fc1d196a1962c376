"""Hold-outs, groups of images that stay on one side of a split, and subsets of data sets."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from csv import DictReader
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.datasets import ViewDataset
from mmairl.errors import UserError, explained
from mmairl.registry import DATASETS

HELD_OUT = 0.2  # default fraction of the images to hold out
Groups = str | Mapping[str, str]


def image_names(dataset: Dataset) -> list[str]:
    """Return the path of each image relative to the root, or its name if it has no path."""
    return [dataset.member(index) for index in range(len(dataset))]


def groups_of(names: Sequence[str], groups: Groups) -> list[str]:
    r"""Return the group of each image, such as the patient that it shows, from the image's name.

    Args:
        names: Names of the images.
        groups: A regular expression, or dict(csv=FILE, column=NAME). With an expression, the group
            of an image is the first capturing group or, if there is none, the whole match. In the
            table, the first column has the names of images, and the column NAME (default: the
            second) has their groups.

    Raises:
        UserError: If `groups` is invalid, or if an image has no group.

    Example:
        >>> groups_of(['p07/a.png', 'p07/b.png', 'p08/a.png'], r'(p\d+)/')
        ['p07', 'p07', 'p08']
    """
    remedy = 'set a regular expression, or dict(csv=FILE, column=NAME) with a table in UTF-8'
    with explained(f'groups={groups}: cannot be used', remedy, code='bad-groups'):
        if isinstance(groups, str):
            pattern = re.compile(groups)
            matches = map(pattern.search, names)
            found = [match and match[min(1, pattern.groups)] for match in matches]
        else:
            found = list(map(read_column(**groups).get, names))
    if without := [name for name, group in zip(names, found) if not group]:
        raise UserError(
            f'groups={groups}: {len(without)} of {len(names)} images have no group (the first: '
            f'{without[0]}); set groups that include every image',
            code='no-group',
        )
    return found


def read_column(csv: str | Path, column: str | None = None) -> dict[str, str]:
    """Read a CSV table whose first column has image names. Return the entry of `column` by name."""
    with open(csv, newline='', encoding='utf-8-sig') as file:
        table = DictReader(file)
        name, second, *_ = table.fieldnames
        return {row[name]: row[column or second] for row in table}


def refuse_shared(groups: Mapping[str, Sequence[str]]) -> None:
    """Raise if two parts of a split share a group. `groups` maps the parts to their groups."""
    for (one, first), (other, second) in combinations(groups.items(), 2):
        if shared := sorted(set(first) & set(second)):
            raise UserError(
                f'groups: {len(shared)} groups have both {one} and {other} images (the first: '
                f"'{shared[0]}'); move all images of a group to one of the two sets",
                code='shared-groups',
            )


def split_by_class(
    y: Tensor,
    seed: int = 0,
    fraction: float = HELD_OUT,
    groups: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Split images in two. Return the indices to fit on, and the indices of the held-out images.

    The number of held-out images is `fraction` of all images, rounded. They are spread over the
    classes in proportion to the sizes of the classes, with at least one image of each class on both
    sides. If an image can have several labels, classes do not matter. If `groups` is set, whole
    groups are held out in random order until at least `fraction` of the images are held out.

    Args:
        y: The label of each image, or a matrix of labels.
        seed: Seed of the random order.
        fraction: Fraction of the images to hold out, or the number per class if it is 1 or more.
        groups: The group of each image.

    Raises:
        UserError: If a class has a single image, or if a class would be on one side only.
    """
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    held = torch.zeros(len(y), dtype=torch.bool)
    if groups is not None:
        numbers = torch.from_numpy(np.unique(groups, return_inverse=True)[1])
        for group in dict.fromkeys(numbers[order].tolist()):
            if held.sum() >= fraction * len(y):
                break
            held |= numbers == group
        sides = [y[held].unique().tolist(), y[~held].unique().tolist()]
        if y.ndim == 1 and sides[0] != sides[1]:
            raise UserError(
                'groups: a class would have images on only one side of the split; use more or smaller '
                'groups, another seed or fraction, or set separate data as evaluation.val',
                code='few-groups',
            )
    elif y.ndim == 2:
        held[order[: round(fraction * len(y))]] = True
    else:
        classes, places, sizes = y.unique(return_inverse=True, return_counts=True)
        if sizes.min() < 2:
            raise UserError(
                f'class {int(classes[sizes.argmin()])} has only one image, but a split requires two; '
                'add images, remove the class, or set separate data as evaluation.val',
                code='class-of-one',
            )
        size = sizes[places]
        # The position of each image within its class, in random order.
        by_class = order[places[order].argsort(stable=True)]
        rank = torch.empty_like(order)
        rank[by_class] = torch.cat(list(map(torch.arange, sizes)))
        # Images are held out in the order of these keys, so a larger fraction holds out a superset.
        # The first image of a class is always held out, and the last image never is.
        key = (rank + 0.5) / size
        key[rank == 0] = -1
        key[rank == size - 1] = torch.inf
        total = min(max(round(fraction * len(y)), len(sizes)), len(y) - len(sizes))
        held[key.argsort(stable=True)[:total]] = True
        if fraction >= 1:
            held = rank < (size - 1).clamp(max=fraction)
    rows = torch.arange(len(y))
    return rows[~held], rows[held]


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
            stems = [os.path.splitext(name)[0] for name in image_names(self.dataset)]
            listed = [os.path.splitext(name)[0] for name in read_lines(files)]
            numbers = range(len(stems))
            rows = dict(zip(map(os.path.basename, stems), numbers))
            rows |= dict(zip(stems, numbers))
            require_known(listed, rows, files)
            chosen = torch.tensor([rows[name] for name in listed])
            self.select(chosen.unique())
        if fraction is not None:
            _, held = split_by_class(self.labels, seed, fraction)
            self.select(self.indices[held])
        if classes is None:
            return
        names = self.classes
        if isinstance(classes, float):
            count = max(1, round(classes * len(names)))
            order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
            chosen = [names[label] for label in order[:count]]
        else:
            chosen = read_lines(classes)
            require_known(chosen, names, classes)
        self.classes = [name for name in names if name in chosen]
        numbers = dict(zip(self.classes, range(len(chosen))))
        self.rename([numbers.get(name, -1) for name in names])
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

    def encoded(self, index: int) -> bytes:
        return self.dataset.encoded(int(self.indices[index]))

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


def require_known(names: Sequence[str], expected: Collection[str], path: str | Path) -> None:
    """Raise if the data set lacks one of the names of a list."""
    if unknown := [name for name in names if name not in expected]:
        raise UserError(
            f'{path}: {len(unknown)} of {len(names)} lines match nothing in the data set (the first: '
            f"'{unknown[0]}'); write names such as '{next(iter(expected))}'",
            code='unknown-name',
        )


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a list, without blank lines and comments."""
    with explained(f'{path}: the list cannot be read', 'save it in UTF-8', code='bad-list'):
        text = Path(path).read_text('utf-8-sig')
    lines = map(str.strip, text.splitlines())
    return [line for line in lines if line and not line.startswith('#')]
