"""Data sets that select images of another data set or change their labels.

The paper that the docstrings refer to is Huang et al. (ECCV 2022).
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mmairl.data.datasets import ViewDataset, Views
from mmairl.data.shards.tar_files import member_key
from mmairl.data.splits import HELD_OUT, Groups, groups_of, image_names, split_by_class
from mmairl.errors import UserError
from mmairl.io import LARGEST_LIST, UnreadableFile, read_json, read_text
from mmairl.registry import DATASETS

ARTIFACT = 'n00021939'  # the node of WordNet that is an ancestor of all artifacts


class ImageSubset(ViewDataset):
    """Base class of data sets that contain the images of `dataset` at `indices`, with new labels if `renamed` is set."""

    indices: Tensor
    # A table that maps labels to new labels. Label -1 (unlabeled) indexes the last entry, which is -1 as well.
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
        """Select the images of these classes. The classes get new indices from 0, in the order of `labels`."""
        self.indices = torch.isin(self.dataset.labels, torch.tensor(labels)).nonzero().squeeze(1)
        self.renamed = torch.full((len(self.classes) + 1,), -1)
        self.renamed[labels] = torch.arange(len(labels))
        self.classes = [self.classes[label] for label in labels]

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.dataset.name(int(self.indices[index]))

    def member(self, index: int) -> str:
        return self.dataset.member(int(self.indices[index]))

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(int(self.indices[index]))


class ConcatImages(ViewDataset):
    """The images of several unlabeled data sets, one after the other, with the same views."""

    def __init__(self, parts: Sequence[ViewDataset], views: Views | None) -> None:
        super().__init__(views, parts[0].channels if parts[0].as_stored else None)
        self.places = [(part, index) for part in parts for index in range(len(part))]
        self.depth = parts[0].depth
        self.labels = torch.full((len(self.places),), -1)
        self.classes = []

    def raw(self, index: int) -> Tensor:
        part, inner = self.places[index]
        return part.raw(inner)

    def name(self, index: int) -> str:
        part, inner = self.places[index]
        return part.name(inner)


@DATASETS.register_module()
class Part(ImageSubset):
    """Selects one side of a random split: the images to fit on, or the held-out images.

    Args:
        dataset: Config of the data set.
        held: Whether to select the held-out images.
        seed: Seed of the split. Use the same seed for both sides.
        fraction: Fraction of each class to hold out.
        groups: How to group images (see `mmairl.data.splits.groups_of`). All images of a group are on the same side.
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
    """Selects images so that the sizes of the classes decrease exponentially. Class 0 keeps all images.

    As in CIFAR-10-LT and CIFAR-100-LT (Cao et al. 2019), class i of C has n_i = int(n_0 (1 / imbalance)^(i / (C - 1)))
    images. With the same seed, the images for a larger imbalance are also among the images for a smaller imbalance.

    Args:
        dataset: Config of the data set.
        imbalance: The size of the first class, divided by the size of the last class.
        seed: Seed of the selection.

    Raises:
        UserError: If a class has fewer images than n_i, or if n_i is 0.
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
                fault = f'no image of class {name} would be selected; set a smaller imbalance'
                if count:
                    fault = f'requires {count} images of class {name}, which has only {len(images)}; set a larger imbalance'
                raise UserError(
                    f'LongTailed.imbalance={imbalance}: {fault}, or use another data set',
                    code='bad-imbalance',
                )
            drawn.append(images[torch.randperm(len(images), generator=generator)[:count]])
        self.indices = torch.cat(drawn).sort().values


@DATASETS.register_module()
class ClassSubset(ImageSubset):
    """Selects the images of a random fraction of the classes, as in the paper's App. B.2 and Fig. 8.

    With the same seed, the classes of a smaller fraction are also among the classes of a larger fraction. The selected
    classes get new indices from 0, so that a classifier has no unused outputs.

    Args:
        dataset: Config of the data set.
        fraction: Fraction of the classes.
        seed: Seed of the selection.

    Raises:
        UserError: If the fraction selects no class or is above 1.
    """

    def __init__(self, dataset: dict, fraction: float, seed: int = 0) -> None:
        super().__init__(dataset)
        total = len(self.dataset.classes)
        count = round(fraction * total)
        if not 0 < fraction <= 1 or count == 0:
            raise UserError(
                f"ClassSubset.fraction: must be in (0, 1] and select at least one of {total} classes ('{fraction}'); set "
                'another fraction',
                code='bad-fraction',
            )
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        self._select_classes(sorted(order[:count].tolist()))


@DATASETS.register_module()
class NamedClasses(ImageSubset):
    """Selects all images of the classes in a list. The classes get new indices from 0, in the order of the data set.

    Args:
        dataset: Config of the data set.
        names: A file with one class name per line.

    Raises:
        UserError: If a name is not a class of the data set.
    """

    def __init__(self, dataset: dict, names: str | Path) -> None:
        super().__init__(dataset)
        selected = set(read_lines(names, 'classes'))
        classes = self.dataset.classes
        unknown = sorted(selected - set(classes))
        if unknown:
            raise UserError(
                f'{names}: {len(unknown)} of {len(selected)} names are not classes of {dataset["type"]} (the first: '
                f'{unknown[0]!r}); write class names as the data set does, such as {classes[0]!r}',
                code='unknown-class',
            )
        self._select_classes(sorted(classes.index(name) for name in selected))


@DATASETS.register_module()
class ListedSubset(ImageSubset):
    """Selects the images in a list, such as SimCLR's lists of 1 % and 10 % of ImageNet.

    Args:
        dataset: Config of an ImageFolder or of Shards.
        list_file: A text file with one image per line. A line is a file name, or a path relative to the root.

    Raises:
        UserError: If a line does not match exactly one image, or if two lines match the same image.

    Example:
        >>> ListedSubset(dict(type='ImageFolder', root='imagenet/train'), '1percent.txt')  # doctest: +SKIP
    """

    def __init__(self, dataset: dict, list_file: str | Path) -> None:
        super().__init__(dataset)
        names = read_lines(list_file, 'images')
        if hasattr(self.dataset, 'contents'):
            names = [member_key(name, set()) for name in names]
        self.indices = match_names(
            names, map(self.dataset.member, range(len(self.dataset))), list_file
        )


def match_names(names: list[str], files: Iterable[str], source: str | Path) -> Tensor:
    """Return the sorted indices of the files that have these names.

    Raise if a name does not match exactly one file, or if two names match the same file.
    """
    matches: dict[str, list[int]] = {name: [] for name in names}
    for index, file in enumerate(files):
        for name in {file, file.rpartition('/')[2]}:
            if name in matches:
                matches[name].append(index)
    uses = Counter(index for name in names for index in matches[name])
    wrong = [name for name in names if [uses[index] for index in matches[name]] != [1]]
    if wrong:
        raise UserError(
            f'{source}: {len(wrong)} of {len(names)} names match no image, match several images or are repeated (the first: '
            f'{wrong[0]}); correct the list, or set root of the data set to the folder of the listed images',
            code='unmatched-names',
        )
    return torch.tensor(sorted(uses))


def read_lines(path: str | Path, kind: str) -> list[str]:
    """Return the lines of a list file, without blank lines and comments."""
    path = Path(path).resolve()
    try:
        text = read_text(path, LARGEST_LIST, 'utf-8-sig')
    except UnreadableFile as error:
        message = f'{path}: the list of {kind} cannot be read ({error}); save it as text in UTF-8'
        raise UserError(message, code=error.code) from error
    lines = [line.strip() for line in text.splitlines()]
    names = [line for line in lines if line and not line.startswith('#')]
    if not names:
        raise UserError(
            f'{path}: the list of {kind} is empty; write one name per line', code='empty-list'
        )
    return names


@DATASETS.register_module()
class Relabelled(ImageSubset):
    """Merges the classes of a data set into groups, which become the labels, as in the paper's App. B.2 and Tab. 6.

    Set only `labels`, or set both `taxonomy` and `groups`.

    Args:
        dataset: Config of the data set.
        taxonomy: A text file that describes a tree. Each line has the form `parent child`.
        groups: Number of groups. Classes are merged into their ancestors in the taxonomy until this number is reached. The
            value 'artifact' yields two groups instead: artifacts and everything else.
        labels: A text file that states the group of each class. Each line has the form `CLASS GROUP` or `CLASS/IMAGE GROUP`,
            as in the training lists of Huh et al. (github.com/minyoungg/wmigftl, `label_sets/hierarchy`).

    Raises:
        UserError: If the classes cannot be merged into this number of groups, or if `labels` omits a class or puts the
            images of a class into several groups.
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
        is_set = tuple(value is not None for value in (labels, taxonomy, groups))
        if is_set not in ((True, False, False), (False, True, True)):
            raise UserError(
                'Relabelled: requires either labels, or taxonomy and groups; set only labels, or set both taxonomy and groups',
                code='labels-or-taxonomy',
            )
        merged = read_groups(labels, names) if labels else merge_classes(names, taxonomy, groups)
        self.classes = sorted(set(merged))
        self.indices = torch.arange(len(self.dataset))
        self.renamed = torch.tensor([*map(self.classes.index, merged), -1])


