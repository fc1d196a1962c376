"""A user's own images in folders, with or without classes, and what happens when some cannot be read."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmairl.data.decode import MAX_PIXELS, decode
from mmairl.data.index import indexed
from mmairl.data.reading import Reason, Unreadable
from mmairl.data.views import ViewDataset
from mmairl.errors import UserError
from mmairl.registry import DATASETS

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.gif', '.tif', '.tiff', '.ppm', '.pgm')
ALWAYS_ALLOWED = 10  # unreadable files, however small the data set


class FileDataset(ViewDataset):
    """Images read from files, where an unreadable one is replaced by the next readable one and remembered.

    `unreadable` is one byte per image in shared memory, 0 or the Reason, so that what a worker process meets is known
    to the process that owns the data set. `max_unreadable` is the fraction of the files above which the data are taken
    to be broken; ten files are always forgiven, unless it is 0. An image of more than `max_pixels` is not decoded.
    """

    def __init__(
        self,
        root: str | Path,
        files: list[str],
        labels: list[int] | list[list[int]],
        views: Sequence[Sequence[dict]] | None,
        max_unreadable: float,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(views)
        self.root, self.max_pixels = Path(root), max_pixels
        # One buffer of bytes, not a list: workers that touch a million str objects would each copy their pages.
        self.files = np.array([os.fsencode(file) for file in files])
        self.labels = torch.tensor(labels, dtype=torch.int64)
        allowed = max(ALWAYS_ALLOWED, int(max_unreadable * len(files))) if max_unreadable else 0
        self.allowed = min(allowed, len(files) - 1)
        self.unreadable = torch.zeros(len(files), dtype=torch.uint8).share_memory_()

    def path(self, index: int) -> Path:
        return self.root / os.fsdecode(self.files[index])

    def raw(self, index: int) -> Tensor:
        return self.load(index)[0]

    def load(self, index: int) -> tuple[Tensor, int]:
        for step in range(len(self)):
            at = (index + step) % len(self)
            if self.unreadable[at]:
                continue
            try:
                return decode(self.path(at), self.root, self.max_pixels), at
            except Unreadable as fault:
                self.unreadable[at] = fault.reason
                self._refuse_too_many()
        raise AssertionError('the limit is below the number of files, so one of them was readable')

    def _refuse_too_many(self) -> None:
        count = int(self.unreadable.count_nonzero())
        if count > self.allowed:
            first = [f'{file} ({reason})' for file, reason in list(self.unreadable_reasons().items())[:3]]
            raise UserError(
                f'{count} of the {len(self)} images in {self.root} cannot be read, more than the {self.allowed} '
                f'that are allowed, first {", ".join(first)}; mend or remove them, or raise max_unreadable of the '
                'data set.'
            )

    def unreadable_files(self) -> list[str]:
        """The files met so far, by any worker, that could not be read."""
        return list(self.unreadable_reasons())

    def unreadable_reasons(self) -> dict[str, str]:
        """Why each of these files could not be read: 'is empty'."""
        met = self.unreadable.nonzero().squeeze(1).tolist()
        return {str(self.path(index)): Reason(int(self.unreadable[index])).phrase for index in met}


@DATASETS.register_module()
class ImageFolder(FileDataset):
    """Images in `root/class/.../name.jpg`; the classes are the folder names in sorted order.

    >>> ImageFolder('data/imagenet/val', views=[[dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]])
    """

    def __init__(
        self,
        root: str | Path,
        views: Sequence[Sequence[dict]] | None = None,
        max_unreadable: float = 0.01,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        require_folder(root, 'one folder per class with its images inside')
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != '.')
        labels = {name: label for label, name in enumerate(self.classes)}
        found = [(file, labels[file.split(os.sep)[0]]) for file in indexed(root, EXTENSIONS) if os.sep in file]
        if not found:
            raise UserError(
                f'{Path(root).resolve()} holds no image in a class folder; ImageFolder wants {root}/CLASS/NAME.jpg (or '
                f'{extensions()}), and images without classes go with type=UnlabelledFolder.'
            )
        super().__init__(root, *map(list, zip(*found)), views, max_unreadable, max_pixels)


@DATASETS.register_module()
class UnlabelledFolder(FileDataset):
    """Every image below `root`, at any depth, without labels: all that pre-training needs."""

    def __init__(
        self,
        root: str | Path,
        views: Sequence[Sequence[dict]] | None = None,
        max_unreadable: float = 0.01,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        require_folder(root, 'images at any depth')
        files = indexed(root, EXTENSIONS)
        if not files:
            raise UserError(
                f'{Path(root).resolve()} holds no image; put files ending in {extensions()} there or below, or '
                'give the folder that has them as the root of the data set.'
            )
        self.classes = []
        super().__init__(root, files, [-1] * len(files), views, max_unreadable, max_pixels)


def require_folder(root: str | Path, layout: str) -> None:
    if not Path(root).is_dir():
        raise UserError(
            f'The image folder {Path(root).resolve()} does not exist; give one that holds {layout}, by '
            '--cfg-options train_dataloader.dataset.root=DIR, or evaluation.train.root=DIR evaluation.test.root=DIR'
        )


def extensions() -> str:
    return ', '.join(EXTENSIONS)


def image_files(root: str | Path, below: str = '') -> Iterator[str]:
    """The image files below root/below, as paths relative to root, in an order that does not depend on the disk."""
    for folder, folders, names in os.walk(os.path.join(root, below), followlinks=True):
        folders[:] = sorted(name for name in folders if name[0] != '.')
        for name in sorted(names):
            if name.lower().endswith(EXTENSIONS) and name[0] != '.':
                yield os.path.relpath(os.path.join(folder, name), root)
