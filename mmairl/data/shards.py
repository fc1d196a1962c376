"""Images in tar archives, which are called shards. Shards are read in place, without unpacking.

WebDataset and any tar program can read the shards that `pack` writes.
"""

import glob
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch.utils.data import DataLoader

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import FORMATS, UnreadableImage, extensions, file_kind, retried
from mmairl.errors import UserError, explained
from mmairl.hardware import cache, cores
from mmairl.io import replacing
from mmairl.registry import DATASETS

SUFFIXES = ('.tar',)
# `pack` stores the names of the classes in this member. WebDataset skips names that start with two
# underscores.
CLASSES = '__mmairl__/classes.json'
OPEN = 64  # a process keeps at most this many shards open
# The name of a member up to the first dot, which is the key of an image, and the rest.
MEMBER = re.compile(r'(?:\./)?((?:.*/)?[^/.]*)\.?([^/]*)', re.DOTALL)


@DATASETS.register_module()
class Shards(ViewDataset):
    """Images in tar archives of WebDataset or tools/pack.py.

    The files of an image have the same name up to the first dot: the image itself, and optionally
    a `.cls` file with the number of its class. At first use, an index of all images is written to
    the user's cache. It is written again if a shard has changed.

    Args:
        root: One shard, a folder of shards, a pattern such as 'train-*.tar', or a list of these. A
            remote shard ('s3://...', 'https://...') is copied to `copies` before training.
        copies: A folder on this machine for copies of remote shards. Default: the user's cache.
        options: `views`, `channels` and `max_unreadable`, as in `ViewDataset`.

    Raises:
        UserError: If a shard is missing or damaged, or if no shard has an image.

    Example:
        >>> Shards('data/imagenet/imagenet-train-*.tar')  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path | Sequence[str],
        copies: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.shards = shards_at(root, copies)
        stamps = [(path, os.path.getsize(path), os.path.getmtime(path)) for path in self.shards]
        key = repr((stamps, extensions())).encode()
        key = hashlib.sha256(key).hexdigest()[:24]
        cached = cache() / 'shards' / f'{key}.npz'
        if not cached.exists():
            with replacing(cached) as temporary, temporary.open('wb') as file:
                np.savez(file, **build_index(self.shards))
        with np.load(cached) as index:
            self.index = dict(index)
        self.classes = self.index['classes'].tolist()
        self.labels = torch.from_numpy(self.index['label'])

    def name(self, index: int) -> str:
        return f'{self.shards[self.index["shard"][index]]}/{self.member(index)}'

    def member(self, index: int) -> str:
        """Return the name of the image in its shard."""
        return os.fsdecode(self.index['name'][index])

    def encoded(self, index: int) -> bytes:
        path = self.shards[self.index['shard'][index]]
        start, size = (int(self.index[key][index]) for key in ('start', 'size'))
        return retried(lambda: os.pread(opened(path).fileno(), size, start), path)

    def sizes(self) -> np.ndarray:
        return self.index['size']


@lru_cache(OPEN)
def opened(path: str) -> Any:
    """Open a shard once. Forked processes can share it, because pread has no common position."""
    return open(path, 'rb', buffering=0)


def shards_at(
    root: str | Path | Sequence[str],
    copies: str | Path | None = None,
) -> list[str]:
    """Return the local paths of the shards that `root` specifies. Copy remote shards first."""
    shards = []
    for place in [root] if isinstance(root, str | Path) else root:
        name = os.fspath(place)
        if '://' in name:
            found = local_copies(name, copies)
        else:
            pattern = f'{glob.escape(name)}/*.tar' if os.path.isdir(name) else name
            paths = [name] if os.path.isfile(name) else sorted(glob.glob(pattern))
            found = [os.path.abspath(path) for path in paths if path.endswith(SUFFIXES)]
        if not found:
            raise UserError(
                f'{name}: no shard found; set a file NAME.tar, a folder of such files, or a pattern '
                'such as train-*.tar (for Parquet, Arrow and the Hugging Face hub, set '
                'type=HubImages)',
                code='no-shards',
            )
        shards += found
    return shards


def local_copies(url: str, copies: str | Path | None) -> list[str]:
    """Copy remote shards that are not copied yet or have changed, and return their local paths."""
    folder = str(copies or cache() / 'shards')
    settings = dict(cache_storage=folder, check_files=True, expiry_time=None)
    remedy = (
        'install fsspec and its package for this storage, and check the address, the credentials in '
        'the environment and the connection'
    )
    with explained(f'{url}: cannot be copied', remedy, code='remote-shard'):
        import fsspec

        return fsspec.open_local([f'filecache::{url}'], mode='rb', filecache=settings)


def build_index(shards: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the place, name and label of each image in all shards, as columns, and the classes."""
    workers = min(cores(), len(shards)) if len(shards) > 1 else 0
    # Without batches, a data worker calls the collate function with one path at a time.
    loader = DataLoader(shards, batch_size=None, num_workers=workers, collate_fn=read_tar)
    rows, classes = [], []
    for number, (found, noted) in enumerate(track(loader, 'indexing shards', len(shards))):
        rows += [(number, *row) for row in found]
        classes = classes or noted
    if not rows:
        raise UserError(
            f'{shards[0]}: no shard contains an image; expected members NAME.jpg, or other images',
            code='no-images',
        )
    columns = map(np.array, zip(*rows))
    index = dict(zip(('shard', 'start', 'size', 'name', 'label'), columns))
    numbers = range(index['label'].max() + 1)
    index['classes'] = np.array(classes or list(map(str, numbers)), str)
    return index


