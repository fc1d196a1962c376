"""Helpers for tests of shards: random images, tar archives of them, and a file system in memory."""

import io
import tarfile
from pathlib import Path

import fsspec
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from mmairl.data.packed import add


def png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels).save(buffer := io.BytesIO(), 'PNG')
    return buffer.getvalue()


def draw(path: Path, height: int, width: int) -> None:
    """Write an image of noise. The file name determines its seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(list(path.name.encode())).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(path)


def archive(members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode='w', format=form) as opened:
        for name, data in members.items():
            add(opened, name, data)
    return buffer.getvalue()


def tar(path: Path, members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(archive(members, form))
    return path


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 9, 7, 3), dtype=np.uint8)


def all_pixels(data: Dataset, workers: int = 0) -> np.ndarray:
    """Return the pixels of all 12 images of a data set."""
    (batch,) = DataLoader(data, batch_size=12, num_workers=workers)
    return batch['inputs'][0].permute(0, 2, 3, 1).numpy()


def numbered_shard(pixels: np.ndarray, first: int = 0) -> bytes:
    """Return an archive of these images, in three classes. The images are numbered from `first` on."""
    members = {}
    for number, image in enumerate(pixels, first):
        members |= {f'{number}.png': png(image), f'{number}.cls': b'%d' % (number % 3)}
    return archive(members)


class Dated(type(fsspec.filesystem('memory'))):
    """A file system in memory at dated://NAME. It reports modification times, but no ETags."""

    protocol = 'dated'

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace('dated://', 'memory://'))

    def info(self, path: str, **settings: object) -> dict:
        info = super().info(path, **settings)
        return info | dict(mtime=str(info.get('created')))


fsspec.register_implementation('dated', Dated, clobber=True)
