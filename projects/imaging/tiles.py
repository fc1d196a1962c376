"""Read tiles of images too large for memory: TIFFs with tifffile, whole slides with openslide."""

import os
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from mmairl.data.datasets import ViewDataset, image_files
from mmairl.data.decode import (
    UnreadableImage,
    as_rgb,
    channels_first,
    faults_explained,
    installed,
    to_unit,
)
from mmairl.errors import UserError, explained
from mmairl.registry import DATASETS

TIFFS = ('.tif', '.tiff')
SLIDES = ('.svs', '.ndpi', '.mrxs', '.scn', '.vms', '.vmu', '.bif')
STEP = 8  # background is detected on every eighth pixel of each row and column
OPEN_FILES = 8  # maximum number of large images that a process keeps open


@DATASETS.register_module()
class Tiles(ViewDataset):
    """A data set of unlabeled tiles, `size` x `size` pixels each, of the large images below `root`.

    The name of a tile contains its upper left corner, such as `ward/a.svs[y=512,x=1024]`. Incomplete tiles at the edges are
    left out, and so are background tiles. To detect background, every image is read once at the start, tile by tile.

    Args:
        root: The folder of the images, at any depth.
        size: Height and width of a tile in pixels.
        background: A tile is background if the standard deviation of each of its channels is below this value. Pixel
            values are from 0 to 1, and only every eighth pixel of each row and column counts.
        level: Level of the image pyramid. Level 0 has the full resolution.
        options: `views`, `channels` and `max_unreadable`, as in `ViewDataset`.

    Raises:
        UserError: If `size` or `level` is invalid, if no tile is found, or if an image lacks this level or has several pages.

    Example:
        >>> Tiles('slides', size=512, views=[[dict(type='CenterCrop', size=224)]])  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        size: int = 256,
        background: float = 0.02,
        level: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if size < 1 or level < 0:
            raise UserError(
                f"Tiles: size must be positive and level must not be negative ('size={size}, level={level}'); correct "
                'the numbers',
                code='bad-tiles',
            )
        self.root = Path(root)
        self.size = size
        self.level = level
        self.images = image_files(root, (*TIFFS, *SLIDES))
        corners = []
        for number in track(range(len(self.images)), 'looking for tiles'):
            height, width = self.scan(number).shape
            for y, x in product(
                range(0, height - size + 1, size), range(0, width - size + 1, size)
            ):
                if self.has_content(number, y, x, background):
                    corners.append((number, y, x))
        if not corners:
            raise UserError(
                f'{self.root.absolute()}: all tiles of {size} x {size} in {len(self.images)} images are background; '
                f'add images (NAME{", NAME".join((*TIFFS, *SLIDES))}), or set a smaller size or a smaller background',
                code='no-tiles',
            )
        self.corners = torch.tensor(corners)
        self.labels = torch.full((len(corners),), -1)

    def scan(self, number: int) -> 'Tiff | Slide':
        return open_scan(os.getpid(), str(self.root / self.images[number]), self.level)

    def has_content(self, number: int, y: int, x: int, background: float) -> bool:
        scan = self.scan(number)
        try:
            with faults_explained():
                tile = channels_first(scan.read(y, x, self.size)[::STEP, ::STEP])
        except UnreadableImage:  # the tile remains in the data set, so that training reports it
            return True
        return float(to_unit(tile).float().flatten(1).std(1).max()) >= background

    def path(self, index: int) -> Path:
        return self.root / self.images[self.corners[index, 0]]

    def member(self, index: int) -> str:
        number, y, x = self.corners[index].tolist()
        return f'{self.images[number]}[y={y},x={x}]'

    def name(self, index: int) -> str:
        return str(self.root / self.member(index))

    def raw(self, index: int) -> Tensor:
        number, y, x = self.corners[index].tolist()
        try:
            with faults_explained():
                tile = channels_first(self.scan(number).read(y, x, self.size))
        except UnreadableImage as fault:
            raise UnreadableImage(fault.reason, self.name(index)) from fault
        if self.as_stored:
            return self.checked_format(tile, index)
        if tile.dtype != torch.uint8 or len(tile) == 2:
            raise UserError(
                f'{self.name(index)}: not 8-bit RGB; set channels={len(tile)} of the data set',
                code='not-rgb',
            )
        return tile[:3] if len(tile) >= 3 else tile.expand(3, -1, -1)


@lru_cache(OPEN_FILES)
def open_scan(process: int, path: str, level: int) -> 'Tiff | Slide':
    """Open a large image, once per process."""
    is_slide = path.lower().endswith(SLIDES)
    return (Slide if is_slide else Tiff)(path, level)


class Tiff:
    """A TIFF of any size. To read a region, only the stored tiles or strips that overlap the region are decoded."""

    def __init__(self, path: str, level: int) -> None:
        with installed('tifffile', 'TIFF files'):
            from tifffile import TiffFile
        fault = f'{path}: not a readable TIFF'
        with explained(fault, 'fix or remove it', code='unreadable-tiff'):
            levels = TiffFile(path).series[0].levels
        if level >= len(levels):
            raise UserError(
                f'{path}: has {len(levels)} levels and no level {level}; set a smaller level',
                code='no-level',
            )
        if len(levels[level].pages) > 1:
            raise UserError(f'{path}: has several pages; keep one page', code='pages')
        self.page = levels[level].pages[0]
        self.path = path
        self.shape = self.page.imagelength, self.page.imagewidth
        with explained(fault, 'fix or remove it', code='unreadable-tiff'):
            self.mapped = self.page.asarray(out='memmap') if self.page.is_memmappable else None

    def read(self, y: int, x: int, size: int) -> np.ndarray:
        """Return a square as H x W x C."""
        if self.mapped is not None:
            pixels = np.moveaxis(self.mapped, 0, -1) if self.page.axes[0] == 'S' else self.mapped
            return np.array(pixels[y : y + size, x : x + size])
        page = self.page
        height = page.tilelength or page.rowsperstrip
        width = page.tilewidth or page.imagewidth
        rows = range(y // height, -(-(y + size) // height))
        columns = range(x // width, -(-(x + size) // width))
        planes = [slice(None)]
        if page.planarconfig == 2:  # each channel is stored in separate tiles or strips
            planes = [slice(sample, sample + 1) for sample in range(page.samplesperpixel)]
        square = np.zeros((size, size, page.samplesperpixel), page.dtype)
        for (plane, samples), row, column in product(enumerate(planes), rows, columns):
            part = self.decode(plane, row, column)
            if part is None:
                continue
            top = row * height - y
            left = column * width - x
            part = part[max(0, -top) : size - top, max(0, -left) : size - left]
            bottom = max(0, top) + part.shape[0]
            right = max(0, left) + part.shape[1]
            square[max(0, top) : bottom, max(0, left) : right, samples] = part
        return square

    def decode(self, plane: int, row: int, column: int) -> np.ndarray | None:
        """Return a stored tile or strip as H x W x samples, or None if a sparse file has no bytes for it."""
        page = self.page
        height, width = self.shape
        down = -(-height // (page.tilelength or page.rowsperstrip))
        across = -(-width // (page.tilewidth or page.imagewidth))
        index = (plane * down + row) * across + column
        if not page.databytecounts[index]:
            return None
        file = page.parent.filehandle
        file.seek(page.dataoffsets[index])
        data = file.read(page.databytecounts[index])
        return page.decode(data, index, jpegtables=page.jpegtables)[0][0]


class Slide:
    """A whole-slide image. Regions that were not scanned are white."""

    def __init__(self, path: str, level: int) -> None:
        with installed('openslide-python openslide-bin', 'whole slides'):
            from openslide import OpenSlide, OpenSlideError
        try:
            self.slide = OpenSlide(path)
            width, height = self.slide.level_dimensions[level]
        except (OpenSlideError, IndexError) as error:
            raise UserError(
                f'{path}: openslide cannot read level {level} ({error}); set a smaller level, or remove the file',
                code='no-level',
            ) from error
        self.level = level
        self.shape = height, width
        self.downsample = self.slide.level_downsamples[level]

    def read(self, y: int, x: int, size: int) -> np.ndarray:
        """Return a square as H x W x 3."""
        corner = round(x * self.downsample), round(y * self.downsample)
        return np.asarray(as_rgb(self.slide.read_region(corner, self.level, (size, size))))
