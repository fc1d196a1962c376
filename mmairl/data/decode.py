"""Image files decoded to the pixels that a viewer would show, and the registry of readers for further formats."""

import ctypes
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import IntEnum
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
import torch
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError
from torch import Tensor

from mmairl.errors import UserError, explained

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

# Pillow's own limit: half a gigabyte of RGB. The largest image of ImageNet has 61 million pixels.
MAX_PIXELS = 178_956_970
# A file may hold PLAUSIBLE_PIXELS (a page at 600 dpi has 35 million), or EXPANSION per byte if that is more: a blank
# image of 100 kB can take a gigabyte and seconds. Photographs have 2 to 10 pixels per byte.
PLAUSIBLE_PIXELS = 36 * 10**6
EXPANSION = 32
# Each scan of a progressive JPEG visits all pixels. Encoders write about 10 scans; an empty scan has 10 bytes.
ORDINARY_SCANS = 16
MAX_SCANNED_PIXELS = 2**31  # about 2 seconds
START_OF_SCAN = b'\xff\xda'
BYTES_PER_PIXEL = 16  # the most that Pillow reads: four channels of 32 bits
# Formats we accept. Pillow can open others, but EPS executes PostScript and the TGA reader accepts arbitrary files.
FORMATS = ('JPEG', 'PNG', 'WEBP', 'GIF', 'TIFF', 'BMP', 'PPM', 'AVIF', 'JPEG2000', 'DIB', 'ICO')
EXTENSIONS = (
    '.jpg',
    '.jpeg',
    '.png',
    '.bmp',
    '.webp',
    '.gif',
    '.tif',
    '.tiff',
    '.ppm',
    '.pgm',
    '.dcm',
)
# Extensions that are not the format's name; MPO is a JPEG of several pictures, as phones write.
KINDS = {'JPEG': 'jpg', 'MPO': 'jpg', 'TIFF': 'tif', 'JPEG2000': 'jp2', 'DIB': 'bmp'}
NPY = b'\x93NUMPY'
ORIENTATION = 0x0112  # tag of EXIF
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')


class Reason(IntEnum):
    """Why an image cannot be read: a code that fits into one byte, and a phrase."""

    phrase: str

    def __new__(cls, code: int, phrase: str) -> 'Reason':
        reason = int.__new__(cls, code)
        reason._value_ = code
        reason.phrase = phrase
        return reason

    BROKEN = 1, 'cannot be decoded'
    EMPTY = 2, 'is empty'
    VANISHED = 3, 'has vanished'
    TOO_LARGE = 4, 'is larger than max_pixels'
    NO_IMAGE = 5, 'is not recognized as an image'
    CUT_SHORT = 6, 'is cut short'
    FORBIDDEN = 7, 'may not be read by this user'
    NO_FILE = 8, 'is not a regular file'
    NOT_FINITE = 9, 'holds NaN or infinite values'
    NO_ARRAY = 10, 'is no array of height, width and channels in uint8, uint16 or floats'
    NOT_RGB = (
        11,
        'is damaged, or a TIFF of other channels than RGB (then set channels of the data set)',
    )
    PAGES = (
        12,
        'is a TIFF of several pages (set channels of the data set to the number of pages, or keep one page)',
    )
    FRAMES = 13, 'is a DICOM file of several frames (save each frame as a file of its own)'
    SCANS = 14, 'is a JPEG of too many scans (save it again)'
    WINDOW = 16, 'is a DICOM file without a usable window or rescale slope'
    EXPANDS = 15, 'is compressed to far less than images are (save it without compression)'


class UnreadableImage(UserError):
    """An image file is at fault. Training takes another image in its place; evaluation counts it."""

    def __init__(self, reason: Reason | str, name: str = 'an image') -> None:
        # torch recreates the error of a data worker from its text.
        super().__init__(
            reason if isinstance(reason, str) else f'{name} {reason.phrase}; fix or remove it'
        )
        self.reason = reason


