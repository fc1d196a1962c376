"""Packing of data sets into shards, which are tar archives of many images.

WebDataset, the data set `Shards` and any tar program can read these archives.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from torch.utils.data import DataLoader

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage, file_kind
from mmairl.data.shards import CLASSES
from mmairl.errors import UserError
from mmairl.io import replacing


def read_packable(index: int, dataset: ViewDataset) -> tuple[int, bytes, str | None]:
    """Read an image and check that it is readable. Return its index, its file and the fault."""
    try:
        data = dataset.encoded(index)
        dataset.decoded(data, index)
    except UnreadableImage as fault:
        return index, b'', fault.reason
    return index, data, None


def pack(
    dataset: ViewDataset,
    out: str | Path,
    workers: int = 0,
    size: int | None = None,
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

    Raises:
        UserError: If an archive exists already.
    """
    read = partial(read_packable, dataset=dataset)
    images = DataLoader(range(len(dataset)), batch_size=None, collate_fn=read, num_workers=workers)
    archive, taken = None, set()
    number = 0
    with ExitStack() as shard:
        for index, data, fault in images:
            if fault is None:
                if archive is None or (size and archive.offset + len(data) > size):
                    shard.close()  # the complete shard gets its name
                    archive, taken = shard.enter_context(new_shard(out, number, size)), set()
                    add(archive, CLASSES, json.dumps(dataset.classes).encode())
                    number += 1
                store(archive, dataset, index, data, taken)
            yield dataset.member(index), fault


@contextmanager
def new_shard(out: str | Path, number: int, size: int | None) -> Iterator[tarfile.TarFile]:
    path = Path(out)
    if size:
        path = path.with_name(f'{path.stem}-{number:06}.tar')
    if path.exists():
        raise UserError(
            f'{path}: the file exists already; remove it, or choose another name',
            code='shard-exists',
        )
    with replacing(path) as temporary, tarfile.open(temporary, 'w') as archive:
        yield archive


def store(
    archive: tarfile.TarFile, dataset: ViewDataset, index: int, data: bytes, taken: set[str]
) -> None:
    """Add an image and its label. WebDataset cuts names at the first dot, so dots are replaced."""
    path = PurePosixPath(dataset.member(index))
    key = str(path.with_name(path.stem.replace('.', '_')))
    if key in taken:  # images whose names differ only in the extension
        key = f'{key}_{index}'
    taken.add(key)
    if dataset.classes:
        add(archive, f'{key}.cls', str(int(dataset.labels[index])).encode())
    add(archive, f'{key}.{file_kind(data)}', data)


def add(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
    # tarfile adds each member to a list, which would fill the memory after millions of images.
    archive.members.clear()
