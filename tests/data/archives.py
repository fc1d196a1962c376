"""Drawn images, tar archives of them and a storage in memory, for the tests of shards."""

import io
import tarfile
from pathlib import Path

import fsspec
import numpy as np
from PIL import Image

from mmairl.data.packed import add


def png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels).save(buffer := io.BytesIO(), 'PNG')
    return buffer.getvalue()


def draw(path: Path, height: int, width: int) -> None:
    """Write noise whose seed is the name of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(list(path.name.encode())).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(drawn).save(path)


def archive(members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    with tarfile.open(fileobj=(written := io.BytesIO()), mode='w', format=form) as opened:
        for name, data in members.items():
            add(opened, name, data)
    return written.getvalue()


def tar(path: Path, members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(archive(members, form))
    return path


def numbered_shard(pixels: np.ndarray, first: int = 0) -> bytes:
    """Pack these images, numbered from `first` on, in three classes."""
    members = {}
    for number, image in enumerate(pixels, first):
        members |= {f'{number}.png': png(image), f'{number}.cls': b'%d' % (number % 3)}
    return archive(members)


class Dated(type(fsspec.filesystem('memory'))):
    """A storage dated://NAME in memory that states times of change and no ETags."""

    protocol = 'dated'

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace('dated://', 'memory://'))

    def info(self, path: str, **settings: object) -> dict:
        info = super().info(path, **settings)
        return info | dict(mtime=str(info.get('created')))


fsspec.register_implementation('dated', Dated, clobber=True)
