"""The images that a text file names, as SimCLR publishes 1 % and 10 % of ImageNet."""

import os
from collections import defaultdict
from collections.abc import Iterable
from logging import WARNING
from pathlib import Path

import torch
from mmengine.logging import print_log
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.errors import UserError
from mmairl.registry import DATASETS

SHOWN = 3  # names in an error, of each kind


class ImageSubset(Dataset):
    """Base of the data sets that keep some of the images of another, `dataset`, and all of its classes."""

    dataset: Dataset

    def _keep(self, indices: Tensor) -> None:
        """Be the images at these positions."""
        self.indices, self.labels = indices, self.dataset.labels[indices]
        self.classes, self.metric = self.dataset.classes, self.dataset.metric

    @property
    def metainfo(self) -> dict[str, list[str]]:
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.indices)

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(int(self.indices[index]))

    def __getitem__(self, index: int) -> dict:
        for step in range(len(self)):
            here = (index + step) % len(self)
            item = self.dataset[int(self.indices[here])]
            # An unreadable file gives way to its neighbour there, whose label is not ours to use.
            if item['data_samples']['index'] == self.indices[here]:
                return dict(inputs=item['inputs'], data_samples={**item['data_samples'], 'index': here})
        raise UserError(f'none of the {len(self)} images that {type(self).__name__} keeps can be read; mend the files.')

    def unreadable_files(self) -> list[str]:
        return self.dataset.unreadable_files() if hasattr(self.dataset, 'unreadable_files') else []


@DATASETS.register_module()
class ListedSubset(ImageSubset):
    """The images of an ImageFolder in `list_file`: a file name a line, with or without the folders below the root.

    >>> ListedSubset(dict(type='ImageFolder', root='data/imagenet/train'), 'data/imagenet/1percent.txt')
    """

    def __init__(self, dataset: dict, list_file: str | Path) -> None:
        self.dataset = DATASETS.build(dataset)
        if not hasattr(self.dataset, 'files'):
            raise UserError(
                f'ListedSubset picks files by name and {dataset["type"]} has none; give it an ImageFolder as its dataset.'
            )
        self._keep(find(read_list(list_file), self.dataset.files.tolist(), list_file))
        counts = torch.bincount(self.labels, minlength=len(self.classes))
        empty = [name for name, count in zip(self.classes, counts.tolist()) if count == 0]
        if empty:
            print_log(
                f'{list_file} names no image of {len(empty)} of the {len(self.classes)} classes: {first(empty)}',
                logger='current',
                level=WARNING,
            )


def read_list(path: str | Path) -> list[str]:
    """The lines of the file, without blank ones and comments."""
    if not Path(path).is_file():
        raise UserError(f'there is no list of images at {Path(path).resolve()}; give a text file with one name a line.')
    try:
        text = Path(path).read_text('utf-8-sig')
    except UnicodeDecodeError:
        text = '\0'
    if '\0' in text:
        raise UserError(f'{Path(path).resolve()} is not a text file in UTF-8; give one with a file name a line.')
    lines = (line.strip() for line in text.splitlines())
    names = [line for line in lines if line and not line.startswith('#')]
    if not names:
        raise UserError(f'the list of images at {Path(path).resolve()} is empty; write one file name a line.')
    return names


def find(names: list[str], files: Iterable[bytes], source: str | Path) -> Tensor:
    """The positions in `files` that the names stand for, ascending; every name must stand for an image of its own."""
    matches: dict[bytes, list[int]] = {os.fsencode(name): [] for name in names}
    for position, file in enumerate(files):
        for name in {file, file.rpartition(b'/')[2]}:
            if name in matches:
                matches[name].append(position)
    found = {name: matches[os.fsencode(name)] for name in names}
    owners = defaultdict(list)
    for name in names:
        if len(found[name]) == 1:
            owners[found[name][0]].append(name)
    wrong = {
        'absent': [name for name, at in found.items() if not at],
        'doubled': [same[0] for same in owners.values() if len(same) > 1],
        'in several folders': [name for name, at in found.items() if len(at) > 1],
    }
    if any(wrong.values()):
        kinds = ', '.join(f'{len(some)} {kind} ({first(some)})' for kind, some in wrong.items() if some)
        raise UserError(
            f'{sum(map(len, wrong.values()))} of the {len(names)} names in {source} do not stand for one image each: '
            f'{kinds}; correct the list, or set root of the data set to the images it was made for.'
        )
    return torch.tensor(sorted(owners))


def first(names: list[str]) -> str:
    return ', '.join(names[:SHOWN]) + (', ...' if len(names) > SHOWN else '')
