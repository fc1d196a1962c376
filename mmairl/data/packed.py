"""Packing of data sets into shards, which are tar archives of many images.

WebDataset, the data set `Shards` and any tar program can read these archives. Their bytes depend only on the images and the
settings. Each shard is written atomically, so if packing is killed, the next run resumes after the last complete shard.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from mmairl.data.datasets import FileDataset
from mmairl.data.decode import UnreadableImage, file_kind
from mmairl.data.shards.dataset import Shards
from mmairl.data.shards.tar_files import ABOUT, member_key
from mmairl.data.training_images import unreadable_allowed
from mmairl.errors import UserError
from mmairl.io import replacing

# The first file in a shard states the settings of packing, and the last file states the progress of packing.
HEAD = f'{ABOUT.decode()}about.json'
TAIL = f'{ABOUT.decode()}done.json'
# An image and its label require at most this many bytes of tar headers and padding, unless the name of the image is so long
# that it requires an additional header.
OVERHEAD = 4 * tarfile.BLOCKSIZE


@dataclass
class Smaller:
    """Downscales images so that their shorter side has `short_side` pixels, and encodes them as JPEG.

    The files of images that are not larger stay unchanged.
    """

    short_side: int
    quality: int

    def __call__(self, data: bytes, image: Tensor) -> bytes:
        height, width = image.shape[-2:]
        factor = self.short_side / min(height, width)
        if factor >= 1:
            return data
        size = round(width * factor), round(height * factor)
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(
            size, Image.Resampling.BICUBIC
        )
        picture.save(buffer := io.BytesIO(), 'JPEG', quality=self.quality)
        return buffer.getvalue()


@dataclass
class Packable:
    """The bytes that are stored for an image, or the reason (`fault`) why the image is unreadable."""

    index: int
    data: bytes = b''
    kind: str = ''
    fault: str | None = None


def read_packable(index: int, dataset: FileDataset | Shards, smaller: Smaller | None) -> Packable:
    """Read an image, and decode it to make sure that it is readable. The data workers call this function."""
    try:
        data = dataset.encoded(index)
        image = dataset.decoded(data, index)
    except UnreadableImage as fault:
        return Packable(index, fault=fault.reason.phrase)
    if smaller:
        data = smaller(data, image)
    return Packable(index, data, file_kind(data))


def pack(
    dataset: FileDataset | Shards,
    out: str | Path,
    workers: int = 0,
    size: int | None = None,
    smaller: Smaller | None = None,
) -> Iterator[tuple[str, str | None]]:
    """Write the images of a data set into shards.

    Unreadable images are left out. For each image that this run reads, yield its name and why it is unreadable (None if the
    image is stored).

    Args:
        dataset: Images in files or shards.
        out: Path of the archive, such as OUT.tar. If `size` is set, the archives are OUT-000000.tar, OUT-000001.tar, ...
        workers: Number of processes that read and decode images.
        size: Approximate limit on the size of a shard in bytes. Default: write a single archive.
        smaller: How to downscale images. Default: keep their size.

    Raises:
        UserError: If more images are unreadable than the data set allows, if the single archive already exists, or if a
            shard exists that does not come from an earlier run with the same image names, classes and `smaller`.
    """
    about = dict(
        classes=dataset.classes,
        images=len(dataset),
        source=digest(dataset),
        **vars(smaller or Smaller(0, 0)),
    )
    number, done, left_out = finished_shards(Path(out), size, about)
    check = partial(read_packable, dataset=dataset, smaller=smaller)
    loader = DataLoader(
        range(done, len(dataset)), batch_size=None, collate_fn=check, num_workers=workers
    )
    images = iter(loader)
    image = next(images, None)
    while image is not None:
        with (
            replacing(shard_path(Path(out), size, number)) as temporary,
            tarfile.open(temporary, 'w') as archive,
        ):
            add(archive, HEAD, json.dumps(about).encode())
            taken: set[str] = set()
            while image is not None:
                name = dataset.member(image.index)
                if image.fault:
                    left_out += 1
                    require_allowed(dataset, left_out, image)
                else:
                    end = archive.offset + len(image.data) + OVERHEAD
                    if taken and size and end > size:
                        break
                    key = member_key(name, taken)
                    add(archive, f'{key}.{image.kind}', image.data)
                    if dataset.classes:
                        add(archive, f'{key}.cls', str(int(dataset.labels[image.index])).encode())
                yield name, image.fault
                image = next(images, None)
            done = len(dataset) if image is None else image.index
            add(archive, TAIL, json.dumps(dict(done=done, left_out=left_out)).encode())
        number += 1


def require_allowed(dataset: FileDataset | Shards, left_out: int, image: Packable) -> None:
    """Raise if more images are unreadable than the data set allows."""
    if left_out > unreadable_allowed(len(dataset), dataset.max_unreadable):
        raise UserError(
            f'{dataset.root}: {left_out} of the first {image.index + 1} images are unreadable '
            f'(the latest: {dataset.member(image.index)} {image.fault}); fix or remove them, or raise --max-unreadable',
            code='too-many-unreadable',
        )


def add(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
    # tarfile adds each member to a list, which would fill the memory after millions of images.
    archive.members.clear()


def shard_path(out: Path, size: int | None, number: int) -> Path:
    return out.with_name(f'{out.stem}-{number:06}.tar') if size else out


def finished_shards(out: Path, size: int | None, about: dict) -> tuple[int, int, int]:
    """Return how many shards an earlier run completed, how many images it read for them, and how many it left out.

    Raise if a shard exists whose notes do not contain `about`. If `size` is None, raise if the archive exists.
    """
    number = 0
    done = dict(done=0, left_out=0)
    while (shard := shard_path(out, size, number)).exists():
        head, done = notes_in(shard) if size else (None, None)
        if head != about:
            raise UserError(
                f'{shard}: the file exists already; remove it, or choose another name',
                code='shard-exists',
            )
        number += 1
    return number, done['done'], done['left_out']


def notes_in(shard: Path) -> tuple[dict | None, dict | None]:
    """Return the content of HEAD and TAIL in a shard that `pack` wrote. For other files, return (None, None)."""
    with suppress(tarfile.TarError, KeyError), tarfile.open(shard) as archive:
        return json.load(archive.extractfile(HEAD)), json.load(archive.extractfile(TAIL))
    return None, None


def digest(dataset: FileDataset | Shards) -> str:
    """Return a digest of the names of all images."""
    names = hashlib.sha256()
    for index in range(len(dataset)):
        names.update(dataset.member(index).encode(errors='surrogateescape') + b'\0')
    return names.hexdigest()[:16]
