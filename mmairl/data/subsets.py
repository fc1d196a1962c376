"""Data sets that pick some images of another data set, or give them other labels."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmairl.data.datasets import ViewDataset
from mmairl.data.splits import HELD_OUT, Groups, groups_of, names_of, split_by_class
from mmairl.errors import UserError, printable
from mmairl.io import LARGEST_LIST, UnreadableFile, read_text
from mmairl.registry import DATASETS

ARTIFACT = 'n00021939'  # WordNet's node
BLOCK = 2**20  # images whose labels are sorted at once


class ImageSubset(ViewDataset):
    """Base: the images of `dataset` at `indices`, and with `renamed` another class for each of its classes."""

    indices: Tensor
    renamed: Tensor | None = None

    def __init__(self, dataset: dict) -> None:
        self.dataset = DATASETS.build(dataset)
        self.metric, self.views, self.classes = self.dataset.metric, self.dataset.views, self.dataset.classes

    @property
    def labels(self) -> Tensor:
        return self._own(self.dataset.labels[self.indices])

    def label(self, index: int) -> Tensor:
        return self._own(self.dataset.label(int(self.indices[index])))

    def _own(self, labels: Tensor) -> Tensor:
        return labels if self.renamed is None else self.renamed[labels]

    def _rename(self, classes: list[str], numbers: Sequence[int]) -> None:
        """Give each class of the data set one of these, by number; -1 stays -1, as the last."""
        self.classes, self.renamed = classes, torch.tensor([*numbers, -1])

    def _keep_classes(self, kept: list[int]) -> None:
        """Take the images of these classes, which are counted anew from 0 in ascending order."""
        self.indices = torch.isin(self.dataset.labels, torch.tensor(kept)).nonzero().squeeze(1)
        numbers = {label: number for number, label in enumerate(kept)}
        names = self.dataset.classes
        self._rename([names[label] for label in kept], [numbers.get(label, -1) for label in range(len(names))])

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.dataset.name(int(self.indices[index]))

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(int(self.indices[index]))


@DATASETS.register_module()
class Part(ImageSubset):
    """The images of a data set to fit on, or with `held` those that are held out; for one seed, both make up the whole.

    With `groups` (`data.splits.groups_of`) each group is on one side.
    """

    def __init__(
        self, dataset: dict, held: bool, seed: int = 0, fraction: float = HELD_OUT, groups: Groups | None = None
    ) -> None:
        super().__init__(dataset)
        own = groups and groups_of(names_of(self.dataset), groups)
        self.indices = split_by_class(self.dataset.labels, seed, fraction, own)[held].sort().values


@DATASETS.register_module()
class LongTailed(ImageSubset):
    """All images of class 0, and of each next class exponentially fewer, down to 1 / `imbalance` of that number.

    As Cao et al. 2019 make CIFAR-10-LT and -100-LT: n_i = int(n_0 (1 / imbalance)^(i / (C - 1))). The images are drawn
    class by class: for one seed, a smaller imbalance keeps the images of a larger one and more.
    """

    def __init__(self, dataset: dict, imbalance: float, seed: int = 0) -> None:
        super().__init__(dataset)
        labels, names = self.dataset.labels.numpy(), self.dataset.classes
        blocks = [slice(first, first + BLOCK) for first in range(0, len(labels), BLOCK)]
        sizes = sum(np.bincount(labels[block] + 1, minlength=len(names) + 1)[1:] for block in blocks)
        steps, generator = max(len(names) - 1, 1), torch.Generator().manual_seed(seed)
        wanted = [int(sizes[0] * (1 / imbalance) ** (label / steps)) for label in range(len(names))]
        starts = np.cumsum(sizes) - sizes  # of each class, where the images are sorted by class
        kept = np.zeros(sizes.sum(), bool)
        for label, (start, size, count) in enumerate(zip(starts, sizes.tolist(), wanted)):
            if not 0 < count <= size:
                raise UserError(
                    f'class {names[label]} has {size} images and LongTailed.imbalance={imbalance} wants {count} of it, from '
                    f'{wanted[0]} of class {names[0]}; set another imbalance or data set'
                )
            kept[start + torch.randperm(size, generator=generator)[:count].numpy()] = True
        indices, done = np.empty(sum(wanted), np.int32 if len(labels) < 2**31 else np.int64), 0
        for block in blocks:
            own = labels[block].astype(np.min_scalar_type(-len(names)))  # a short type is sorted ten times as fast
            order = np.argsort(own, kind='stable')[(own < 0).sum() :]  # those without a class come first
            there = np.bincount(own[order], minlength=len(names))
            places = np.arange(len(order)) + np.repeat(starts + there - np.cumsum(there), there)
            chosen = np.zeros(len(own), bool)
            chosen[order[kept[places]]] = True
            indices[done : done + chosen.sum()] = block.start + np.flatnonzero(chosen)
            starts, done = starts + there, done + chosen.sum()
        self.indices = torch.from_numpy(indices)


@DATASETS.register_module()
class ClassSubset(ImageSubset):
    """A uniform sample of `fraction` of the classes (App. B.2, Fig. 8); a smaller fraction is part of a larger one.

    Labels are counted anew from 0 in the order of the classes, so that a classifier has no empty outputs.
    """

    def __init__(self, dataset: dict, fraction: float, seed: int = 0) -> None:
        super().__init__(dataset)
        count = round(fraction * len(self.dataset.classes))
        if not 0 < fraction <= 1 or count == 0:
            raise UserError(
                f'ClassSubset.fraction={fraction} keeps {max(count, 0)} of {len(self.dataset.classes)} classes; '
                'set a fraction in (0, 1] that keeps one or more'
            )
        order = torch.randperm(len(self.dataset.classes), generator=torch.Generator().manual_seed(seed))
        self._keep_classes(sorted(order[:count].tolist()))


@DATASETS.register_module()
class NamedClasses(ImageSubset):
    """All images of the classes in `names`, a file with one name a line, counted from 0 in the data set's order."""

    def __init__(self, dataset: dict, names: str | Path) -> None:
        super().__init__(dataset)
        wanted = set(read_lines(names, 'classes'))
        if unknown := sorted(wanted - set(self.dataset.classes)):
            raise UserError(
                f'{len(unknown)} of the {len(wanted)} names in {names} are no class of {dataset["type"]}, first '
                f'{unknown[0]!r}; write them as the data set does, such as {self.dataset.classes[0]!r}'
            )
        self._keep_classes(sorted(self.dataset.classes.index(name) for name in wanted))


