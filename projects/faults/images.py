"""Damage image files at random, and count whether the data set reads each file or reports it as unreadable.

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
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmairl.data.datasets import FileDataset
from mmairl.data.decode import Reason, UnreadableImage
from projects.faults import damage

# Broken headers can state huge sizes. This limit bounds the memory of a reader.
MAX_PIXELS = 2**20
# A reader counts as hanging if it takes more seconds than this for one image. An image usually takes milliseconds.
PATIENCE = 60.0
# Width and height of the images. Neither is a multiple of the block and tile sizes of image formats.
SIZE = (37, 29)

KINDS = [
    damage.flip_bit,
    damage.change_bytes,
    damage.cut,
    damage.extend,
    damage.zero_block,
    damage.stretch_header,
]


def fuzz_images(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Write `count` damaged images into `folder`, load each through a FileDataset, and count the outcomes.

    A sound reader either returns the image (`read`) or raises UnreadableImage, which is counted under the phrase of its
    Reason. All other outcomes are faults of the reader: the result is not an RGB image (`misread`), another exception is
    raised (`escaped`), or the reading process `crashes` or `hangs`. `warnings` counts images for which something was
    printed, and `memory_mib` is the growth of the peak memory of the last reading process.
    """
    files = write_broken_images(count, seed, folder)
    data = FileDataset(folder, files, [-1] * count, None, max_unreadable=1, max_pixels=MAX_PIXELS)
    readers = Readers(data, count, folder / 'screen.txt').run()
    counts = Counter(Reason(code).phrase for code in readers.reasons.tolist() if code)
    totals = dict(zip(Readers.COUNTED, readers.counts.tolist()))
    return {
        **dict(sorted(counts.items())),
        **totals,
        'crashes': readers.crashes,
        'hangs': readers.hangs,
    }


class Readers:
    """Load all images one after the other in a child process. If the process dies, a new one starts at the following image."""

    COUNTED = ('read', 'escaped', 'misread', 'warnings', 'memory_mib')

    def __init__(self, data: FileDataset, count: int, screen: Path) -> None:
        self.data, self.count, self.screen = data, count, screen
        self.counts = torch.zeros(len(self.COUNTED), dtype=torch.int64).share_memory_()
        self.position = torch.zeros((), dtype=torch.int64).share_memory_()
        self.reasons = torch.zeros(count, dtype=torch.uint8).share_memory_()
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
        """Wait for the end of the process, and kill it if it makes no progress."""
        while process.is_alive():
            position = int(self.position)
            process.join(PATIENCE)
            if process.is_alive() and position == self.position:
                process.kill()
                process.join()
                self.hangs += 1
                return
        self.crashes += process.exitcode != 0

    def read_on(self) -> None:
        """Read the remaining images. Write all output, warnings and logs of the process to the file `screen`."""
        screen = os.open(self.screen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(screen, 1)
        os.dup2(screen, 2)
        sys.stderr = os.fdopen(2, 'w', buffering=1)
        # Without handlers, the logging module prints warnings to stderr.
        logging.getLogger().handlers = []
        warnings.simplefilter('always')
        # pytest replaces this function by one that stores warnings instead of printing them.
        warnings.showwarning = lambda message, *_, **__: print(message, file=sys.stderr)
        start_mib = peak_mib()
        while self.position < self.count:
            size_before = os.fstat(screen).st_size
            self.read_one(int(self.position))
            self.add('warnings', os.fstat(screen).st_size > size_before)
            self.counts[self.COUNTED.index('memory_mib')] = peak_mib() - start_mib
            self.position += 1

    def read_one(self, index: int) -> None:
        try:
            image = self.data.raw(index)
        except UnreadableImage as fault:
            self.reasons[index] = fault.reason
        except Exception:  # any other exception is a fault of the reader
            self.add('escaped')
        else:
            self.add('read' if sound(image) else 'misread')

    def add(self, name: str, number: int = 1) -> None:
        self.counts[self.COUNTED.index(name)] += number


def sound(image: Tensor) -> bool:
    pixels = image.numel() // 3
    return (
        image.dtype == torch.uint8
        and image.ndim == 3
        and len(image) == 3
        and 0 < pixels <= MAX_PIXELS
    )


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def write_broken_images(count: int, seed: int, folder: Path) -> list[str]:
    """Write `count` broken files and return their names. The same seed writes the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    draw, originals = random.Random(seed), whole_images(seed)
    names = []
    for index in range(count):
        name = draw.choice(sorted(originals))
        others_header = draw.choice(list(originals.values()))[: draw.randint(4, 256)]
        splice = lambda content, _, header=others_header: header + content[len(header) :]  # noqa: E731
        names.append(f'{index:06}_{name}')
        (folder / names[-1]).write_bytes(draw.choice([*KINDS, splice])(originals[name], draw))
    return names


def whole_images(seed: int) -> dict[str, bytes]:
    """Return the bytes of small images, one for each format and variant that has its own decoder."""
    values = np.random.default_rng(seed).integers(0, 256, (*SIZE, 4), dtype=np.uint8)
    # Half of the image has small values, so that encoders also use run lengths and palettes.
    values[: SIZE[0] // 2] //= 64
    alpha = Image.fromarray(values, 'RGBA')
    rgb, grey = alpha.convert('RGB'), alpha.convert('L')
    deep = Image.fromarray(values[..., :2].copy().view(np.uint16)[..., 0])
    floats = Image.fromarray(values[..., 0].astype(np.float32))
    frames = dict(save_all=True, append_images=[rgb.rotate(90), rgb.rotate(180)])
    exif = Image.Exif()
    exif.update({0x0112: 6, 0x010F: 'maker', 0x9003: '2000:01:01 00:00:00'})
    kinds = {
        'rgb.jpg': (rgb, dict(exif=exif)),
        'grey.jpg': (grey, {}),
        'progressive.jpg': (rgb, dict(progressive=True, quality=95)),
        'cmyk.jpg': (rgb.convert('CMYK'), {}),
        'rgb.png': (rgb, {}),
        'alpha.png': (alpha, dict(exif=exif)),
        'palette.png': (rgb.quantize(17), dict(transparency=3)),
        'deep.png': (deep, {}),
        'animated.png': (rgb, frames),
        'still.gif': (rgb.quantize(30), dict(transparency=1)),
        'animated.gif': (rgb, frames),
        'lossy.webp': (rgb, dict(exif=exif)),
        'lossless.webp': (alpha, dict(lossless=True)),
        'animated.webp': (rgb, frames),
        'raw.tif': (rgb, dict(exif=exif)),
        'deep.tif': (deep, {}),
        'float.tif': (floats, dict(compression='tiff_adobe_deflate')),
        'lzw.tif': (alpha, dict(compression='tiff_lzw')),
        'jpeg.tif': (rgb, dict(compression='jpeg')),
        'fax.tif': (grey.convert('1'), dict(compression='group4')),
        'packbits.tif': (grey, dict(compression='packbits')),
        'rgb.bmp': (rgb, {}),
        'palette.bmp': (rgb.quantize(17), {}),
        'bits.bmp': (grey.convert('1'), {}),
    }
    return {
        name: encoded(image, Path(name).suffix, options) for name, (image, options) in kinds.items()
    }


def encoded(image: Image.Image, suffix: str, options: dict) -> bytes:
    Image.init()
    buffer = io.BytesIO()
    image.save(buffer, Image.EXTENSION[suffix], **options)
    return buffer.getvalue()
