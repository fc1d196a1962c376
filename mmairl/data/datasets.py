"""The base class of our image data sets, and data sets that read image folders with or without classes."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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

# The views of an image: one list of transforms for each view, or the name of a list of views in view_sets.yaml.
Views = Sequence[Sequence[dict]] | str
Pipeline = list[Callable[[Tensor], Tensor]]
# The images of a data set: their paths relative to the root, their labels, and the class names.
Listing = tuple[list[str], list, list[str]]
# The bit depth of a data set is that of its first readable image. At most this many images are tried.
DEPTH_TRIES = 20
# Network disks are slow, so this many folders are listed in parallel.
THREADS = 16


def build_views(views: Views | None) -> list[Pipeline]:
    """Return one pipeline (a list of callables) for each view.

    If `views` is None, return a single empty pipeline, so that images stay unchanged. A step of a pipeline is the config of a
    registered transform, or a transform or function of another library.
    """
    # OpenCV's thread pool does not work in a forked data worker. The workers run in parallel, so they need no threads.
    cv2.setNumThreads(0)
    lists = expand_named_views(views) or [[]]
    return [[build_step(step) for step in steps] for steps in lists]


def build_step(step: dict | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    is_config = isinstance(step, dict)
    return TRANSFORMS.build(step if is_config else dict(type='ForeignTransform', transform=step))


class ViewDataset(Dataset):
    """Base class of image data sets. `dataset[i]` reads image i once and returns one augmented copy for each view.

    A subclass sets `labels` and `classes`. It also defines `raw`, or `encoded` if the images are files. `labels` contains
    the class index of each image (-1 if unknown). If an image can have several classes, `labels` has the shape
    (images, classes): 1 means that the image has the class, 0 means that it does not, and -1 means that this class is not
    scored on this image. `metric` is the name of the score that is usually reported for the data set.

    Args:
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
        channels: Number of channels in the image files. If set, the values are read as stored, without conversion.
            Default: convert every image to 8-bit RGB.
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
        # A spawned data worker has not imported the modules that register readers. It imports them when it unpickles this
        # copy of the registry.
        self.readers = dict(READERS)
        if channels is not None:
            self.channels = channels
            self.as_stored = True

    def encoded(self, index: int) -> bytes:
        """Return the content of the image's file."""
        raise NotImplementedError

    def raw(self, index: int) -> Tensor:
        """Return the decoded image, channels first.

        If `channels` is set, the image contains the stored values as uint8, uint16 or float32. Otherwise, it is 8-bit RGB.
        """
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
            # This import is here because data sets of RGB images do not need it.
            from mmairl.data.raw_values import decode_stored

            image = decode_stored(data, self.max_pixels)
        else:
            image = decode_bytes(data, self.max_pixels)
        return self.checked_format(image, index) if self.as_stored else image

    def checked_format(self, image: Tensor, index: int) -> Tensor:
        """Return the image unchanged. Raise if its channels or its bit depth differ from those of the data set."""
        depth = self.depth or image.dtype
        if (len(image), image.dtype) != (self.channels, depth):
            raise UserError(
                f'{self.name(index)}: the image has {len(image)} channels of {dtype_name(image.dtype)}, but the data set has '
                f'channels={self.channels} of {dtype_name(depth)}; set channels to the number that all images have, convert '
                'this image, or remove it from the data set (in a .npy file, the channels must be the last dimension)',
                code='mixed-images',
            )
        return image

    def take_depth(self) -> None:
        """Set the bit depth and the value range of the data set to those of its first readable image.

        Do nothing if images are converted to 8-bit RGB.
        """
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
        """Return the label of one image. A subclass can override this if computing `labels` for all images is slow."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """Return the name by which messages refer to the image."""
        return f'image {index}'

    def member(self, index: int) -> str:
        """Return the path of the image within the data set or, if the image has no path, its name in messages."""
        return self.name(index)

    @property
    def metainfo(self) -> dict[str, list[str]]:
        """The class names, in the form in which mmengine saves them in checkpoints."""
        return dict(classes=self.classes)

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
        label = self.label(index)
        return dict(
            inputs=inputs,
            data_samples=dict(label=int(label) if label.ndim == 0 else label, index=index),
        )


def innermost_dataset(dataset: Dataset) -> Dataset:
    """Return the data set inside all wrappers, such as ImageSubset and TrainingImages."""
    while hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    return dataset


def dtype_name(depth: torch.dtype) -> str:
    return {torch.uint8: '8 bits', torch.uint16: '16 bits'}.get(depth, 'floats')


class FileDataset(ViewDataset):
    """A data set of image files. If an image is unreadable, training uses another image in its place.

    Args:
        root: The folder that contains the files.
        files: The paths of the files, relative to the root.
        labels: The label of each file, in the same order.
        views: As in `ViewDataset`.
        max_unreadable: Training stops if more than this fraction of the files, and more than 10 files, are unreadable.
            With 0, it stops at the first unreadable file.
        max_pixels: Images with more pixels than this count as unreadable.
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
        # Forked data workers share the memory of an array. They would copy the memory of a list of str objects, because
        # reading an object changes its reference count.
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
    """Labeled images in one folder per class: `root/class/.../name.jpg`. Classes are numbered in the order of their names.

    Args:
        root: The folder that contains the class folders.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
        max_unreadable: Training stops if more than this fraction of the images, and more than 10 images, are unreadable.
            With 0, it stops at the first unreadable image.
        max_pixels: Images with more pixels than this count as unreadable.
        channels: Number of channels in the image files. If set, the values are read as stored, without conversion.
            Default: convert every image to 8-bit RGB.

    Raises:
        UserError: If the folder does not exist, cannot be listed or has no image.

    Example:
        >>> ImageFolder('data/imagenet/val', views=[[dict(type='CenterCrop', size=224)]])  # doctest: +SKIP
    """

    layout = (
        'one folder per class that contains the images of the class (for images without classes, set '
        'type=UnlabelledFolder, or run tools/pack.py --unlabelled)'
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
            fault = 'is a file (for archives, set type=Shards)' if is_file else 'does not exist'
            raise UserError(
                f'{Path(root).resolve()}: the image folder {fault}; expected layout: {self.layout}. Set the folder by '
                '--cfg-options train_dataloader.dataset.root=DIR (training), or evaluation.train.root=DIR '
                'evaluation.test.root=DIR (evaluation)',
                code='no-image-folder',
            )
        endings = extensions() if channels is None else (*extensions(), '.npy')
        files, labels, self.classes = self.find(root, endings)
        if not files:
            array = ' (or NAME.npy, with channels=C)' if channels is None else ''
            raise UserError(
                f'{Path(root).resolve()}: no image found by {type(self).__name__}; expected layout: {self.layout}. Expected '
                f'file names: NAME{", NAME".join(endings)}{array}',
                code='no-images',
            )
        super().__init__(root, files, labels, views, max_unreadable, max_pixels, channels)

    def find(self, root: str | Path, endings: tuple[str, ...]) -> Listing:
        with listable_folders(root):
            return class_folders(root, endings)


@DATASETS.register_module()
class UnlabelledFolder(ImageFolder):
    """Unlabeled images: all image files in `root` and its subfolders. The arguments are the same as for `ImageFolder`."""

    layout = 'images in the folder or in any of its subfolders'

    def find(self, root: str | Path, endings: tuple[str, ...]) -> Listing:
        files = image_files(root, endings)
        return files, [-1] * len(files), []


def class_folders(root: str | Path, endings: tuple[str, ...]) -> Listing:
    """List the images of a folder with one subfolder per class. Return their paths, their labels and the classes.

    The paths are in the order of `image_files`.
    """
    classes = sorted(
        entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != '.'
    )
    label = {name: number for number, name in enumerate(classes)}
    files = [file for file in image_files(root, endings) if os.sep in file]
    return files, [label[file.partition(os.sep)[0]] for file in files], classes


def image_files(root: str | Path, endings: tuple[str, ...]) -> list[str]:
    """Return the paths, relative to `root`, of all files in `root` and its subfolders that have one of these endings.

    The files of a folder come in sorted order, before the files of its subfolders. Hidden files and folders are skipped.
    Links to folders are followed.
    """

    def files_below(below: str, parents: tuple = ()) -> list[str]:
        folder = os.path.join(root, below)
        files, folders = [], []
        with listable_folders(root):
            status = os.stat(folder)
            # The device and inode numbers identify a folder, even if it is reached by a link.
            this = status.st_dev, status.st_ino
            if this in parents:
                raise UserError(
                    f'{folder}: a link in this path leads back to one of its parent folders; remove the link',
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
        each = map if parents else pool.map
        inner = partial(files_below, parents=(*parents, this))
        return [*sorted(files), *chain.from_iterable(each(inner, sorted(folders)))]

    with ThreadPoolExecutor(THREADS) as pool:
        return files_below('')


@contextmanager
def listable_folders(root: str | Path) -> Iterator[None]:
    """Turn an OSError about a folder in `root` that cannot be listed into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f'{error.filename}: the folder cannot be listed ({error.strerror}); fix its permissions, or move it out of {root}',
            code='unlisted-folder',
        ) from error
