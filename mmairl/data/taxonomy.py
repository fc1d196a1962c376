"""Coarser labels: classes merged bottom-up along a tree such as WordNet's (App. B.2, Tab. 6)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.errors import UserError
from mmairl.registry import DATASETS

ARTIFACT = 'n00021939'


def read_tree(path: str | Path) -> dict[str, str]:
    """Child -> parent from a text file of `parent child` lines, as in ImageNet's wordnet.is_a.txt.

    A child with several parents keeps the first one in the file, which makes the hierarchy a tree.
    """
    if not Path(path).is_file():
        raise UserError(
            f"there is no taxonomy at {path}; give a file of 'parent child' lines, such as wordnet.is_a.txt"
        )
    parents: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        words = line.split()
        if len(words) not in (0, 2):
            raise UserError(f"line {number} of {path} is not 'parent child': {line[:60]!r}")
        if words:
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
    if count < len({line[-1] for line in lines.values()}):
        raise UserError(
            f'the taxonomy has {len({line[-1] for line in lines.values()})} roots and cannot give {count} groups'
        )
    level = max(map(len, lines.values()))
    while True:
        # the node at most `level` - 1 steps below its root
        groups = [line[max(0, len(line) - level)] for line in lines.values()]
        if len(set(groups)) <= count:
            return groups
        level -= 1


@DATASETS.register_module()
class Relabelled(Dataset):
    """A data set under coarser labels: `groups` classes merged along `taxonomy`, or 'artifact' for artifact or not.

    The images stay the same, and so does their number: only the labels are merged.
    """

    def __init__(self, dataset: dict, taxonomy: str, groups: int | str) -> None:
        self.dataset = DATASETS.build(dataset)
        self.metric = self.dataset.metric
        parents, names = read_tree(taxonomy), self.dataset.classes
        if groups == 'artifact':
            merged = ['artifact' if ARTIFACT in ancestors(name, parents) else 'not artifact' for name in names]
        elif isinstance(groups, int) and groups >= 1:
            merged = merge(names, parents, groups)
        else:
            raise UserError(f"Relabelled.groups={groups!r} is not known; give a number of groups or 'artifact'")
        self.classes = sorted(set(merged))
        self.lookup = torch.tensor([self.classes.index(name) for name in merged])
        self.labels = self.lookup[self.dataset.labels]

    @property
    def metainfo(self) -> dict[str, list[str]]:
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.dataset)

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(index)

    def __getitem__(self, index: int) -> dict:
        item = self.dataset[index]
        label = int(self.lookup[item['data_samples']['label']])
        return dict(inputs=item['inputs'], data_samples={**item['data_samples'], 'label': label})

    def unreadable_files(self) -> list[str]:
        return self.dataset.unreadable_files() if hasattr(self.dataset, 'unreadable_files') else []
