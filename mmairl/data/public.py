"""Data sets that mmpretrain, torchvision or the library `datasets` loads."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmairl.data.datasets import FileDataset, ViewDataset
from mmairl.data.decode import read_file
from mmairl.errors import explained
from mmairl.registry import DATASETS


@DATASETS.register_module()
class PublicImages(FileDataset):
    """The images and labels of one of mmpretrain's data sets of image files.

    Multi-label sets, such as VOC, have labels of the shape (images, classes). Label -1 means that
    all objects of the class in the image are marked as difficult, which the official score ignores.

    Args:
        source: Config of mmpretrain's data set without a pipeline, such as
            ``dict(type='Food101', data_root='data/food101')``. For a list of files and labels, use
            ``dict(type='CustomDataset', data_root=..., ann_file=...)``.
        split: The split of the data set, such as 'train', 'val' or 'test', or several that are
            joined, such as 'train+val'. Default: the data set has no splits.
        metric: The score that is usually reported, such as 'top-1', 'mean per class' or
            '11-point mAP'.
        options: `views`, `channels` and `max_unreadable`, as in `ViewDataset`.

    Raises:
        UserError: If mmpretrain cannot read the data set.

    Example:
        >>> PublicImages(dict(type='DTD', data_root='data/dtd'), split='test')  # doctest: +SKIP
    """

    def __init__(
        self,
        source: Mapping[str, Any],
        split: str | None = None,
        metric: str = 'top-1',
        **options: Any,
    ) -> None:
        kind = str(source['type'])
        root = source.get('data_root') or '.'
        splits = [dict(split=part) for part in split.split('+')] if split else [{}]
        remedy = (
            'put its files there in the layout that the documentation of mmpretrain states for this '
            'data set, or set source.data_root'
        )
        fault = f'{kind}: cannot be read from {Path(root).resolve()}'
        with explained(fault, remedy, code='unreadable-set'):
            from mmpretrain.registry import DATASETS as PLATFORM

            settings = dict(type=kind if '.' in kind else f'mmpretrain.{kind}', pipeline=[])
            parts = [PLATFORM.build({**source, **settings, **part}) for part in splits]
        infos = [part.get_data_info(index) for part in parts for index in range(len(part))]
        self.metric = metric
        self.classes = list(parts[0].CLASSES or ())
        files = [os.path.relpath(info['img_path'], root) for info in infos]
        labels = [label_of(info, len(self.classes)) for info in infos]
        super().__init__(root, files, labels, **options)


def label_of(info: Mapping[str, Any], classes: int) -> int | list[int]:
    """Return the class index of an image or, if it can have several classes, a row of labels."""
    label = info['gt_label']
    if np.ndim(label) == 0:
        return int(label)
    row = np.zeros(classes, int)
    row[info.get('gt_label_difficult') or []] = -1
    row[label] = 1
    return row.tolist()


@DATASETS.register_module()
class TorchvisionArrays(ViewDataset):
    """A data set of small images that torchvision loads as one array: CIFAR, STL-10 or SVHN.

    torchvision compares the files with the published checksums.

    Args:
        name: Name of the class in `torchvision.datasets`, such as 'CIFAR10'.
        root: The folder that contains the files, or receives them with `download`.
        split: 'train' or 'test', or another split that the class has.
        download: Whether to download the files if they are missing.
        options: `views`, as in `ViewDataset`.

    Raises:
        UserError: If the files are missing or damaged.

    Example:
        >>> TorchvisionArrays('CIFAR10', 'data', split='test')  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        root: str | Path,
        split: str = 'train',
        download: bool = False,
        **options: Any,
    ) -> None:
        from torchvision import datasets

        super().__init__(**options)
        is_cifar = name.startswith('CIFAR')
        chosen = dict(train=split == 'train') if is_cifar else dict(split=split)
        fault = f'{name}: cannot be read from {Path(root).resolve()}'
        remedy = 'set download=True of the data set, or root to the folder of the files'
        with explained(fault, remedy, code='unreadable-set'):
            arrays = getattr(datasets, name)(root, download=download, **chosen)
        images = torch.from_numpy(np.asarray(arrays.data))
        self.images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
        self.labels = torch.as_tensor(arrays.targets if is_cifar else arrays.labels).long()
        self.classes = getattr(arrays, 'classes', None) or numbered(self.labels)

    def raw(self, index: int) -> Tensor:
        return self.images[index].clone(memory_format=torch.contiguous_format)


def numbered(labels: Tensor) -> list[str]:
    """Return the numbers of the classes as their names."""
    return list(map(str, range(int(labels.max()) + 1)))


@DATASETS.register_module()
class HubImages(ViewDataset):
    """Images that the library `datasets` loads. Its files are memory-mapped, and order is free.

    Args:
        path: A data set of the Hugging Face hub, or a format with `data_files`: 'parquet', 'arrow' or
            'webdataset'.
        split: Name of the split.
        image: Name of the column with the images.
        label: Name of the column with the labels. If there is no such column, images are unlabeled.
        options: `views`, `channels` and `max_unreadable`, as in `ViewDataset`.
        data: Other arguments of `datasets.load_dataset`, such as `data_files`.

    Raises:
        UserError: If the data set cannot be loaded, or if it has no such column of images.

    Example:
        >>> HubImages('parquet', data=dict(data_files='hub/train-*.parquet'))  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str,
        split: str = 'train',
        image: str = 'image',
        label: str = 'label',
        data: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        remedy = 'pip install datasets, and check the name, the split and the connection'
        with explained(f'{path}: cannot be loaded by datasets', remedy, code='bad-hub-dataset'):
            import datasets

            table = datasets.load_dataset(path, split=split, **(data or {}))
        self.image = image
        self.labels = torch.full((len(table),), -1)
        if label in table.column_names:
            if isinstance(table[0][label], str):
                table = table.class_encode_column(label)
            self.labels = torch.tensor([-1 if value is None else value for value in table[label]])
            names = getattr(table.features[label], 'names', None)
            self.classes = names or numbered(self.labels)
        remedy = 'set a column of images'
        with explained(f'HubImages.image={image}', remedy, code='no-image-column'):
            table = table.select_columns([image])
            self.table = table.cast_column(image, datasets.Image(decode=False))

    def encoded(self, index: int) -> bytes:
        image = self.table[index][self.image] or dict(bytes=b'')
        if image['bytes'] is not None:
            return image['bytes']
        path = Path(image['path'])
        return read_file(path, path.parent)
