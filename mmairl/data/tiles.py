"""Tiles of images too large for memory: TIFFs by tifffile, whole slides by openslide. Each tile is named by its place."""

import os
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from mmairl.data.datasets import image_files
from mmairl.data.decode import Reason, UnreadableImage, as_rgb, faults_explained, installed
from mmairl.data.preprocess import ViewDataset, Views, to_unit
from mmairl.data.raw_values import channels_first, codec_installed
from mmairl.errors import UserError, explained, printable
from mmairl.registry import DATASETS

TIFFS = ('.tif', '.tiff')
SLIDES = ('.svs', '.ndpi', '.mrxs', '.scn', '.vms', '.vmu', '.bif')
STEP = 8  # every so many pixels tell whether a tile is background
OPEN = 8  # files a process keeps open


@DATASETS.register_module()
class Tiles(ViewDataset):
    """The whole `size` x `size` tiles of the large images below `root`, such as `ward/a.svs[y=512,x=1024]`, without labels.

    A tile is background, and left out, where no channel deviates by `background` or more (of values from 0 to 1, at every
    eighth pixel of a row and of a column). So every image is read once at the start, tile by tile. `level` is that of a
    pyramid: 0 is the finest. With `channels` tiles are read as they are stored.

    >>> Tiles('slides', size=512, views=[[dict(type='CenterCrop', size=224)]])  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        size: int = 256,
        views: Views | None = None,
        background: float = 0.02,
        level: int = 0,
        channels: int | None = None,
        max_unreadable: float = 0.01,
    ) -> None:
        super().__init__(views, channels)
        self.root, self.size, self.level, self.max_unreadable = Path(root), size, level, max_unreadable
        self.images, found = image_files(root, kinds=(*TIFFS, *SLIDES)), []
        for number in track(range(len(self.images)), 'looking for tiles'):
            height, width = self.scan(number).shape
            places = product(range(0, height - size + 1, size), range(0, width - size + 1, size))
            found += [(number, y, x) for y, x in places if self.shows(number, y, x, background)]
        if not found:
            raise UserError(
                f'{self.root.absolute()} holds no tile of {size} x {size} in its {len(self.images)} images that is not '
                f'background; it wants NAME{", NAME".join((*TIFFS, *SLIDES))}, a smaller size or a smaller background'
            )
        self.places, self.classes = torch.tensor(found), []
        self.labels = torch.full((len(found),), -1)
        self.take_depth()

    def scan(self, number: int) -> 'Tiff | Slide':
        return opened(os.getpid(), str(self.root / self.images[number]), self.level)

    def shows(self, number: int, y: int, x: int, background: float) -> bool:
        scan = self.scan(number)
        try:
            with faults_explained(b''):
                tile = channels_first(scan.read(y, x, self.size)[::STEP, ::STEP])
        except UnreadableImage:  # training names and counts it
            return True
        return float(to_unit(tile).float().flatten(1).std(1).max()) >= background

    def path(self, index: int) -> Path:
        return self.root / self.images[self.places[index, 0]]

    def member(self, index: int) -> str:
        number, y, x = self.places[index].tolist()
        return f'{self.images[number]}[y={y},x={x}]'

    def name(self, index: int) -> str:
        return str(self.root / self.member(index))

    def raw(self, index: int) -> Tensor:
        number, y, x = self.places[index].tolist()
        try:
            with faults_explained(b''):
                tile = channels_first(self.scan(number).read(y, x, self.size))
        except UnreadableImage as fault:
            raise UnreadableImage(fault.reason, printable(self.name(index))) from fault
        if self.as_stored:
            return self.alike(tile, index)
        if tile.dtype != torch.uint8 or len(tile) == 2:
            raise UserError(
                f'{printable(self.name(index))} is not RGB of 8 bits; set channels={len(tile)} of the data set'
            )
        return tile[:3] if len(tile) >= 3 else tile.expand(3, -1, -1)


@lru_cache(OPEN)
def opened(process: int, path: str, level: int) -> 'Tiff | Slide':
    """A large image; each process opens it by itself."""
    return (Slide if path.lower().endswith(SLIDES) else Tiff)(path, level)


class Tiff:
    """A TIFF of any size, of which the stored tiles or strips below a region are decoded and no more."""

    def __init__(self, path: str, level: int) -> None:
        with installed('tifffile', 'TIFF files'):
            from tifffile import TiffFile
        with explained(f'{printable(path)} is no TIFF that can be read', 'mend or remove it'):
            series = TiffFile(path).series[0].levels
        if not level < len(series):
            raise UserError(f'{printable(path)} has {len(series)} levels and no level {level}; give a smaller one')
        if len(series[level].pages) > 1:
            raise UserError(f'{printable(path)} {Reason.PAGES.phrase}')
        self.page, self.path = series[level].pages[0], path
        self.shape = self.page.imagelength, self.page.imagewidth
        self.whole = self.page.asarray(out='memmap') if self.page.is_memmappable else None

    def read(self, y: int, x: int, size: int) -> np.ndarray:
        """A square as H x W x C."""
        if self.whole is not None:
            whole = np.moveaxis(self.whole, 0, -1) if self.page.axes[0] == 'S' else self.whole
            return np.array(whole[y : y + size, x : x + size])
        page, file = self.page, self.page.parent.filehandle
        high, wide = page.tilelength or page.rowsperstrip, page.tilewidth or page.imagewidth
        down, across = (-(-length // step) for length, step in zip(self.shape, (high, wide)))
        square = np.zeros((size, size, page.samplesperpixel), page.dtype)
        planes = range(page.samplesperpixel if page.planarconfig == 2 else 1)
        for plane, row, column in product(
            planes, range(y // high, -(-(y + size) // high)), range(x // wide, -(-(x + size) // wide))
        ):
            index = (plane * down + row) * across + column
            if not page.databytecounts[index]:  # a sparse file has no bytes for it
                continue
            file.seek(page.dataoffsets[index])
            with codec_installed(self.path):
                part = page.decode(file.read(page.databytecounts[index]), index, jpegtables=page.jpegtables)[0]
            top, left = row * high - y, column * wide - x
            part = part[0, max(0, -top) : size - top, max(0, -left) : size - left]
            at = slice(max(0, top), max(0, top) + len(part)), slice(max(0, left), max(0, left) + part.shape[1])
            square[(*at, slice(plane, plane + 1) if len(planes) > 1 else slice(None))] = part
        return square


class Slide:
    """A whole slide; what was not scanned is white."""

    def __init__(self, path: str, level: int) -> None:
        with installed('openslide-python openslide-bin', 'whole slides'):
            from openslide import OpenSlide, OpenSlideError
        try:
            self.slide, self.level = OpenSlide(path), level
            width, height = self.slide.level_dimensions[level]
        except (OpenSlideError, IndexError) as error:
            raise UserError(f'{printable(path)} has no level {level} that openslide reads ({error})') from error
        self.shape, self.finer = (height, width), self.slide.level_downsamples[level]

    def read(self, y: int, x: int, size: int) -> np.ndarray:
        """A square as H x W x 3."""
        corner = round(x * self.finer), round(y * self.finer)
        return np.asarray(as_rgb(self.slide.read_region(corner, self.level, (size, size))))
