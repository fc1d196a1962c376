"""Data sets that select images of another data set, or change their labels."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mmairl.data.datasets import ViewDataset
from mmairl.data.splits import HELD_OUT, Groups, groups_of, image_names, split_by_class
from mmairl.errors import UserError
from mmairl.io import LARGEST_LIST, UnreadableFile, read_json, read_text
from mmairl.registry import DATASETS

ARTIFACT = 'n00021939'  # WordNet's node


class ImageSubset(ViewDataset):
    """Base: the images of `dataset` at `indices`, under other classes if `renamed` is set."""

    indices: Tensor
    # The new class of each class. The last entry, -1, is for the label -1.
    renamed: Tensor | None = None

    def __init__(self, dataset: dict) -> None:
        self.dataset = DATASETS.build(dataset)
        self.metric = self.dataset.metric
        self.views = self.dataset.views
        self.classes = self.dataset.classes

    @property
    def labels(self) -> Tensor:
        labels = self.dataset.labels[self.indices]
        return labels if self.renamed is None else self.renamed[labels]

    def label(self, index: int) -> Tensor:
        label = self.dataset.label(int(self.indices[index]))
        return label if self.renamed is None else self.renamed[label]

    def _select_classes(self, labels: list[int]) -> None:
        """Select the images of these classes, and number the classes from 0 in ascending order."""
        self.indices = torch.isin(self.dataset.labels, torch.tensor(labels)).nonzero().squeeze(1)
        self.renamed = torch.full((len(self.classes) + 1,), -1)
        self.renamed[labels] = torch.arange(len(labels))
        self.classes = [self.classes[label] for label in labels]

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.dataset.name(int(self.indices[index]))

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(int(self.indices[index]))


@DATASETS.register_module()
class Part(ImageSubset):
    """The images to fit on, or those held out. For one seed, both parts make up the whole data set.

    Args:
        dataset: Config of the data set.
        held: Whether to take the images that are held out.
        seed: Seed of the split.
        fraction: Fraction of each class to hold out.
        groups: Groups that stay on one side (`mmairl.data.splits.groups_of`).
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
        group_names = groups and groups_of(image_names(self.dataset), groups)
        parts = split_by_class(self.dataset.labels, seed, fraction, group_names)
        self.indices = parts[held].sort().values


@DATASETS.register_module()
class LongTailed(ImageSubset):
    """All images of class 0, and of each next class exponentially fewer, down to 1 / `imbalance` of that number.

    As Cao et al. 2019 make CIFAR-10-LT and -100-LT: n_i = int(n_0 (1 / imbalance)^(i / (C - 1))). The images are drawn
    class by class: for one seed, a smaller imbalance has the images of a larger one and more.

    Args:
        dataset: Config of the data set.
        imbalance: Ratio of the first class to the last.
        seed: Seed of the draw.

    Raises:
        UserError: If a class would have no image, or has too few.
    """

    def __init__(self, dataset: dict, imbalance: float, seed: int = 0) -> None:
        super().__init__(dataset)
        labels = self.dataset.labels
        largest = int((labels == 0).sum())
        steps = max(len(self.classes) - 1, 1)
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        for label, name in enumerate(self.classes):
            images = (labels == label).nonzero().flatten()
            count = int(largest * (1 / imbalance) ** (label / steps))
            if not 0 < count <= len(images):
                raise UserError(
                    f'LongTailed.imbalance={imbalance}: class {name} has {len(images)} images and {count} are needed, from '
                    f'{largest} of class {self.classes[0]}; set another imbalance or data set',
                    code='bad-imbalance',
                )
            drawn.append(images[torch.randperm(len(images), generator=generator)[:count]])
        self.indices = torch.cat(drawn).sort().values


@DATASETS.register_module()
class ClassSubset(ImageSubset):
    """A uniform sample of the classes (App. B.2, Fig. 8). A smaller fraction is part of a larger one.

    Classes are numbered from 0, so that a classifier has no empty outputs.

    Args:
        dataset: Config of the data set.
        fraction: Fraction of the classes.
        seed: Seed of the sample.

    Raises:
        UserError: If no class remains, or if the fraction is above 1.
    """

    def __init__(self, dataset: dict, fraction: float, seed: int = 0) -> None:
        super().__init__(dataset)
        total = len(self.dataset.classes)
        count = round(fraction * total)
        if not 0 < fraction <= 1 or count == 0:
            raise UserError(
                f'ClassSubset.fraction={fraction} keeps {max(count, 0)} of {total} classes; '
                'set a fraction in (0, 1] that keeps one or more',
                code='bad-fraction',
            )
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        self._select_classes(sorted(order[:count].tolist()))