def read_pairs(path: str | Path, kind: str, code: str) -> list[list[str]]:
    """Read a text file with two words per line. Return the two words of each line."""
    pairs = list(map(str.split, read_lines(path, f"'{kind}' pairs")))
    wrong = next((words for words in pairs if len(words) != 2), None)
    if wrong is not None:
        raise UserError(
            f"{path}: expected '{kind}' in each line ({' '.join(wrong)[:60]!r}); correct the line",
            code=code,
        )
    return pairs


def read_groups(path: str | Path, classes: Sequence[str]) -> list[str]:
    """Read a text file with lines of the form `CLASS GROUP` or `CLASS/IMAGE GROUP`. Return the group of each class."""
    groups: dict[str, str] = {}
    for image, group in read_pairs(path, 'class group', 'bad-labels'):
        name = image.partition('/')[0]
        if groups.setdefault(name, group) != group:
            raise UserError(
                f"{path}: a class is in two groups ('{name}'); name the same group in all lines of this class",
                code='class-in-two-groups',
            )
    missing = [name for name in classes if name not in groups]
    if missing:
        raise UserError(
            f"{path}: {len(missing)} classes are missing (the first: '{missing[0]}'); add a line for each class",
            code='class-without-group',
        )
    return [groups[name] for name in classes]


