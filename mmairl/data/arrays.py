"""CIFAR and STL-10: small images that come as arrays and stay as bytes until they are shown."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from mmairl.data.splits import HeldOut, Published
from mmairl.data.views import ViewDataset
from mmairl.registry import DATASETS

STL_SIZE = 96


@DATASETS.register_module()
class CIFAR10(Published, ViewDataset):
    """10 classes of 32 x 32 pixels: 45 000 training, 5 000 validation and 10 000 test images.

    'val' is drawn from the training images by `seed`, because the published split is not public. The files are pickles,
    and torchvision opens them only when their md5 is the published one.
    """

    published: type[datasets.CIFAR10] = datasets.CIFAR10
    held_out = HeldOut(5_000, of=50_000)
    layout = 'cifar-10-batches-py/ with the batches of the Python version, unchanged by their md5,'
    source = 'the CIFAR page of the University of Toronto'

    def __init__(
        self, root: str | Path, split: str = 'train', views: Sequence[Sequence[dict]] | None = None, seed: int = 0
    ) -> None:
        super().__init__(views)
        self.require_split(split)
        with self.reading(root):
            found = self.published(root, train=split != 'test', download=False)
        rows = self.held_out.rows(split, len(found.targets), seed)
        self.classes = list(found.classes)
        self.labels = torch.tensor(found.targets, dtype=torch.int64)[rows]
        self.images = torch.from_numpy(found.data)[rows].permute(0, 3, 1, 2).contiguous()

    def raw(self, index: int) -> Tensor:
        return self.images[index].clone()


@DATASETS.register_module()
class CIFAR100(CIFAR10):
    """100 classes of 32 x 32 pixels: 44 933 training, 5 067 validation and 10 000 test images, drawn as CIFAR10's."""

    published = datasets.CIFAR100
    held_out = HeldOut(5_067, of=50_000)
    layout = 'cifar-100-python/ with train, test and meta of the Python version, unchanged by their md5,'


@DATASETS.register_module()
class STL10(Published, ViewDataset):
    """10 classes of 96 x 96 pixels: 5 000 training, 8 000 test and 100 000 unlabeled images.

    The bytes stay on the disk and are shared by all processes; torchvision's reader would put 2.8 GB into each.
    """

    splits = ('train', 'test', 'unlabeled')
    layout = 'stl10_binary/ with class_names.txt, {train,test,unlabeled}_X.bin and {train,test}_y.bin'
    source = 'the STL-10 page of Stanford (Adam Coates)'

    def __init__(self, root: str | Path, split: str = 'train', views: Sequence[Sequence[dict]] | None = None) -> None:
        super().__init__(views)
        self.require_split(split)
        folder = Path(root) / 'stl10_binary'
        with self.reading(root):
            self.classes = (folder / 'class_names.txt').read_text().split()
            self.images = np.memmap(folder / f'{split}_X.bin', np.uint8, 'r').reshape(-1, 3, STL_SIZE, STL_SIZE)
            self.labels = torch.full((len(self.images),), -1)
            if split != 'unlabeled':
                # Counted from 1 on the disk. Assigned in place, so that two files of unequal length are an error.
                self.labels[:] = torch.from_numpy(np.fromfile(folder / f'{split}_y.bin', np.uint8).astype(np.int64) - 1)

    def raw(self, index: int) -> Tensor:
        # On the disk the columns of an image follow one another, not its rows.
        return torch.from_numpy(self.images[index].transpose(0, 2, 1).copy())
