"""Packing of data sets into shards, which are tar archives of many images.

WebDataset, the data set `Shards` and any tar program can read these archives.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage, file_kind
from mmairl.data.shards import CLASSES
from mmairl.data.training_images import unreadable_allowed
from mmairl.errors import UserError
from mmairl.io import replacing


@dataclass
class Smaller:
    """Downscales images so that their shorter side has at most `short_side` pixels, as JPEG files.

    The files of images that are not larger stay unchanged.
    """

    short_side: int
    quality: int

    def __call__(self, data: bytes, image: Tensor) -> bytes:
        factor = self.short_side / min(image.shape[-2:])
        if factor >= 1:
            return data
        height, width = (round(side * factor) for side in image.shape[-2:])
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
        picture.save(buffer := io.BytesIO(), 'JPEG', quality=self.quality)
        return buffer.getvalue()


def read_packable(
    index: int, dataset: ViewDataset, smaller: Smaller | None
) -> tuple[int, bytes, str | None]:
    """Read an image and check that it is readable. Return its index, its file and the fault."""
    try:
        data = dataset.encoded(index)
        image = dataset.decoded(data, index)
    except UnreadableImage as fault:
        return index, b'', fault.reason
    return index, smaller(data, image) if smaller else data, None


def pack(
    dataset: ViewDataset,
    out: str | Path,
    workers: int = 0,
    size: int | None = None,
    smaller: Smaller | None = None,
) -> Iterator[tuple[str, str | None]]:
    """Write the images of a data set into shards.

    Unreadable images are left out. For each image, yield its name and why it is unreadable (None if
    it is stored).

    Args:
        dataset: Images in files, shards or a Hugging Face data set.
        out: Path of the archive, such as OUT.tar. If `size` is set, the archives are
            OUT-000000.tar, OUT-000001.tar, ...
        workers: Number of processes that read and decode images.
        size: Approximate limit on the size of a shard in bytes. Default: a single archive.
        smaller: How to downscale images. Default: keep their size.

    Raises:
        UserError: If an archive exists already, or if more images are unreadable than the data set
            allows.
    """
    read = partial(read_packable, dataset=dataset, smaller=smaller)
    images = iter(
        DataLoader(range(len(dataset)), batch_size=None, collate_fn=read, num_workers=workers)
    )
    left_out = number = 0
    image = next(images, None)
    while image is not None:
        path = Path(out)
        if size:
            path = path.with_name(f'{path.stem}-{number:06}.tar')
        if path.exists():
            raise UserError(
                f'{path}: the file exists already; remove it, or choose another name',
                code='shard-exists',
            )
        with replacing(path) as temporary, tarfile.open(temporary, 'w') as archive:
            add(archive, CLASSES, json.dumps(dataset.classes).encode())
            taken: set[str] = set()
            while image is not None:
                index, data, fault = image
                if fault is None:
                    if size and taken and archive.offset + len(data) > size:
                        break
                    store(archive, dataset, index, data, taken)
                else:
                    left_out += 1
                    require_allowed(dataset, left_out, index, fault)
                yield dataset.member(index), fault
                image = next(images, None)
        number += 1


def store(
    archive: tarfile.TarFile, dataset: ViewDataset, index: int, data: bytes, taken: set[str]
) -> None:
    """Add an image and its label. WebDataset cuts names at the first dot, so dots are replaced."""
    folder, slash, base = dataset.member(index).rpartition('/')
    stem = base.rpartition('.')[0] or base
    key = f'{folder}{slash}{stem.replace(".", "_")}'
    if key in taken:  # images whose names differ only in the extension
        key = f'{key}_{index}'
    taken.add(key)
    if dataset.classes:
        add(archive, f'{key}.cls', str(int(dataset.labels[index])).encode())
    add(archive, f'{key}.{file_kind(data)}', data)


def require_allowed(dataset: ViewDataset, left_out: int, index: int, fault: str) -> None:
    """Raise if more images are unreadable than the data set allows."""
    if left_out > unreadable_allowed(len(dataset), dataset.max_unreadable):
        raise UserError(
            f'{left_out} of the first {index + 1} images are unreadable (the latest: '
            f'{dataset.name(index)} {fault}); fix or remove them, or raise --max-unreadable',
            code='too-many-unreadable',
        )


def add(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
    # tarfile adds each member to a list, which would fill the memory after millions of images.
    archive.members.clear()
