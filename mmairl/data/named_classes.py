"""The classes that a text file names, as ImageNet-100 is given."""

from pathlib import Path

import torch

from mmairl.data.subset import ClassSubset
from mmairl.errors import UserError
from mmairl.registry import DATASETS


@DATASETS.register_module()
class NamedClasses(ClassSubset):
    """All images of the classes in `names`, a file with one name a line, counted from 0 in the data set's order.

    >>> NamedClasses(dict(type='ImageFolder', root='data/imagenet/val'), 'data/imagenet/imagenet100.txt')
    """

    def __init__(self, dataset: dict, names: str | Path) -> None:
        self.dataset = DATASETS.build(dataset)
        wanted = read_names(names)
        unknown = [name for name in wanted if name not in set(self.dataset.classes)]
        if unknown:
            raise UserError(
                f'{len(unknown)} of the {len(wanted)} names in {names} are no class of {dataset["type"]}, first '
                f'{unknown[0]!r}; write them as the data set does, such as {self.dataset.classes[0]!r}.'
            )
        self._keep_classes(torch.tensor(sorted(self.dataset.classes.index(name) for name in wanted)))


def read_names(path: str | Path) -> list[str]:
    """The names in the file, each once."""
    if not Path(path).is_file():
        raise UserError(
            f'there is no list of classes at {Path(path).resolve()}; give a text file with one name a line.'
        )
    names = list(dict.fromkeys(line.strip() for line in Path(path).read_text().splitlines() if line.strip()))
    if not names:
        raise UserError(f'the list of classes at {Path(path).resolve()} is empty; write one name a line.')
    return names
