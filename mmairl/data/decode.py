"""Image files decoded to the pixels that a viewer would show; one at fault raises an UnreadableImage with the reason."""

import ctypes
import functools
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import IntEnum
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

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

MAX_PIXELS = 178_956_970  # where Pillow refuses too: half a gigabyte of RGB; ImageNet's largest has 61 million
# A file may hold PLAUSIBLE_PIXELS (a page at 600 dpi has 35 million), or EXPANSION per byte where that is more: a blank
# image of 100 kB can take a gigabyte and seconds. Photographs have 2 to 10 pixels per byte.
PLAUSIBLE_PIXELS = 36 * 10**6
EXPANSION = 32
# Each scan of a progressive JPEG visits all pixels. Encoders write about 10 scans; a scan without content has 10 bytes.
ORDINARY_SCANS = 16
MAX_SCANNED_PIXELS = 2**31  # about 2 seconds
START_OF_SCAN = b'\xff\xda'
BYTES_PER_PIXEL = 16  # the most that Pillow reads: four channels of 32 bits
# What is found under the names of images. Others in Pillow's list run programs (EPS) or take any file for theirs (TGA).
FORMATS = ('JPEG', 'PNG', 'WEBP', 'GIF', 'TIFF', 'BMP', 'PPM', 'AVIF', 'JPEG2000', 'DIB', 'ICO')
# Extensions that are not the format's name; MPO is a JPEG of several pictures, as phones write.
KINDS = {'JPEG': 'jpg', 'MPO': 'jpg', 'TIFF': 'tif', 'JPEG2000': 'jp2', 'DIB': 'bmp'}
NPY = b'\x93NUMPY'
ORIENTATION = 0x0112  # of EXIF
DICOM = b'DICM'  # behind 128 bytes of anything
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')


class Reason(IntEnum):
    """Why an image cannot be read: a code that fits into one byte, and a phrase."""

    phrase: str

    def __new__(cls, code: int, phrase: str) -> 'Reason':
        reason = int.__new__(cls, code)
        reason._value_, reason.phrase = code, phrase
        return reason

    BROKEN = 1, 'cannot be decoded'
    EMPTY = 2, 'is empty'
    VANISHED = 3, 'has vanished'
    TOO_LARGE = 4, 'is larger than max_pixels'
    NO_IMAGE = 5, 'is not recognised as an image'
    CUT_SHORT = 6, 'is cut short'
    FORBIDDEN = 7, 'may not be read by this user'
    NO_FILE = 8, 'is not a regular file'
    NOT_FINITE = 9, 'holds NaN or infinite values'
    NO_ARRAY = 10, 'is no array of height, width and channels in uint8, uint16 or floats'
    NOT_RGB = 11, 'is damaged, or a TIFF of other channels than RGB (then set channels of the data set)'
    FRAMES = 13, 'is a DICOM file of several frames (save each frame as a file of its own)'
    SCANS = 14, 'is a JPEG of too many scans (save it again)'
    EXPANDS = 15, 'is compressed to far less than images are (save it without compression)'
    PAGES = 12, 'is a TIFF of several pages (set channels of the data set to the number of pages, or keep one page)'


class UnreadableImage(UserError):
    """This one file is at fault: training takes another image in its place (data/training.py), evaluation counts it."""

    def __init__(self, reason: Reason | str, name: str = 'an image') -> None:
        # torch makes the error of a data worker anew, from its text.
        super().__init__(reason if isinstance(reason, str) else f'{name} {reason.phrase}; mend or remove it')
        self.reason = reason


