"""The base class of data sets, and image folders with or without classes."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.decode import (
    MAX_PIXELS,
    READERS,
    Reason,
    UnreadableImage,
    decode_bytes,
    ending_by_reader,
    extensions,
    to_unit,
)
from mmairl.data.reading import read_file
from mmairl.data.view_sets import expand_named_views
from mmairl.errors import UserError
from mmairl.registry import DATASETS, TRANSFORMS

# A list of transforms per view, or the name of a set in mmairl.data.view_sets.
Views = Sequence[Sequence[dict]] | str
Pipeline = list[Callable[[Tensor], Tensor]]
# Images as paths below the root, their labels, and the names of the classes.
Listing = tuple[list[str], list, list[str]]
DEPTH_TRIES = 20  # images that are tried to find the bit depth of a data set
THREADS = 16  # folders that are listed in parallel, because network disks are slow


def build_views(views: Views | None) -> list[Pipeline]:
    """Build the pipeline of each view. Without views, return one empty pipeline, which leaves the image unchanged.

    A step is the config of a registered transform, or a transform or function of another library.
    """
    # OpenCV's thread pool does not survive the fork of a data worker, and a worker has only one core anyway.
    cv2.setNumThreads(0)
    lists = expand_named_views(views) or [[]]
    return [[build_step(step) for step in steps] for steps in lists]


def build_step(step: dict | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    is_config = isinstance(step, dict)
    return TRANSFORMS.build(step if is_config else dict(type='ForeignTransform', transform=step))


class ViewDataset(Dataset):
    """Base class of data sets. An item reads an image once and passes it through the pipeline of each view.

    A subclass sets `labels` and `classes`, and defines `raw`, or `encoded` if the images are files. `labels` has the class
    of each image (-1 if unknown). If an image can have several classes, `labels` has the shape (images, classes), where 1
    means that the image has the class, 0 that it does not, and -1 that the pair is not scored. `metric` is the customary
    score of the data set.

    Args:
        views: A list of transforms per view, or the name of a view set.
        channels: Number of channels of image files that are read as stored. Default: convert images to 8-bit RGB.
    """

    labels: Tensor
    classes: list[str]
    metric = 'top-1'
    max_pixels = MAX_PIXELS
    channels = 3
    as_stored = False
    depth: torch.dtype | None = None
    value_range = (0.0, 1.0)
    readers = READERS

    def __init__(self, views: Views | None, channels: int | None = None) -> None:
        self.views = build_views(views)
        # Spawned data workers have not imported the modules that register readers. Unpickling this copy imports them.
        self.readers = dict(READERS)
        if channels is not None:
            self.channels = channels
            self.as_stored = True

    def encoded(self, index: int) -> bytes:
        """Return the content of the image's file."""
        raise NotImplementedError

    def raw(self, index: int) -> Tensor:
        """Return the image as stored: uint8, uint16 or float32, channels first."""
        try:
            return self.decoded(self.encoded(index), index)
        except UnreadableImage as fault:
            raise UnreadableImage(fault.reason, self.name(index)) from fault

    def decoded(self, data: bytes, index: int) -> Tensor:
        """Decode the content of an image's file."""
        if not data:
            raise UnreadableImage(Reason.EMPTY)
        if ending := ending_by_reader(data, self.readers):
            image = self.readers[ending].decode(data, self.max_pixels, self.as_stored)
        elif self.as_stored:
            from mmairl.data.raw_values import decode_stored  # not needed for RGB images

            image = decode_stored(data, self.max_pixels)
        else:
            image = decode_bytes(data, self.max_pixels)
        return self.checked_format(image, index) if self.as_stored else image

    def checked_format(self, image: Tensor, index: int) -> Tensor:
        """Return the image. Raise if it differs in channels or depth from the data set."""
        depth = self.depth or image.dtype
        if (len(image), image.dtype) != (self.channels, depth):
            raise UserError(
                f'{self.name(index)}: {len(image)} channels of {dtype_name(image.dtype)} (NumPy arrays are H x W x C), '
                f'but the data set has channels={self.channels} of {dtype_name(depth)}; set channels to the number that all '
                'images have, convert this image, or remove it from the data set',
                code='mixed-images',
            )
        return image

    def take_depth(self) -> None:
        """Set depth and value range to those of the first readable image."""
        if not self.as_stored:
            return
        for index in range(min(len(self), DEPTH_TRIES)):
            with suppress(UnreadableImage):
                image = self.raw(index)
                values = to_unit(image)
                self.depth = image.dtype
                self.value_range = values.min().item(), values.max().item()
                return

    def label(self, index: int) -> Tensor:
        """Return the label of one image. Subclasses can do so without computing all `labels`."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """Return the name of the image in messages."""
        return f'image {index}'

    @property
    def metainfo(self) -> dict[str, list[str]]:
        """The classes, which mmengine saves in checkpoints."""
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        image = self.raw(index)
        if image.dtype is torch.uint16:  # which few torch functions support
            image = to_unit(image)
        inputs = []
        for pipeline in self.views:
            view = image
            for transform in pipeline:
                view = transform(view)
            inputs.append(view)
        label = self.label(index)
        return dict(
            inputs=inputs,
            data_samples=dict(label=int(label) if label.ndim == 0 else label, index=index),
        )


def innermost_dataset(dataset: Dataset) -> Dataset:
    """Return the data set inside all wrappers that select or relabel its images."""
    while hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    return dataset


def dtype_name(depth: torch.dtype) -> str:
    return {torch.uint8: '8 bits', torch.uint16: '16 bits'}.get(depth, 'floats')


class FileDataset(ViewDataset):
    """Images in files. Training replaces unreadable images by other images.

    Args:
        root: The folder of all files.
        files: Paths relative to the root.
        labels: The label of each file.
        views: As in `ViewDataset`.
        max_unreadable: Training stops if a larger fraction of the files is unreadable.
        max_pixels: Images with more pixels count as unreadable.
        channels: As in `ViewDataset`.
    """

    def __init__(
        self,
        root: str | Path,
        files: list[str],
        labels: list[int] | list[list[int]],
        views: Views | None,
        max_unreadable: float,
        max_pixels: int = MAX_PIXELS,
        channels: int | None = None,
    ) -> None:
        super().__init__(views, channels)
        self.root = Path(root)
        self.max_unreadable = max_unreadable
        self.max_pixels = max_pixels
        # An array, because reading a list of str objects would change their reference counts, which copies their memory pages
        # in each worker.
        self.files = np.array([os.fsencode(file) for file in files])
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.take_depth()

    def path(self, index: int) -> Path:
        return self.root / self.member(index)

    def name(self, index: int) -> str:
        return str(self.path(index))

    def member(self, index: int) -> str:
        """Return the path of the file relative to the root."""
        return os.fsdecode(self.files[index])

    def encoded(self, index: int) -> bytes:
        return read_file(self.path(index), self.root, self.max_pixels)


@DATASETS.register_module()
class ImageFolder(FileDataset):
    """Images in `root/class/.../name.jpg`. The classes are the folder names in sorted order.

    Args:
        root: The folder of the classes.
        views: A list of transforms per view, or the name of a view set.
        max_unreadable: Training stops if a larger fraction of the images is unreadable.
        max_pixels: Images with more pixels count as unreadable.
        channels: Number of channels of images that are read as stored. Default: convert images to 8-bit RGB.

    Raises:
        UserError: If the folder does not exist or has no image.

    Example:
        >>> ImageFolder('data/imagenet/val', views=[[dict(type='CenterCrop', size=224)]])  # doctest: +SKIP
    """

    layout = (
        'one folder per class with its images inside (images without classes: type=UnlabelledFolder, or '
        'tools/pack.py --unlabelled)'
    )

    def __init__(
        self,
        root: str | Path,
        views: Views | None = None,
        max_unreadable: float = 0.01,
        max_pixels: int = MAX_PIXELS,
        channels: int | None = None,
    ) -> None:
        if not os.path.isdir(root):
            is_file = os.path.exists(root)
            fault = 'is a file (archives: type=Shards)' if is_file else 'does not exist'
            raise UserError(
                f'{Path(root).resolve()}: the image folder {fault}; expected layout: {self.layout}. Set it by --cfg-options '
                'train_dataloader.dataset.root=DIR, or evaluation.train.root=DIR evaluation.test.root=DIR',
                code='no-image-folder',
            )
        endings = extensions() if channels is None else (*extensions(), '.npy')
        files, labels, self.classes = self.find(root, endings)
        if not files:
            array = ' (or NAME.npy, with channels=C)' if channels is None else ''
            raise UserError(
                f'{Path(root).resolve()}: no image found by {type(self).__name__}; expected layout: {self.layout}, as '
                f'NAME{", NAME".join(endings)}{array}',
                code='no-images',
            )
        super().__init__(root, files, labels, views, max_unreadable, max_pixels, channels)

    def find(self, root: str | Path, endings: tuple[str, ...]) -> Listing:
        return class_folders(root, endings)


@DATASETS.register_module()
class UnlabelledFolder(ImageFolder):
    """All images below `root`, at any depth, without labels. The arguments are those of `ImageFolder`."""

    layout = 'images at any depth'

    def find(self, root: str | Path, endings: tuple[str, ...]) -> Listing:
        files = image_files(root, endings)
        return files, [-1] * len(files), []


def class_folders(root: str | Path, endings: tuple[str, ...]) -> Listing:
    """Return the image files below the class folders, in sorted order, with their labels and the classes."""
    classes = sorted(
        entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != '.'
    )
    label = {name: number for number, name in enumerate(classes)}
    files = [file for file in image_files(root, endings) if os.sep in file]
    return files, [label[file.partition(os.sep)[0]] for file in files], classes


def image_files(root: str | Path, endings: tuple[str, ...]) -> list[str]:
    """List the files with these endings, relative to root. The sorted files of a folder precede those of its subfolders.

    Hidden files and folders are left out. Links to folders are followed.
    """

    def files_below(below: str, parents: tuple = ()) -> list[str]:
        folder = os.path.join(root, below)
        files, folders = [], []
        try:
            status = os.stat(folder)
            this = status.st_dev, status.st_ino  # the same for a folder and all links to it
            if this in parents:
                raise UserError(
                    f'{folder}: the link leads to a folder that contains it; remove the link',
                    code='cyclic-link',
                )
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = os.path.join(below, entry.name)
                    if entry.name[0] == '.':
                        continue
                    if entry.is_dir():
                        folders.append(path)
                    elif path.lower().endswith(endings):
                        files.append(path)
        except OSError as error:
            raise UserError(
                f'{error.filename}: the folder cannot be listed ({error.strerror}); fix its permissions, or move it out of '
                f'{root}',
                code='unlisted-folder',
            ) from error
        each = map if parents else pool.map
        inner = partial(files_below, parents=(*parents, this))
        return [*sorted(files), *chain.from_iterable(each(inner, sorted(folders)))]

    with ThreadPoolExecutor(THREADS) as pool:
        return files_below('')
