"""Drawn images and tar archives of them, for the tests of shards."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from mmairl.data.packed import add


def png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels).save(buffer := io.BytesIO(), 'PNG')
    return buffer.getvalue()


def draw(path: Path, height: int, width: int) -> None:
    """Noise that the file's name is the seed of."""
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
