"""Merging of classes into groups, as in Huang et al. (ECCV 2022), App. B.2 and Tab. 6."""

from collections.abc import Sequence
from pathlib import Path

from mmairl.data.splits import Subset, read_lines
from mmairl.errors import UserError
from mmairl.registry import DATASETS

ARTIFACT = 'n00021939'  # the node of WordNet that is an ancestor of all artifacts


@DATASETS.register_module()
class Relabelled(Subset):
    """Merges the classes of a data set into groups, which become the labels.

    Set only `labels`, or set both `taxonomy` and `groups`.

    Args:
        dataset: Config of the data set.
        taxonomy: A text file that describes a tree. Each line has the form `parent child`.
        groups: Number of groups. Classes are merged into their ancestors in the taxonomy until this
            number is reached. The value 'artifact' yields two groups instead: artifacts and
            everything else.
        labels: A text file that states the group of each class. Each line has the form `CLASS GROUP`
            or `CLASS/IMAGE GROUP`, as in the training lists of Huh et al.
            (github.com/minyoungg/wmigftl, `label_sets/hierarchy`).

    Raises:
        UserError: If the classes cannot be merged into this number of groups, or if `labels` omits
            a class or puts the images of a class into several groups.
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
        merged = read_groups(labels, names) if labels else merge_classes(names, taxonomy, groups)
        self.classes = sorted(set(merged))
        self.rename([self.classes.index(name) for name in merged])


def read_groups(path: str | Path, classes: Sequence[str]) -> list[str]:
    """Return the group of each class, from lines `CLASS GROUP` or `CLASS/IMAGE GROUP`."""
    groups: dict[str, str] = {}
    for line in read_lines(path):
        image, group = line.split()
        name = image.partition('/')[0]
        if groups.setdefault(name, group) != group:
            raise UserError(
                f"{path}: a class is in two groups ('{name}'); name one group in all its lines",
                code='class-in-two-groups',
            )
    if missing := [name for name in classes if name not in groups]:
        raise UserError(
            f"{path}: {len(missing)} classes are missing (the first: '{missing[0]}'); add a line for "
            'each class',
            code='class-without-group',
        )
    return [groups[name] for name in classes]


def merge_classes(
    classes: Sequence[str], taxonomy: str | Path, groups: int | str | None
) -> list[str]:
    """Return the group of each class: a node of the taxonomy, 'artifact' or 'not artifact'."""
    parents: dict[str, str] = {}
    for line in read_lines(taxonomy):
        parent, child = line.split()
        # If a node has several parents, only the first one counts, so the taxonomy is a tree.
        parents.setdefault(child, parent)
    lines = [ancestors(name, parents) for name in classes]
    if groups == 'artifact':
        return ['artifact' if ARTIFACT in line else 'not artifact' for line in lines]
    # This is the paper's bottom-up rule. It merges the deepest groups into their parents, one level
    # at a time, until at most `groups` groups remain. The paper's own groups are not published.
    for level in range(max(map(len, lines)), 0, -1):
        # A class that is more than `level` - 1 steps below the root is replaced by its ancestor that
        # is `level` - 1 steps below the root.
        merged = [line[max(0, len(line) - level)] for line in lines]
        if len(set(merged)) <= groups:
            break
    if len(set(merged)) != groups:
        raise UserError(
            f'Relabelled.groups: merging the classes along {taxonomy} never yields {groups} groups '
            f'(merging stops at {len(set(merged))}); set another number, or another taxonomy',
            code='no-level-of-groups',
        )
    return merged


def ancestors(name: str, parents: dict[str, str]) -> list[str]:
    """Return a node, its parent, and so on up to the root."""
    line = [name]
    while (parent := parents.get(line[-1])) is not None:
        if parent in line:
            raise UserError(
                f"taxonomy: a node is its own ancestor ('{parent}'); remove one of its lines",
                code='cyclic-taxonomy',
            )
        line.append(parent)
    return line