def merge_classes(
    classes: Sequence[str], taxonomy: str | Path, groups: int | str | None
) -> list[str]:
    """Return the group of each class: a node of the taxonomy or, if `groups` is 'artifact', 'artifact' or 'not artifact'."""
    parents: dict[str, str] = {}
    for parent, child in read_pairs(taxonomy, 'parent child', 'bad-taxonomy'):
        # If a node has several parents, only the first one counts, so that the taxonomy is a tree.
        parents.setdefault(child, parent)
    lines = [ancestors(name, parents) for name in classes]
    if groups == 'artifact':
        return ['artifact' if ARTIFACT in line else 'not artifact' for line in lines]
    alone = next((name for name, line in zip(classes, lines) if len(line) == 1), None)
    if alone is not None:
        raise UserError(
            f"{taxonomy}: no node for a class of the data set ('{alone}'); name class folders like nodes of the taxonomy",
            code='class-not-in-tree',
        )
    # This is the paper's bottom-up rule. It merges the deepest groups into their parents, one level at a time, until at most
    # `groups` groups remain. The paper's own groups are not published, so the groups of this rule may differ from them.
    for level in range(max(map(len, lines)), 0, -1):
        # A class that is more than `level` - 1 steps below the root is replaced by its ancestor that is `level` - 1 steps below
        # the root.
        merged = [line[max(0, len(line) - level)] for line in lines]
        reached = len(set(merged))
        if reached <= groups:
            break
    if reached != groups:
        raise UserError(
            f'Relabelled.groups: merging the classes along {taxonomy} never yields {groups} groups (merging stops at '
            f'{reached}); set another number of groups, or another taxonomy',
            code='no-level-of-groups',
        )
    return merged


def ancestors(name: str, parents: dict[str, str]) -> list[str]:
    """Return the name of a node, followed by the names of its ancestors, from its parent to the root."""
    line = [name]
    while (parent := parents.get(line[-1])) is not None:
        if parent in line:
            raise UserError(
                f"taxonomy: a node is its own ancestor ('{parent}'); remove one of the lines that form this cycle",
                code='cyclic-taxonomy',
            )
        line.append(parent)
    return line


@DATASETS.register_module()
class ReaL(ImageSubset):
    """ImageNet's validation images with the reassessed labels of Beyer et al. (2020). An image can have several labels.

    A prediction is correct if it is one of the labels. Images without a label are left out.

    Args:
        dataset: Config of the validation images. Their file names end in the number of the image (..._00000001.JPEG).
        file: The authors' real.json, which lists the labels of each image.
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
