"""An image file as the pixels that a viewer would show, whatever its format stores."""

import ctypes
import functools
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageChops, UnidentifiedImageError
from torch import Tensor

from mmairl.data.reading import Reason, Unreadable, read_file

MAX_PIXELS = 178_956_970  # where Pillow refuses too: half a gigabyte of RGB; ImageNet's largest has 61 million
BYTES_PER_PIXEL = 16  # the most that Pillow reads: four channels of 32 bits
# What is found under the names of images. Others in Pillow's list run programs (EPS) or take any file for theirs (TGA).
FORMATS = ('JPEG', 'PNG', 'WEBP', 'GIF', 'TIFF', 'BMP', 'PPM', 'AVIF', 'JPEG2000', 'DIB', 'ICO')
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
CUSTOMARY_WHITES = (1, 255, 65535)  # of images whose format does not say where white is


def decode(path: Path, root: Path | None = None, max_pixels: int = MAX_PIXELS) -> Tensor:
    """An image file below `root` as uint8 RGB, channels first, the right way up; the first frame of an animation.

    Raises Unreadable, with the reason, where the file is at fault, and UserError where its file system is.

    >>> decode(Path('data/imagenet/val/n01440764/ILSVRC2012_val_00000293.JPEG')).shape
    """
    return decode_bytes(read_file(path, root or path.parent, BYTES_PER_PIXEL * max_pixels), max_pixels)


def decode_bytes(data: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """`decode` for a file that has been read."""
    try:
        with pillow_within(max_pixels), Image.open(BytesIO(data), formats=formats()) as image:
            image.load()
            pixels = np.array(upright(as_rgb(image), orientation(image)))
    except MemoryError:  # of the machine, not of the file: its pixels are few enough
        raise
    except Exception as error:  # Pillow raises a dozen kinds for broken files: OSError, SyntaxError, struct.error, ...
        raise Unreadable(reason_of(error)) from error
    if not pixels.size:
        raise Unreadable(Reason.BROKEN)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


@contextmanager
def pillow_within(max_pixels: int) -> Iterator[None]:
    """Pillow without its warnings, refusing by the header what has more pixels: it does so above twice its limit."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels / 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


@functools.cache
def formats() -> tuple[str, ...]:
    """Those of FORMATS that this Pillow has been built with, ready to be read."""
    Image.init()
    silence()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def silence() -> None:
    """Keep Pillow's log and libtiff, past Python, from saying what is wrong with a file without its name.

    Both end in an exception as well, and that one is kept with the file.
    """
    logging.getLogger('PIL').setLevel(logging.CRITICAL)
    maps = Path('/proc/self/maps')
    lines = maps.read_text(errors='surrogateescape').splitlines() if maps.exists() else []
    for library in {line.split(maxsplit=5)[-1] for line in lines if 'libtiff' in line}:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(library).TIFFSetErrorHandler(None)


def reason_of(error: Exception) -> Reason:
    if isinstance(error, Image.DecompressionBombError):
        return Reason.TOO_LARGE
    if isinstance(error, UnidentifiedImageError):
        return Reason.NO_IMAGE
    # Pillow tells a file that ends too soon from one with wrong bytes in its message only.
    return Reason.CUT_SHORT if re.search('truncated', str(error), re.IGNORECASE) else Reason.BROKEN


def orientation(image: Image.Image) -> object:
    """The EXIF orientation; an image whose EXIF block is broken is shown as it is stored."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # as many kinds as for broken pixels, and not worth an image
        return None


def upright(image: Image.Image, orientation: object) -> Image.Image:
    # The value is whatever the block holds, a fraction or a list as well.
    known = isinstance(orientation, int) and orientation in UPRIGHT
    return image.transpose(UPRIGHT[orientation]) if known else image


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB on white.

    White, because that is the page on which people drew and judged transparent images; to drop alpha instead would
    show what editors leave below it, mostly black or a colour that nobody has seen. Colour profiles are not applied:
    nor are they in the data loaders that published numbers come from.
    """
    if image.mode == 'F' or image.mode.startswith('I'):
        return Image.fromarray(eight_bits(image)).convert('RGB')
    if image.mode == 'CMYK' and image.format == 'JPEG' and 'adobe' not in image.info:
        # Adobe's JPEGs store 255 for no ink and say so by a marker; Pillow takes every file for one of Adobe's.
        image = ImageChops.invert(image)
    if not image.has_transparency_data:
        return image.convert('RGB')
    image = image.convert('RGBA')
    return Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image).convert('RGB')


def eight_bits(image: Image.Image) -> np.ndarray:
    """Greys of more than 8 bits as round(255 (v - black) / (white - black)), where Pillow's own conversion clips."""
    values = np.asarray(image, dtype=np.float32).copy()
    black, white = (0, 65535) if of_16_bits(image) else black_and_white(values)
    values -= black
    values *= 255 / (white - black)
    np.nan_to_num(values, copy=False, nan=0)
    return np.rint(values.clip(0, 255, out=values), out=values).astype(np.uint8)


def of_16_bits(image: Image.Image) -> bool:
    """Whether the format says that white is 65535; Pillow may widen 16-bit PNG and PGM to its 32-bit mode."""
    return image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM'))


def black_and_white(values: np.ndarray) -> tuple[float, float]:
    """0 and the least customary white that is not below any value; the extremes of the image where none fits."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0, 1
    low, high = float(finite.min()), float(finite.max())
    if low >= 0:
        for white in CUSTOMARY_WHITES:
            if high <= white:
                return 0, white
    return low, high if high > low else low + 1
