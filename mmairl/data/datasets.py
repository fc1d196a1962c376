"""The base class of our image data sets, and data sets that read folders of images."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.decode import (
    READERS,
    UnreadableImage,
    decode_bytes,
    decode_stored,
    extensions,
    read_file,
    to_unit,
)
from mmairl.data.transforms import as_configs
from mmairl.errors import UserError, explained
from mmairl.registry import DATASETS, TRANSFORMS

# The views of an image: one list of transforms for each view.
Views = Sequence[Sequence[dict]]
Pipeline = list[Callable[[Tensor], Tensor]]
THREADS = 16  # network disks are slow, so this many folders or files are examined in parallel
SAMPLE = 256  # a fingerprint covers the contents of this many images


def build_views(views: Views | None) -> list[Pipeline]:
    """Return one pipeline (a list of callables) for each view.

    If `views` is None, return a single empty pipeline, so that images stay unchanged. A step of a
    pipeline is the config of a registered transform, or a transform or function of another library.
    """
    # OpenCV's thread pool does not work in a forked data worker, and workers run in parallel.
    cv2.setNumThreads(0)
    pipelines = []
    for steps in views or [[]]:
        pipelines.append(list(map(TRANSFORMS.build, as_configs(steps))))
    return pipelines


class ViewDataset(Dataset):
    """Base class of image data sets. `dataset[i]` returns one augmented copy of image i per view.

    A subclass sets `labels` and `classes`. It also defines `raw`, or `encoded` if the images are
    files. `labels` contains the class index of each image (-1 if unknown). If an image can have
    several classes, `labels` has the shape (images, classes): 1 means that the image has the class,
    0 means that it does not, and -1 means that this class is not scored on this image. `metric` is
    the name of the score that is usually reported for the data set.

    Args:
        views: One list of transforms for each view.
        channels: Number of channels in the image files. If set, the values are read as stored,
            without conversion. Default: convert every image to 8-bit RGB.
        max_unreadable: Training stops if more than this fraction of the images, and more than 10
            images, are unreadable. With 0, it stops at the first unreadable image.
    """

    labels: Tensor
    classes: Sequence[str] = ()
    metric = 'top-1'
    channels = 3
    as_stored = False
    depth: torch.dtype | None = None
    readers = READERS

    def __init__(
        self,
        views: Views | None = None,
        channels: int | None = None,
        max_unreadable: float = 0.01,
    ) -> None:
        self.views = build_views(views)
        self.max_unreadable = max_unreadable
        # A spawned data worker has not imported the modules that register readers. It imports them
        # when it unpickles this copy of the registry.
        self.readers = dict(READERS)
        if channels is not None:
            self.channels = channels
            self.as_stored = True

    def encoded(self, index: int) -> bytes:
        """Return the content of the image's file or, if the images are not files, its pixels."""
        return self.raw(index).numpy().tobytes()

    def raw(self, index: int) -> Tensor:
        """Return the decoded image, channels first.

        If `channels` is set, the image contains the stored values as uint8, uint16 or float32.
        Otherwise, it is 8-bit RGB.
        """
        try:
            return self.decoded(self.encoded(index), index)
        except UnreadableImage as fault:
            raise UnreadableImage(fault.reason, self.name(index)) from fault

    def decoded(self, data: bytes, index: int) -> Tensor:
        """Decode the content of an image's file."""
        readers = [reader for reader in self.readers.values() if reader.matches(data)]
        if readers:
            image = readers[0].decode(data, self.as_stored)
        elif self.as_stored:
            image = decode_stored(data)
        else:
            image = decode_bytes(data)
        return self.checked_format(image, index) if self.as_stored else image

    def checked_format(self, image: Tensor, index: int) -> Tensor:
        """Return the image. Raise if it differs from earlier images in its channels or depth."""
        self.depth = self.depth or image.dtype
        if (len(image), image.dtype) != (self.channels, self.depth):
            raise UserError(
                f'{self.name(index)}: the image has {len(image)} channels of {image.dtype}, but '
                f'channels={self.channels} of {self.depth} are expected; convert or remove it, or '
                f'set channels={len(image)} of the data set and model.backbone.in_channels (the '
                'channels of a .npy file are its last dimension)',
                code='mixed-images',
            )
        return image

    def name(self, index: int) -> str:
        """Return the name by which messages refer to the image."""
        return f'image {index}'

    def member(self, index: int) -> str:
        """Return the path of the image within the data set, or its name if it has no path."""
        return self.name(index)

    def sizes(self) -> np.ndarray | None:
        """Return the size of each image's file in bytes, or None if the images are not files."""
        return None

    def fingerprint(self) -> str:
        """Return a digest of the images' names, sizes and labels, and of 256 images' contents.

        The 256 images are evenly spaced; smaller data sets are read completely. Modification times
        and the location of the data set do not matter, so a copied folder is not a change.
        """
        digest = hashlib.sha256(repr(list(self.classes)).encode())
        names = ''.join(f'{self.member(index)}\0' for index in range(len(self)))
        digest.update(names.encode(errors='surrogateescape'))
        digest.update(self.labels.contiguous().numpy())
        if (sizes := self.sizes()) is not None:
            digest.update(sizes)
        chosen = np.linspace(0, len(self) - 1, min(SAMPLE, len(self))).astype(int)
        for index in chosen.tolist():
            with suppress(UnreadableImage):
                digest.update(self.encoded(index))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        image = self.raw(index)
        if image.dtype is torch.uint16:  # few torch functions support uint16
            image = to_unit(image)
        inputs = []
        for pipeline in self.views:
            view = image
            for transform in pipeline:
                view = transform(view)
            inputs.append(view)
        label = self.labels[index]
        if label.ndim == 0:
            label = int(label)
        return dict(inputs=inputs, data_samples=dict(label=label, index=index))


