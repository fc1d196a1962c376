"""Images in files: a user's own folders, with or without classes, and the base of all sets that are made of files."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from mmairl.data.decode import MAX_PIXELS
from mmairl.data.preprocess import ViewDataset, Views
from mmairl.data.reading import read_file
from mmairl.errors import UserError, printable
from mmairl.registry import DATASETS

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.gif', '.tif', '.tiff', '.ppm', '.pgm', '.dcm')
Identity = tuple[int, int]  # of a folder: its device and inode
THREADS = 16  # list folders side by side on a disk that answers slowly
WAIT = 1e-3  # seconds for a folder that such a disk takes


class FileDataset(ViewDataset):
    """Images read from files. One that cannot be read raises UnreadableImage, and training takes the next one instead.

    `max_unreadable` is the fraction of the files above which training stops. An image of more than `max_pixels` is not
    decoded. With `channels` the files are read as they are stored (data/stored.py).
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
        self.root, self.max_unreadable, self.max_pixels = Path(root), max_unreadable, max_pixels
        # One buffer of bytes, not a list: workers that touch a million str objects would each copy their pages.
        self.files = np.array([os.fsencode(file) for file in files])
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.take_depth()

    def path(self, index: int) -> Path:
        return self.root / os.fsdecode(self.files[index])

    def name(self, index: int) -> str:
        return str(self.path(index))

    def member(self, index: int) -> str:
        """The file's name below the root."""
        return os.fsdecode(self.files[index])

    def encoded(self, index: int) -> bytes:
        return read_file(self.path(index), self.root, self.max_pixels)


@DATASETS.register_module()
class ImageFolder(FileDataset):
    """Images in `root/class/.../name.jpg`; the classes are the folder names in sorted order.

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
        if not Path(root).is_dir():
            raise UserError(
                f'the image folder {Path(root).resolve()} {"is a file" if Path(root).exists() else "does not exist"}; '
                f'give one that holds {self.layout}{" (archives: type=Shards)" if Path(root).exists() else ""}, by '
                '--cfg-options train_dataloader.dataset.root=DIR, or evaluation.train.root=DIR evaluation.test.root=DIR'
            )
        kinds = EXTENSIONS if channels is None else (*EXTENSIONS, '.npy')
        files, labels, self.classes = self.find(root, kinds)
        if not files:
            raise UserError(
                f'{Path(root).resolve()} holds no image where {type(self).__name__} looks; it wants {self.layout}, as '
                f'NAME{", NAME".join(kinds)}{" (or NAME.npy, with channels=C)" if channels is None else ""}'
            )
        super().__init__(root, files, labels, views, max_unreadable, max_pixels, channels)

    def find(self, root: str | Path, kinds: tuple[str, ...]) -> tuple[list[str], list[int], list[str]]:
        """Files of these endings, labels and classes."""
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != '.')
        label = {name: number for number, name in enumerate(classes)}
        files = [file for file in image_files(root, kinds=kinds) if os.sep in file]
        return files, [label[file.partition(os.sep)[0]] for file in files], classes


@DATASETS.register_module()
class UnlabelledFolder(ImageFolder):
    """Every image below `root`, at any depth, without labels: all that pre-training needs."""

    layout = 'images at any depth'

    def find(self, root: str | Path, kinds: tuple[str, ...]) -> tuple[list[str], list[int], list[str]]:
        files = image_files(root, kinds=kinds)
        return files, [-1] * len(files), []


def image_files(
    root: str | Path, below: str = '', above: tuple[Identity, ...] = (), kinds: tuple[str, ...] = EXTENSIONS
) -> list[str]:
    """The image files below root/below, relative to root: a folder's own in sorted order, then those of its sorted folders.

    Hidden files and folders are left out; links to folders are followed. `above` are the folders that hold this one.
    """
    folder, prefix = os.path.join(root, below), os.path.join(below, '')
    files, folders = [], []
    began = time.perf_counter() - time.thread_time()
    try:
        status = os.stat(folder)
        this = status.st_dev, status.st_ino  # the same for a folder and for every link to it
        if this in above:
            raise UserError(f'{printable(folder)} is a link to a folder that holds it; remove the link')
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name[0] != '.':
                    (folders if entry.is_dir() else files).append(prefix + entry.name)
    except OSError as error:
        raise UserError(
            f'{printable(error.filename)} cannot be listed ({error.strerror}); mend that, or move it out of {root}'
        ) from error
    waited = time.perf_counter() - time.thread_time() - began
    # The uppermost folders are listed side by side where the disk is waited for; threads only slow down a fast one.
    with ThreadPoolExecutor(THREADS) if waited > WAIT and not above else nullcontext() as pool:
        inner = (pool.map if pool else map)(lambda at: image_files(root, at, (*above, this), kinds), sorted(folders))
        return [*sorted(file for file in files if file.lower().endswith(kinds)), *chain.from_iterable(inner)]