@DATASETS.register_module()
class ListedSubset(ImageSubset):
    """The images of an ImageFolder or of Shards in `list_file`: a file name a line, with or without the folders below the root.

    So SimCLR publishes 1 % and 10 % of ImageNet.

    >>> ListedSubset(dict(type='ImageFolder', root='imagenet/train'), '1percent.txt')  # doctest: +SKIP
    """

    def __init__(self, dataset: dict, list_file: str | Path) -> None:
        super().__init__(dataset)
        names = read_lines(list_file, 'images')
        if hasattr(self.dataset, 'contents'):  # shards name an image without its extension
            names = [os.path.splitext(name)[0] for name in names]
        self.indices = find(names, map(self.dataset.member, range(len(self.dataset))), list_file)


def find(names: list[str], files: Iterable[str], source: str | Path) -> Tensor:
    """The positions in `files` of the names, ascending; every name must stand for an image of its own."""
    matches: dict[str, list[int]] = {name: [] for name in names}
    for position, file in enumerate(files):
        for name in {file, file.rpartition('/')[2]}:
            if name in matches:
                matches[name].append(position)
    positions_of = [matches[name] for name in names]
    times = Counter(position for positions in positions_of for position in positions)
    wrong = [name for name, positions in zip(names, positions_of) if [times[at] for at in positions] != [1]]
    if wrong:
        raise UserError(
            f'{len(wrong)} of the {len(names)} names in {source} are absent, in several folders or doubled, first '
            f'{printable(wrong[0])}; correct the list, or set root of the data set to the images it was made for'
        )
    return torch.tensor(sorted(times))


def read_lines(path: str | Path, kind: str) -> list[str]:
    """The lines of a list, without blank ones and comments."""
    path = Path(path).resolve()
    try:
        text = read_text(path, LARGEST_LIST, 'utf-8-sig')
    except UnreadableFile as error:
        message = f'the list of {kind} at {path} cannot be read ({error}); give a text file in UTF-8'
        raise UserError(message, code=error.code) from error
    names = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith('#')]
    if not names:
        raise UserError(f'the list of {kind} at {path} is empty; write one name a line')
    return names


@DATASETS.register_module()
class Relabelled(ImageSubset):
    """A data set under coarser labels (App. B.2, Tab. 6): `groups` classes merged along `taxonomy`, or 'artifact'.

    The images stay the same. 'artifact' tells artifacts from all else.
    """

    def __init__(self, dataset: dict, taxonomy: str, groups: int | str) -> None:
        super().__init__(dataset)
        parents, names = read_tree(taxonomy), self.dataset.classes
        if groups == 'artifact':
            merged = ['artifact' if ARTIFACT in ancestors(name, parents) else 'not artifact' for name in names]
        else:
            merged = merge(names, parents, groups)
            if (reached := len(set(merged))) != groups:
                raise UserError(
                    f'{taxonomy} merged bottom-up has no level of {groups} groups, the nearest has {reached}; '
                    'give a taxonomy that has one, or ask for a number that it reaches'
                )
        classes = sorted(set(merged))
        self.indices = torch.arange(len(self.dataset))
        self._rename(classes, [classes.index(name) for name in merged])


def read_tree(path: str | Path) -> dict[str, str]:
    """Child -> parent from a text file of `parent child` lines, as in ImageNet's wordnet.is_a.txt.

    A child with several parents keeps the first one in the file, which makes the hierarchy a tree.
    """
    parents: dict[str, str] = {}
    for line in read_lines(path, "'parent child' pairs"):
        words = line.split()
        if len(words) != 2:
            raise UserError(f"a line of the taxonomy {path} is not 'parent child': {line[:60]!r}")
        parents.setdefault(words[1], words[0])
    return parents


def ancestors(name: str, parents: dict[str, str]) -> list[str]:
    """The name and all above it, bottom up."""
    line = [name]
    while line[-1] in parents:
        if parents[line[-1]] in line:
            raise UserError(f'the taxonomy runs in a circle at {parents[line[-1]]}; a tree has none')
        line.append(parents[line[-1]])
    return line


def merge(classes: Sequence[str], parents: dict[str, str], count: int) -> list[str]:
    """For each class, the tree node that stands for it when at most `count` groups are left.

    Bottom-up as in the paper: the deepest groups are lifted to their parent together, level by level, until there are no
    more than `count`. The paper does not print its own cuts; this is the rule stated there, and the number reached is
    the largest not above `count`.
    """
    lines = {name: ancestors(name, parents) for name in classes}
    for name, line in lines.items():
        if len(line) == 1:
            raise UserError(f'class {name} is not in the taxonomy; the folder names must be its node names')
    for level in range(max(map(len, lines.values())), 0, -1):
        # the node at most `level` - 1 steps below its root
        groups = [line[max(0, len(line) - level)] for line in lines.values()]
        if len(set(groups)) <= count:
            break
    return groups