def decode_bytes(data: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """A file as uint8 RGB, channels first, the right way up; the first frame of an animation.

    >>> decode_bytes(Path('cat.jpg').read_bytes()).shape  # doctest: +SKIP
    torch.Size([3, 375, 500])
    """
    with faults_explained(data), opened(data, max_pixels) as image:
        if image.format == 'TIFF' and image.n_frames > 1:
            refuse_pages(image)
        pixels = sound_jpeg(image, data)
        if pixels is None:
            turn_upright(image)
            pixels = np.array(as_rgb(image))
        if not pixels.size:
            raise UnreadableImage(Reason.BROKEN)
    return torch.from_numpy(pixels).permute(2, 0, 1)  # in memory pixel by pixel, as the first change of a view wants it


@contextmanager
def opened(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Pillow's image, of which the header is read, without warnings. Pillow refuses one of more pixels than twice its limit."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels / 2
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
    if pixels > max(least, EXPANSION * len(data)):
        raise UnreadableImage(Reason.EXPANDS)


def require_few_scans(data: bytes, pixels: int) -> None:
    """Raise if a JPEG has so many scans that it takes minutes to decode. The pixels are not decoded."""
    if data.count(START_OF_SCAN) > max(ORDINARY_SCANS, MAX_SCANNED_PIXELS // max(pixels, 1)):
        raise UnreadableImage(Reason.SCANS)


def decoder() -> str:
    """The package that decodes images, with its version."""
    pillow = f'Pillow {PIL.__version__}'
    return (
        f'simplejpeg {version("simplejpeg")} for upright JPEGs in RGB or grey, else {pillow}' if simplejpeg else pillow
    )


def refuse_pages(image: Image.Image) -> None:
    """Refuse a TIFF whose pages are channels, slices or times of one image; a smaller page is a preview."""
    size = image.size
    image.seek(1)
    if image.size == size:
        raise UnreadableImage(Reason.PAGES)
    image.seek(0)


def sound_jpeg(image: Image.Image, data: bytes) -> np.ndarray | None:
    """The pixels of an upright JPEG by simplejpeg, where it is installed: Pillow's to the last bit, in two thirds of the time.

    None for any other file, and for one that libjpeg warns of: what it holds, Pillow decides.
    """
    if simplejpeg is not None and image.format == 'JPEG' and image.mode in ('RGB', 'L'):
        with suppress(Exception):  # of a broken EXIF, and warnings
            if image.getexif().get(ORIENTATION, 1) == 1:
                return simplejpeg.decode_jpeg(data)
    return None


def turn_upright(image: Image.Image) -> None:
    image.load()
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # as many kinds as for broken pixels: a broken EXIF block says nothing of them
        pass


@contextmanager
def faults_explained(data: bytes) -> Iterator[None]:
    """Turn what a decoder raises into an UnreadableImage with its reason."""
    try:
        yield
    except (MemoryError, UserError):  # memory is the machine's fault: a file within max_pixels needs little
        raise
    except Exception as error:  # Pillow raises a dozen kinds for broken files: OSError, SyntaxError, struct.error, ...
        reason = Reason.BROKEN
        if isinstance(error, Image.DecompressionBombError):
            reason = Reason.TOO_LARGE
        elif isinstance(error, UnidentifiedImageError):
            reason = Reason.NOT_RGB if data.startswith(TIFF) else Reason.NO_IMAGE
        elif 'truncated' in str(error).lower():  # only the message tells a file that ends too soon
            reason = Reason.CUT_SHORT
        raise UnreadableImage(reason) from error


def installed(packages: str, reads: str) -> AbstractContextManager[None]:
    """Turn a failing import into one sentence on the packages to install."""
    name, install = packages.split()[0], f"pip install {packages}, or 'mmairl[own]'"
    return explained(f'the package {name} reads {reads}', install, (ImportError,))


def file_kind(data: bytes) -> str:
    """The extension that fits the content of an image file: 'jpg', 'png', 'webp', ..."""
    if data.startswith((NPY, *TIFF)):  # of which Pillow knows some
        return 'npy' if data.startswith(NPY) else 'tif'
    if data[128:132] == DICOM:
        return 'dcm'
    with Image.open(BytesIO(data), formats=formats()) as image:
        return KINDS.get(image.format, image.format.lower())


@functools.cache
def formats() -> tuple[str, ...]:
    """The formats of FORMATS that this Pillow is built with.

    Pillow's log and what libtiff prints are turned off: they do not name the file, and an exception follows anyway.
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
    """The image in RGB; transparent parts show white, as on the pages such images are made for.

    Without that, the hidden colour below would show, mostly black. Colour profiles are not applied, as in the data
    loaders that published numbers come from.
    """
    # Pillow may widen 16-bit PNG and PGM to its 32-bit mode, and cuts 16 bits to 8 by clipping.
    if image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM')):
        grey = np.rint(np.asarray(image, dtype=np.float32) * (255 / 65535)).astype(np.uint8)
        return Image.fromarray(grey).convert('RGB')
    if image.mode in ('I', 'F'):  # whose white nobody knows
        raise UnreadableImage(Reason.NOT_RGB)
    if image.mode == 'CMYK' and image.format == 'JPEG' and 'adobe' not in image.info:
        # Adobe's JPEGs store 255 for no ink and have a marker; Pillow treats every file as Adobe's.
        image = ImageChops.invert(image)
    if not image.has_transparency_data:
        return image.convert('RGB')
    image = image.convert('RGBA')
    return Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image).convert('RGB')