@DATASETS.register_module()
class NamedClasses(ImageSubset):
    """All images of some classes, numbered from 0 in the data set's order.

    Args:
        dataset: Config of the data set.
        names: A file with one class name per line.

    Raises:
        UserError: If a name is no class of the data set.
    """

    def __init__(self, dataset: dict, names: str | Path) -> None:
        super().__init__(dataset)
        selected = set(read_lines(names, 'classes'))
        classes = self.dataset.classes
        unknown = sorted(selected - set(classes))
        if unknown:
            raise UserError(
                f'{len(unknown)} of the {len(selected)} names in {names} are no class of {dataset["type"]}, first '
                f'{unknown[0]!r}; write them as the data set does, such as {classes[0]!r}',
                code='unknown-class',
            )
        self._select_classes(sorted(classes.index(name) for name in selected))


@DATASETS.register_module()
class ListedSubset(ImageSubset):
    """The images of an ImageFolder or of Shards that a file lists, as SimCLR publishes 1 % and 10 % of ImageNet.

    Args:
        dataset: Config of the data set.
        list_file: A file name per line, with or without the folders below the root.

    Raises:
        UserError: If a name matches no image or several.

    Example:
        >>> ListedSubset(dict(type='ImageFolder', root='imagenet/train'), '1percent.txt')  # doctest: +SKIP
    """

    def __init__(self, dataset: dict, list_file: str | Path) -> None:
        super().__init__(dataset)
        names = read_lines(list_file, 'images')
        if hasattr(self.dataset, 'contents'):  # shards name an image without its extension
            names = [os.path.splitext(name)[0] for name in names]
        self.indices = match_names(
            names, map(self.dataset.member, range(len(self.dataset))), list_file
        )


def match_names(names: list[str], files: Iterable[str], source: str | Path) -> Tensor:
    """Return the ascending indices in `files` of the names. Every name must match one image of its own."""
    matches: dict[str, list[int]] = {name: [] for name in names}
    for index, file in enumerate(files):
        for name in {file, file.rpartition('/')[2]}:
            if name in matches:
                matches[name].append(index)
    uses = Counter(index for name in names for index in matches[name])
    wrong = [name for name in names if [uses[index] for index in matches[name]] != [1]]
    if wrong:
        raise UserError(
            f'{len(wrong)} of the {len(names)} names in {source} are absent, in several folders or doubled, first '
            f'{wrong[0]}; correct the list, or set root of the data set to the images it was made for',
            code='unmatched-names',
        )
    return torch.tensor(sorted(uses))


def read_lines(path: str | Path, kind: str) -> list[str]:
    """Return the lines of a list, without blank lines and comments."""
    path = Path(path).resolve()
    try:
        text = read_text(path, LARGEST_LIST, 'utf-8-sig')
    except UnreadableFile as error:
        message = (
            f'the list of {kind} at {path} cannot be read ({error}); give a text file in UTF-8'
        )
        raise UserError(message, code=error.code) from error
    lines = [line.strip() for line in text.splitlines()]
    names = [line for line in lines if line and not line.startswith('#')]
    if not names:
        raise UserError(
            f'the list of {kind} at {path} is empty; write one name per line', code='empty-list'
        )
    return names


@DATASETS.register_module()
class Relabelled(ImageSubset):
    """A data set under coarser labels (App. B.2, Tab. 6). The images stay the same.

    Args:
        dataset: Config of the data set.
        taxonomy: A file of `parent child` lines.
        groups: Number of groups that the classes are merged into along the taxonomy, or 'artifact' for the two classes
            of artifacts and all else.
        labels: In place of a taxonomy, a file of `CLASS GROUP` or `CLASS/IMAGE GROUP` lines, such as the training lists of
            Huh et al. (github.com/minyoungg/wmigftl, `label_sets/hierarchy`).

    Raises:
        UserError: If the taxonomy has no level of so many groups, or if the labels lack a class or divide one.
    """

    def __init__(
        self,
        dataset: dict,
        taxonomy: str | None = None,
        groups: int | str | None = None,
        labels: str | None = None,
    ) -> None:
        super().__init__(dataset)
        names = self.dataset.classes
        if (labels is None) == (taxonomy is None):
            raise UserError(
                'Relabelled: set either labels, or taxonomy and groups', code='labels-or-taxonomy'
            )
        merged = read_groups(labels, names) if labels else merge_classes(names, taxonomy, groups)
        self.classes = sorted(set(merged))
        self.indices = torch.arange(len(self.dataset))
        self.renamed = torch.tensor([*map(self.classes.index, merged), -1])