class Reader(NamedTuple):
    """A reader of one file format.

    Args:
        matches: Return whether the content of a file is of this format.
        decode: Take the content, `max_pixels` and `as_stored`, and return the image, channels first: uint8 RGB, or
            with `as_stored` the values of the file as uint8, uint16 or float32. Raise UnreadableImage if the file is
            at fault.
    """

    matches: Callable[[bytes], bool]
    decode: Callable[[bytes, int, bool], Tensor]


READERS: dict[str, Reader] = {}
"""Readers of formats that Pillow does not open, by file ending with its dot.

A module registers a reader when it is imported, and a config imports the module by ``custom_imports``. All functions of
a reader must be importable, because data workers may be started without this process's memory.
"""


def extensions() -> tuple[str, ...]:
    """Return the endings of image files."""
    return tuple(dict.fromkeys((*EXTENSIONS, *READERS)))


def ending_by_reader(data: bytes, readers: dict[str, Reader]) -> str | None:
    """Return the ending under which the reader for this content is registered; None if the content is for Pillow."""
    for ending, reader in readers.items():
        if reader.matches(data):
            return ending
    if data[128:132] == b'DICM':
        raise UserError(
            "DICOM: no reader is registered ('.dcm'); set custom_imports=dict(imports='projects.imaging') in the config, "
            'or import projects.imaging from a checkout of mmairl in your program',
            code='no-reader',
        )
    return None