class Member(tarfile.TarInfo):
    """A file in a shard. Reading only its name and size takes a quarter of tarfile's time."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> tarfile.TarInfo:
        is_plain = buf[156:157] == tarfile.REGTYPE and buf[124] < 128 and not buf[345]
        if not is_plain:  # another type, a size of more than 8 GiB, or a name in two parts
            return super().frombuf(buf, encoding, errors)
        member = cls(buf[:100].rstrip(b'\0').decode(encoding, errors))
        member.size = int(buf[124:135], 8)
        return member


def read_tar(path: str) -> tuple[list[tuple], list[str]]:
    """Return the start, size, name and label of each image of a shard, and the noted classes."""
    kinds = {'npy', 'mpo', *map(str.lower, FORMATS), *(ending[1:] for ending in extensions())}
    images, labels, classes = {}, {}, []
    remedy = 'copy or write the shard again, with numbers as labels'
    with (
        explained(f'{path}: cannot be read as a tar archive', remedy, code='damaged-shard'),
        tarfile.open(path, 'r:', tarinfo=Member) as archive,
    ):
        for member in archive:
            key, kind = MEMBER.fullmatch(member.name).groups()
            start, size = member.offset_data, member.size
            if kind.lower() in kinds:
                if key in images:
                    raise UserError(
                        f'{path}: two images have the name {key}; rename one of them',
                        code='duplicate-image',
                    )
                images[key] = start, size
            elif kind == 'cls' or member.name == CLASSES:
                # This takes a fifth of the time of archive.extractfile.
                content = os.pread(archive.fileobj.fileno(), size, start)
                if kind == 'cls':
                    labels[key] = int(content)
                else:
                    classes = json.loads(content)
    rows = [(*place, os.fsencode(key), labels.get(key, -1)) for key, place in images.items()]
    return rows, classes


def pack(
    dataset: ViewDataset,
    out: str | Path,
    workers: int = 0,
    shards: int = 1,
) -> Iterator[tuple[str, str | None]]:
    """Write the images of a data set into shards.

    Unreadable images are left out. For each image, yield its name and why it is unreadable (None if
    it is stored).

    Args:
        dataset: Images in files, shards or a Hugging Face data set.
        out: Path of the archive, such as OUT.tar. Several shards are OUT-000000.tar, OUT-000001.tar,
            ...
        workers: Number of processes that read and decode images.
        shards: Number of shards.

    Raises:
        UserError: If an archive exists already.
    """
    out = Path(out)
    for number, rows in enumerate(np.array_split(range(len(dataset)), shards)):
        path = out if shards == 1 else out.with_name(f'{out.stem}-{number:06}.tar')
        if path.exists():
            raise UserError(
                f'{path}: the file exists already; remove it, or choose another name',
                code='shard-exists',
            )
        read = partial(read_packable, dataset=dataset)
        images = DataLoader(rows.tolist(), batch_size=None, collate_fn=read, num_workers=workers)
        taken = set()
        with replacing(path) as temporary, tarfile.open(temporary, 'w') as archive:
            add(archive, CLASSES, json.dumps(dataset.classes).encode())
            for index, data, fault in images:
                member = PurePosixPath(dataset.member(index))
                if fault is None:
                    # WebDataset cuts names at the first dot, so dots are replaced.
                    key = str(member.with_name(member.stem.replace('.', '_')))
                    if key in taken:  # images whose names differ only in the extension
                        key = f'{key}_{index}'
                    taken.add(key)
                    if dataset.classes:
                        add(archive, f'{key}.cls', str(int(dataset.labels[index])).encode())
                    add(archive, f'{key}.{file_kind(data)}', data)
                yield str(member), fault


def read_packable(index: int, dataset: ViewDataset) -> tuple[int, bytes, str | None]:
    """Read an image and check that it is readable. Return its index, its file and the fault."""
    try:
        data = dataset.encoded(index)
        dataset.decoded(data, index)
    except UnreadableImage as fault:
        return index, b'', fault.reason
    return index, data, None


def add(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
    # tarfile adds each member to a list, which would fill the memory after millions of images.
    archive.members.clear()
