"""Image files broken at random, and what the data set makes of them.

>>> from pathlib import Path
>>> fuzz_images(1000, seed=0, folder=Path('/tmp/fuzz'))['crashes']
0
"""

import io
import logging
import multiprocessing
import os
import random
import resource
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmairl.data.folders import FileDataset
from mmairl.data.images import Reason, UnreadableImage

MAX_PIXELS = 2**20  # broken headers ask for much more, and the memory that a reader takes is bounded by this
PATIENCE = 60.0  # seconds without an image before a reader counts as hanging; one takes milliseconds
SIZE = (37, 29)  # pixels of the drawn images; odd, so that blocks and tiles do not fit

Mutation = Callable[[bytearray, random.Random, list[bytes]], bytearray]


def fuzz_images(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Write `count` broken images into `folder`, load each through a FileDataset, and count what came of them.

    `read` and the phrases of Reason count images, and sum to `count` where none is `misread` (no RGB image came out),
    none `escaped` (an exception that the data set let through), and no process that reads `crashes` or `hangs`.
    `warnings` counts what reached the user's screen; `memory_mib` is what the memory of a reader grew by at its peak.
    """
    files = write_broken_images(count, seed, folder)
    data = FileDataset(folder, files, [-1] * count, None, max_unreadable=1, max_pixels=MAX_PIXELS)
    readers = Readers(data, count, folder / 'screen.txt').run()
    counts = Counter(Reason(code).phrase for code in readers.reasons.tolist() if code)
    totals = dict(zip(Readers.COUNTED, readers.counts.tolist()))
    return {**dict(sorted(counts.items())), **totals, 'crashes': readers.crashes, 'hangs': readers.hangs}


class Readers:
    """Processes that load the images one after the other; where one dies, the next goes on behind the image it died of."""

    COUNTED = ('read', 'escaped', 'misread', 'warnings', 'memory_mib')

    def __init__(self, data: FileDataset, count: int, screen: Path) -> None:
        self.data, self.count, self.screen = data, count, screen
        self.counts = torch.zeros(len(self.COUNTED), dtype=torch.int64).share_memory_()
        self.reasons = torch.zeros(count, dtype=torch.uint8).share_memory_()
        self.position = torch.zeros((), dtype=torch.int64).share_memory_()
        self.crashes = self.hangs = 0

    def run(self) -> 'Readers':
        while self.position < self.count:
            process = multiprocessing.get_context('fork').Process(target=self.read_on)
            process.start()
            self.watch(process)
            if process.exitcode != 0:
                self.position += 1
        return self

    def watch(self, process: multiprocessing.Process) -> None:
        """Wait for the end of the process, and end it if it stays at one image."""
        while process.is_alive():
            before = int(self.position)
            process.join(PATIENCE)
            if process.is_alive() and before == self.position:
                process.kill()
                process.join()
                self.hangs += 1
                return
        self.crashes += process.exitcode != 0

    def read_on(self) -> None:
        """The life of one process."""
        screen = os.open(self.screen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(screen, 1)
        os.dup2(screen, 2)
        logging.getLogger('PIL').addHandler(Heard(self.counts, self.COUNTED.index('warnings')))
        before = peak_mib()
        while self.position < self.count:
            printed = os.fstat(screen).st_size
            self.read_one(int(self.position))
            self.add('warnings', os.fstat(screen).st_size > printed)
            self.counts[self.COUNTED.index('memory_mib')] = peak_mib() - before
            self.position += 1

    def read_one(self, index: int) -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter('always')
            try:
                image = self.data.raw(index)
            except UnreadableImage as fault:
                self.reasons[index] = fault.reason
                return
            except Exception:  # any at all is a finding
                self.add('escaped')
                return
            finally:
                self.add('warnings', len(warned))
        self.add('read' if sound(image) else 'misread')

    def add(self, name: str, number: int = 1) -> None:
        self.counts[self.COUNTED.index(name)] += number


class Heard(logging.Handler):
    """Counts records that a user would see, at `counts[at]`."""

    def __init__(self, counts: Tensor, at: int) -> None:
        super().__init__(logging.WARNING)
        self.counts, self.at = counts, at

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[self.at] += 1


def sound(image: Tensor) -> bool:
    pixels = image.numel() // 3
    return image.dtype == torch.uint8 and image.ndim == 3 and len(image) == 3 and 0 < pixels <= MAX_PIXELS


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def write_broken_images(count: int, seed: int, folder: Path) -> list[str]:
    """The names of `count` broken files; the same seed writes the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    chance, whole = random.Random(seed), whole_images(seed)
    names = []
    for index in range(count):
        name = chance.choice(sorted(whole))
        broken = chance.choice(MUTATIONS)(bytearray(whole[name]), chance, list(whole.values()))
        names.append(f'{index:06}_{name}')
        (folder / names[-1]).write_bytes(broken)
    return names


def whole_images(seed: int) -> dict[str, bytes]:
    """Small images in the formats and the variants of them that are decoded by code of their own."""
    values = np.random.default_rng(seed).integers(0, 256, (*SIZE, 4), dtype=np.uint8)
    values[: SIZE[0] // 2] //= 64  # half of it smooth, so that run lengths and palettes are used as well
    alpha = Image.fromarray(values, 'RGBA')
    rgb, grey = alpha.convert('RGB'), alpha.convert('L')
    deep = Image.fromarray(values[..., :2].copy().view(np.uint16)[..., 0])
    floats = Image.fromarray(values[..., 0].astype(np.float32))
    more = dict(save_all=True, append_images=[rgb.rotate(90), rgb.rotate(180)])
    exif = Image.Exif()
    exif.update({0x0112: 6, 0x010F: 'maker', 0x9003: '2000:01:01 00:00:00'})
    drawn = {
        'rgb.jpg': (rgb, dict(exif=exif)),
        'grey.jpg': (grey, dict()),
        'progressive.jpg': (rgb, dict(progressive=True, quality=95)),
        'cmyk.jpg': (rgb.convert('CMYK'), dict()),
        'rgb.png': (rgb, dict()),
        'alpha.png': (alpha, dict(exif=exif)),
        'palette.png': (rgb.quantize(17), dict(transparency=3)),
        'deep.png': (deep, dict()),
        'animated.png': (rgb, more),
        'still.gif': (rgb.quantize(30), dict(transparency=1)),
        'animated.gif': (rgb, more),
        'lossy.webp': (rgb, dict(exif=exif)),
        'lossless.webp': (alpha, dict(lossless=True)),
        'animated.webp': (rgb, more),
        'raw.tif': (rgb, dict(exif=exif)),
        'deep.tif': (deep, dict()),
        'float.tif': (floats, dict(compression='tiff_adobe_deflate')),
        'lzw.tif': (alpha, dict(compression='tiff_lzw')),
        'jpeg.tif': (rgb, dict(compression='jpeg')),
        'fax.tif': (grey.convert('1'), dict(compression='group4')),
        'packbits.tif': (grey, dict(compression='packbits')),
        'rgb.bmp': (rgb, dict()),
        'palette.bmp': (rgb.quantize(17), dict()),
        'bits.bmp': (grey.convert('1'), dict()),
    }
    return {name: encoded(image, Path(name).suffix, options) for name, (image, options) in drawn.items()}


def encoded(image: Image.Image, suffix: str, options: dict) -> bytes:
    Image.init()
    buffer = io.BytesIO()
    image.save(buffer, Image.EXTENSION[suffix], **options)
    return buffer.getvalue()


def flip_bits(data: bytearray, chance: random.Random, others: list[bytes]) -> bytearray:
    """Up to 32 bits, half the time in the header, where they do most."""
    end = chance.choice([min(len(data), 128), len(data)])
    for _ in range(chance.randint(1, 32)):
        data[chance.randrange(end)] ^= 1 << chance.randrange(8)
    return data


def cut(data: bytearray, chance: random.Random, others: list[bytes]) -> bytearray:
    return data[: chance.randrange(len(data))]


def extend(data: bytearray, chance: random.Random, others: list[bytes]) -> bytearray:
    return data + chance.randbytes(chance.randint(1, 4096))


def splice(data: bytearray, chance: random.Random, others: list[bytes]) -> bytearray:
    """The beginning of another file on the rest of this one."""
    length = chance.randint(4, 256)
    return bytearray(chance.choice(others)[:length]) + data[length:]


def zero(data: bytearray, chance: random.Random, others: list[bytes]) -> bytearray:
    """A block that the disk lost."""
    start = chance.randrange(len(data))
    length = min(chance.randint(1, 512), len(data) - start)
    data[start : start + length] = bytes(length)
    return data


def stretch(data: bytearray, chance: random.Random, others: list[bytes]) -> bytearray:
    """A few bytes of the header at their largest: sizes, counts and offsets beyond the file."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(min(len(data), 64))
        length = min(chance.choice([1, 2, 4]), len(data) - start)
        data[start : start + length] = chance.choice([b'\xff\xff\xff\xff', b'\x7f\xff\xff\xff'])[:length]
    return data


MUTATIONS: list[Mutation] = [flip_bits, cut, extend, splice, zero, stretch]