def decode_bytes(data: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Return a file as uint8 RGB, channels first, upright; the first frame of an animation.

    >>> decode_bytes(Path('cat.jpg').read_bytes()).shape  # doctest: +SKIP
    torch.Size([3, 375, 500])
    """
    with faults_explained(data), open_image(data, max_pixels) as image:
        if image.format == 'TIFF' and image.n_frames > 1:
            refuse_pages(image)
        pixels = decode_jpeg(image, data)
        if pixels is None:
            turn_upright(image)
            pixels = np.array(as_rgb(image))
        if not pixels.size:
            raise UnreadableImage(Reason.BROKEN)
    # Memory stays pixel by pixel, the layout that the first transform of a view needs.
    return torch.from_numpy(pixels).permute(2, 0, 1)


@contextmanager
def open_image(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image with Pillow, which reads its header, and hide Pillow's warnings."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels / 2  # Pillow raises above twice its limit
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            with Image.open(BytesIO(data), formats=formats()) as image:
                require_plausible_size(image.width * image.height, data)
                if image.format in ('JPEG', 'MPO'):
                    require_few_scans(data, image.width * image.height)
                yield image
    finally:
        Image.MAX_IMAGE_PIXELS = before


def require_plausible_size(pixels: int, data: bytes, least: int = PLAUSIBLE_PIXELS) -> None:
    """Raise if a file is too small for its number of pixels."""
    if pixels > max(least, EXPANSION * len(data)):
        raise UnreadableImage(Reason.EXPANDS)


def require_few_scans(data: bytes, pixels: int) -> None:
    """Raise if a JPEG has so many scans that it takes minutes to decode. The pixels are not decoded."""
    if data.count(START_OF_SCAN) > max(ORDINARY_SCANS, MAX_SCANNED_PIXELS // max(pixels, 1)):
        raise UnreadableImage(Reason.SCANS)


def decoder() -> str:
    """Return the package that decodes images, with its version."""
    pillow = f'Pillow {PIL.__version__}'
    if simplejpeg is None:
        return pillow
    return f'simplejpeg {version("simplejpeg")} for upright JPEGs in RGB or grey, else {pillow}'


def refuse_pages(image: Image.Image) -> None:
    """Raise if the pages of a TIFF are channels, slices or times of one image. A smaller second page is a preview."""
    size = image.size
    image.seek(1)
    if image.size == size:
        raise UnreadableImage(Reason.PAGES)
    image.seek(0)


def decode_jpeg(image: Image.Image, data: bytes) -> np.ndarray | None:
    """Decode an upright JPEG with simplejpeg if it is installed: bitwise equal to Pillow in two thirds of the time.

    Return None for all other files, and if libjpeg warns; then Pillow decides.
    """
    if simplejpeg is None or image.format != 'JPEG' or image.mode not in ('RGB', 'L'):
        return None
    with suppress(Exception):  # a broken EXIF block, and libjpeg's warnings
        if image.getexif().get(ORIENTATION, 1) == 1:
            return simplejpeg.decode_jpeg(data)
    return None


def turn_upright(image: Image.Image) -> None:
    image.load()
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # a broken EXIF block raises many types, and the pixels are fine nevertheless
        pass


@contextmanager
def faults_explained(data: bytes) -> Iterator[None]:
    """Turn an exception of a decoder into an UnreadableImage with its reason."""
    try:
        yield
    except (MemoryError, UserError):  # a file within max_pixels needs little memory
        raise
    except Exception as error:  # Pillow raises a dozen types for broken files: OSError, SyntaxError, struct.error, ...
        raise UnreadableImage(_reason_of(error, data)) from error


def _reason_of(error: Exception, data: bytes) -> Reason:
    if isinstance(error, Image.DecompressionBombError):
        return Reason.TOO_LARGE
    if isinstance(error, UnidentifiedImageError):
        return Reason.NOT_RGB if data.startswith(TIFF) else Reason.NO_IMAGE
    if 'truncated' in str(error).lower():  # Pillow has no type for a file that ends too soon
        return Reason.CUT_SHORT
    return Reason.BROKEN


def installed(packages: str, reads: str) -> AbstractContextManager[None]:
    """Turn a failing import into a UserError that names the packages to install."""
    name = packages.split()[0]
    install = f"pip install {packages}, or 'mmairl[own]'"
    return explained(f'{reads} require {name}', install, (ImportError,), code='no-package')


def file_kind(data: bytes) -> str:
    """Return the extension that fits the content of an image file: 'jpg', 'png', 'webp', ..."""
    if data.startswith(NPY):
        return 'npy'
    if data.startswith(TIFF):  # Pillow opens only some of these
        return 'tif'
    if ending := ending_by_reader(data, READERS):
        return ending[1:]
    with Image.open(BytesIO(data), formats=formats()) as image:
        return KINDS.get(image.format, image.format.lower())


@functools.cache
def formats() -> tuple[str, ...]:
    """Return the formats of FORMATS that this Pillow is built with.

    Silence Pillow's log and libtiff's prints: they do not name the file, and an exception follows anyway.
    """
    Image.init()
    logging.getLogger('PIL').setLevel(logging.CRITICAL)
    maps = Path('/proc/self/maps')
    lines = maps.read_text(errors='surrogateescape').splitlines() if maps.exists() else []
    for library in {line.split(maxsplit=5)[-1] for line in lines if 'libtiff' in line}:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(library).TIFFSetErrorHandler(None)
    return tuple(name for name in FORMATS if name in Image.OPEN)


def as_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB, with white behind transparent parts, as on the pages that such images are made for.

    Otherwise the hidden color would show, which is mostly black. Color profiles are not applied, as in the data loaders
    of published numbers.
    """
    # Pillow may widen 16-bit PNG and PGM to its 32-bit mode, and converts 16 bits to 8 by clipping.
    if image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM')):
        gray = np.rint(np.asarray(image, dtype=np.float32) * (255 / 65535)).astype(np.uint8)
        return Image.fromarray(gray).convert('RGB')
    if image.mode in ('I', 'F'):  # value range is unknown
        raise UnreadableImage(Reason.NOT_RGB)
    if image.mode == 'CMYK' and image.format == 'JPEG' and 'adobe' not in image.info:
        # Adobe's JPEGs store 255 for no ink and have a marker; Pillow treats every file as Adobe's.
        image = ImageChops.invert(image)
    if not image.has_transparency_data:
        return image.convert('RGB')
    image = image.convert('RGBA')
    white = Image.new('RGBA', image.size, 'white')
    return Image.alpha_composite(white, image).convert('RGB')


def to_unit(images: Tensor) -> Tensor:
    """Scale integers to floats in [0, 1], where 1 is the largest 8-bit or 16-bit number. Return floats unchanged."""
    if images.is_floating_point():
        return images
    return images.float().div_(65535 if images.dtype is torch.uint16 else 255)
