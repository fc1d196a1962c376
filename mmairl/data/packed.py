"""Data sets written as shards: plain tar archives that WebDataset and Shards read, and any tar program unpacks.

Few files instead of a million are what network disks, quotas and copies to a node's own disk ask for. The bytes written
depend on the images and the settings alone. Each shard is there whole or not at all, and a killed packing goes on behind
the last one.
"""

import hashlib
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

from mmairl.data.datasets import FileDataset
from mmairl.data.decode import UnreadableImage, file_kind
from mmairl.data.shards.dataset import Shards
from mmairl.data.shards.formats import ABOUT, NOTE, content, members
from mmairl.data.training_images import unreadable_allowed
from mmairl.errors import UserError, printable
from mmairl.io import replacing

HEAD, TAIL = ABOUT + b'about.json', ABOUT + b'done.json'  # a shard's first and last member
OVERHEAD = 4 * tarfile.BLOCKSIZE  # headers and filling of an image and its label


@dataclass
class Smaller:
    """Makes images smaller: to this short side, as JPEG of this quality. Smaller ones stay as they are."""

    short_side: int
    quality: int

    def __call__(self, data: bytes, image: Tensor) -> bytes:
        height, width = image.shape[-2:]
        factor = self.short_side / min(height, width)
        if factor >= 1:
            return data
        size = round(width * factor), round(height * factor)
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(size, Image.Resampling.BICUBIC)
        picture.save(buffer := io.BytesIO(), 'JPEG', quality=self.quality)
        return buffer.getvalue()


def checked(index: int, dataset: FileDataset | Shards, smaller: Smaller | None) -> tuple[int, bytes, str, str | None]:
    """In a data worker: the file of an image as it will be stored, its extension, or why it cannot be read."""
    try:
        data = dataset.encoded(index)
        image = dataset.decoded(data, index)
    except UnreadableImage as fault:
        return index, b'', '', fault.reason.phrase
    data = smaller(data, image) if smaller else data
    return index, data, file_kind(data), None


def pack(
    dataset: FileDataset | Shards,
    out: str | Path,
    workers: int = 0,
    size: int | None = None,
    smaller: Smaller | None = None,
) -> Iterator[tuple[str, str | None]]:
    """Write the shards; yields each file and, where it is left out, why it cannot be read.

    With a `size` in bytes that a shard may have, OUT.tar becomes OUT-000000.tar and so on.
    """
    about = dict(classes=dataset.classes, images=len(dataset), source=digest(dataset), **vars(smaller or Smaller(0, 0)))
    number, done, left_out = written(Path(out), size, about)
    left, check = range(done, len(dataset)), partial(checked, dataset=dataset, smaller=smaller)
    pieces = iter(DataLoader(left, batch_size=None, collate_fn=check, num_workers=workers))
    image = next(pieces, None)
    while image is not None:
        with replacing(shard_at(Path(out), size, number)) as beside, tarfile.open(beside, 'w') as archive:
            add(archive, HEAD.decode(), json.dumps(about).encode())
            taken: set[str] = set()
            while image is not None:
                index, data, kind, fault = image
                name = dataset.member(index)
                if fault:
                    left_out += 1
                    if left_out > unreadable_allowed(len(dataset), dataset.max_unreadable):
                        raise UserError(
                            f'{left_out} of the first {index + 1} images in {dataset.root} cannot be read, {printable(name)} '
                            f'{fault}; mend or remove them, or raise --max-unreadable'
                        )
                else:
                    if taken and size and archive.offset + len(data) + OVERHEAD > size:
                        break
                    key = key_of(name, taken)
                    add(archive, f'{key}.{kind}', data)
                    if dataset.classes:
                        add(archive, f'{key}.cls', str(int(dataset.labels[index])).encode())
                yield name, fault
                image = next(pieces, None)
            done = len(dataset) if image is None else index
            add(archive, TAIL.decode(), json.dumps(dict(done=done, left_out=left_out)).encode())
        number += 1


def add(archive: tarfile.TarFile, path: str, data: bytes) -> None:
    """Append a member."""
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
    archive.members.clear()  # a million of them would fill the memory


def key_of(name: str, taken: set[str]) -> str:
    """The name without its extension, as WebDataset has it: no dot in the last part, and no name twice in a shard."""
    folder, slash, base = name.rpartition('/')
    key = folder + slash + (base.rpartition('.')[0] or base).replace('.', '_')
    if key in taken:
        key = folder + slash + base.replace('.', '_')
    while key in taken:
        key += '_'
    taken.add(key)
    return key


def shard_at(out: Path, size: int | None, number: int) -> Path:
    return out.with_name(f'{out.stem}-{number:06}.tar') if size else out


def written(out: Path, size: int | None, about: dict) -> tuple[int, int, int]:
    """The work of a killed packing: its whole shards, the images that it has read, and those that it left out."""
    number, done = 0, dict(done=0, left_out=0)
    while (shard := shard_at(out, size, number)).exists():
        said = said_by(shard) if size else {}
        if said.get(HEAD) != about or said[TAIL]['done'] == about['images']:
            raise UserError(f'{shard} exists already, of a whole packing or another; remove it, or give another name')
        number, done = number + 1, said[TAIL]
    return number, done['done'], done['left_out']


def said_by(shard: Path) -> dict[bytes, dict]:
    """The first and the last member of a shard, where it has such."""
    with shard.open('rb') as file:
        return {
            path: json.loads(content(file.fileno(), member, str(shard), NOTE))
            for path, member in members(file.fileno(), str(shard))
            if path in (HEAD, TAIL)
        }


def digest(dataset: FileDataset | Shards) -> str:
    """A digest of the names of all images."""
    names = hashlib.sha256()
    for index in range(len(dataset)):
        names.update(dataset.member(index).encode(errors='surrogateescape') + b'\0')
    return names.hexdigest()[:16]