def innermost_dataset(dataset: Dataset) -> Dataset:
    """Return the data set inside all wrappers, such as ImageSubset and TrainingImages."""
    while hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    return dataset


class FileDataset(ViewDataset):
    """A data set of image files.

    Args:
        root: The folder that contains the files.
        files: The paths of the files, relative to the root.
        labels: The label of each file, in the same order.
        options: As in `ViewDataset`.
    """

    def __init__(
        self, root: str | Path, files: Sequence[str], labels: Sequence, **options: Any
    ) -> None:
        super().__init__(**options)
        self.root = Path(root)
        # Forked data workers share the memory of an array. They would copy a list of str objects,
        # because reading an object changes its reference count.
        self.files = np.array([os.fsencode(file) for file in files])
        self.labels = torch.tensor(labels, dtype=torch.int64)

    def name(self, index: int) -> str:
        return os.path.join(self.root, self.member(index))

    def member(self, index: int) -> str:
        """Return the path of the file relative to the root."""
        return os.fsdecode(self.files[index])

    def encoded(self, index: int) -> bytes:
        return read_file(Path(self.name(index)), self.root)

    def sizes(self) -> np.ndarray:
        """Return the size of each file in bytes, or -1 if the file is missing."""
        with ThreadPoolExecutor(THREADS) as pool:
            sizes = pool.map(size_of, map(self.name, range(len(self))))
            return np.array(list(sizes))


def size_of(path: str) -> int:
    with suppress(OSError):
        return os.path.getsize(path)
    return -1


@DATASETS.register_module()
class ImageFolder(FileDataset):
    """Labeled images in one folder per class: `root/class/.../name.jpg`.

    Classes are numbered in the order of their names. Images that are in no class folder are left
    out.

    Args:
        root: The folder that contains the class folders.
        options: `views`, `channels` and `max_unreadable`, as in `ViewDataset`.

    Raises:
        UserError: If the folder does not exist, cannot be listed or has no image.

    Example:
        >>> view = [dict(type='CenterCrop', size=224)]
        >>> ImageFolder('data/imagenet/val', views=[view])  # doctest: +SKIP
    """

    has_classes = True
    layout = 'one folder per class, with the images of the class'

    def __init__(self, root: str | Path, **options: Any) -> None:
        endings = extensions() if options.get('channels') is None else (*extensions(), '.npy')
        is_folder = os.path.isdir(root)
        files = image_files(root, endings) if is_folder else []
        if self.has_classes:
            files = [file for file in files if os.sep in file]
        if not files:
            fault = 'has no images' if is_folder else 'no such folder'
            raise UserError(
                f'{Path(root).resolve()}: {fault}; expected {self.layout}, as {", ".join(endings)} '
                '(.npy only with channels=C)',
                code='no-images',
            )
        if self.has_classes:
            folders = [entry.name for entry in os.scandir(root) if entry.is_dir()]
            self.classes = sorted(name for name in folders if name[0] != '.')
        numbers = {name: number for number, name in enumerate(self.classes)}
        labels = [numbers.get(file.partition(os.sep)[0], -1) for file in files]
        super().__init__(root, files, labels, **options)


@DATASETS.register_module()
class UnlabelledFolder(ImageFolder):
    """Unlabeled images: all image files in `root` and its subfolders.

    The arguments are the same as for `ImageFolder`.
    """

    has_classes = False
    layout = 'images in the folder or in its subfolders'


def image_files(root: str | Path, endings: tuple[str, ...]) -> list[str]:
    """Return the paths, relative to `root`, of all files below `root` that have these endings.

    The files of a folder come in sorted order, before the files of its subfolders. Hidden files and
    folders are skipped. Links to folders are followed.
    """

    def refuse(error: OSError) -> None:
        raise error

    def files_below(folder: str) -> list[str]:
        found = []
        for path, folders, files in os.walk(top + folder, followlinks=True, onerror=refuse):
            folders[:] = sorted(name for name in folders if name[0] != '.')
            names = [name for name in files if name.lower().endswith(endings) and name[0] != '.']
            below = os.path.join(path, '').removeprefix(top)
            found += [below + name for name in sorted(names)]
            if not folder:  # the threads list the subfolders of the root
                found += chain.from_iterable(pool.map(files_below, folders))
                break
        return found

    top = os.path.join(root, '')
    fault, remedy = f'{root}: a folder cannot be listed', 'fix its permissions, or move it away'
    with explained(fault, remedy, code='unlisted-folder'), ThreadPoolExecutor(THREADS) as pool:
        return files_below('')
