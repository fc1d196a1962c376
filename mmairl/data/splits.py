"""The rule by which images are held out, and groups of images that stay on one side of a split."""

import re
from collections.abc import Mapping, Sequence
from csv import reader
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.errors import UserError, explained

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
        header, *rows = reader(file)
    position = 1 if column is None else header.index(column)
    return {row[0]: row[position] for row in rows if row}


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
        if y.ndim == 1 and set(y[held].tolist()) != set(y[~held].tolist()):
            raise UserError(
                'groups: a class would have images on only one side of the split; use more or smaller '
                'groups, another seed or fraction, or set separate data as evaluation.val',
                code='few-groups',
            )
    elif y.ndim == 2:
        held[order[: round(fraction * len(y))]] = True
    else:
        rank, size = _ranks(y, order)
        # Images are held out in the order of these keys, so a larger fraction holds out a superset.
        # The first image of a class is always held out, and the last image never is.
        key = torch.where(rank == 0, -1.0, (rank + 0.5) / size)
        key[rank == size - 1] = torch.inf
        classes = int((rank == 0).sum())
        total = min(max(round(fraction * len(y)), classes), len(y) - classes)
        held[key.argsort(stable=True)[:total]] = True
        if fraction >= 1:
            held = rank < (size - 1).clamp(max=fraction)
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def _ranks(y: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each image within its class, in random order, and the class's size."""
    classes, places, sizes = y.unique(return_inverse=True, return_counts=True)
    if sizes.min() < 2:
        raise UserError(
            f'class {int(classes[sizes.argmin()])} has only one image, but a split requires two; '
            'add images, remove the class, or set separate data as evaluation.val',
            code='class-of-one',
        )
    by_class = order[places[order].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[by_class] = torch.cat([torch.arange(size) for size in sizes.tolist()])
    return rank, sizes[places]