def read_pairs(path: str | Path, kind: str, code: str) -> list[list[str]]:
    """Return the two words of each line."""
    pairs = list(map(str.split, read_lines(path, f"'{kind}' pairs")))
    wrong = next((words for words in pairs if len(words) != 2), None)
    if wrong is not None:
        raise UserError(
            f"{path}: expected '{kind}' ({' '.join(wrong)[:60]!r}); correct the line", code=code
        )
    return pairs


def read_groups(path: str | Path, classes: Sequence[str]) -> list[str]:
    """Return the group of each class from a file of `CLASS GROUP` or `CLASS/IMAGE GROUP` lines."""
    groups: dict[str, str] = {}
    for image, group in read_pairs(path, 'class group', 'bad-labels'):
        name = image.partition('/')[0]
        if groups.setdefault(name, group) != group:
            raise UserError(
                f"labels {path}: a class is in two groups ('{name}'); correct its lines",
                code='class-in-two-groups',
            )
    missing = [name for name in classes if name not in groups]
    if missing:
        raise UserError(
            f"labels {path}: a class is missing ('{missing[0]}'); add a line for each of the {len(missing)} missing ones",
            code='class-without-group',
        )
    return [groups[name] for name in classes]


def merge_classes(
    classes: Sequence[str], taxonomy: str | Path, groups: int | str | None
) -> list[str]:
    """Return the group of each class: whether it is an artifact, or one of `groups` nodes of the taxonomy."""
    parents: dict[str, str] = {}
    for parent, child in read_pairs(taxonomy, 'parent child', 'bad-taxonomy'):
        # The first of several parents, which makes the hierarchy a tree.
        parents.setdefault(child, parent)
    lines = [ancestors(name, parents) for name in classes]
    if groups == 'artifact':
        return ['artifact' if ARTIFACT in line else 'not artifact' for line in lines]
    alone = next((name for name, line in zip(classes, lines) if len(line) == 1), None)
    if alone is not None:
        raise UserError(
            f"taxonomy: a class is missing ('{alone}'); the folder names must be its node names",
            code='class-not-in-tree',
        )
    # Bottom-up as in the paper: the deepest groups are lifted to their parent together, level by level, until at most
    # `groups` remain. The paper does not print its own cuts; this is the rule stated there.
    for level in range(max(map(len, lines)), 0, -1):
        # The node at most `level` - 1 steps below its root.
        merged = [line[max(0, len(line) - level)] for line in lines]
        reached = len(set(merged))
        if reached <= groups:
            break
    if reached != groups:
        raise UserError(
            f'Relabelled.groups: merging {taxonomy} bottom-up never gives {groups} groups (the nearest number is '
            f'{reached}); set another number of groups, or another taxonomy',
            code='no-level-of-groups',
        )
    return merged


def ancestors(name: str, parents: dict[str, str]) -> list[str]:
    """Return the name and all above it, bottom up."""
    line = [name]
    while (parent := parents.get(line[-1])) is not None:
        if parent in line:
            raise UserError(
                f"the taxonomy has a cycle ('{parent}'); remove it", code='cyclic-taxonomy'
            )
        line.append(parent)
    return line


@DATASETS.register_module()
class ReaL(ImageSubset):
    """ImageNet's validation images with reassessed labels, of which an image can have several (Beyer et al. 2020).

    A prediction is right if it is one of the labels. Images without a label are left out.

    Args:
        dataset: Config of the validation images, in files ..._00000001.JPEG and so on.
        file: The authors' real.json: a list of labels for each image.
    """

    def __init__(self, dataset: dict, file: str | Path) -> None:
        super().__init__(dataset)
        self.metric = 'any label'
        answers = read_json(file, list[list[int]])
        stems = [os.path.splitext(name)[0] for name in image_names(self.dataset)]
        answers = [answers[int(stem.rpartition('_')[2]) - 1] for stem in stems]
        self.indices = torch.tensor([row for row, labels in enumerate(answers) if labels])
        self.matrix = torch.zeros(len(self.indices), len(self.classes), dtype=torch.int64)
        for row, index in enumerate(self.indices.tolist()):
            self.matrix[row, answers[index]] = 1

    @property
    def labels(self) -> Tensor:
        return self.matrix

    def label(self, index: int) -> Tensor:
        return self.matrix[index]
