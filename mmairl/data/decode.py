"""Decoding of image files to the pixels that a viewer shows, and the registry of readers for other formats."""

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
# A file may have PLAUSIBLE_PIXELS pixels (a page at 600 dpi has 35 million), or EXPANSION pixels per byte if that is more.
# Otherwise a blank image of 100 kB could take a gigabyte and several seconds. Photographs have 2 to 10 pixels per byte.
PLAUSIBLE_PIXELS = 36 * 10**6
EXPANSION = 32
# Each scan of a progressive JPEG visits all pixels. Encoders write about 10 scans. An empty scan takes only
# 10 bytes, so a small file could take minutes to decode.
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
# Formats whose extension differs from their name. Phones write MPO, a JPEG file with several pictures.
KINDS = {'JPEG': 'jpg', 'MPO': 'jpg', 'TIFF': 'tif', 'JPEG2000': 'jp2', 'DIB': 'bmp'}
NPY = b'\x93NUMPY'
ORIENTATION = 0x0112  # tag of EXIF
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')


class Reason(IntEnum):
    """The reason why an image cannot be read, with a phrase for messages. A code fits into one byte."""

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
    NO_ARRAY = 10, 'is not an array of height, width and channels in uint8, uint16 or floats'
    NOT_RGB = (
        11,
        'is damaged, or a TIFF that is not RGB (then set channels of the data set)',
    )
    PAGES = (
        12,
        'is a TIFF with several pages (set channels of the data set to their number, or keep one page)',
    )
    FRAMES = 13, 'is a DICOM file with several frames (save each frame to its own file)'
    SCANS = 14, 'is a JPEG with too many scans (save it again)'
    WINDOW = 16, 'is a DICOM file without a usable window or rescale slope'
    EXPANDS = (
        15,
        'has far more pixels than is plausible for its file size (save it without compression)',
    )


class UnreadableImage(UserError):
    """Raised for a faulty image file. Training replaces the image by another one. Evaluation skips and reports it."""

    def __init__(self, reason: Reason | str, name: str = 'an image') -> None:
        # torch recreates the error of a data worker from its text.
        super().__init__(
            reason if isinstance(reason, str) else f'{name} {reason.phrase}; fix or remove it'
        )
        self.reason = reason


class Reader(NamedTuple):
    """A reader of one file format.

    Args:
        matches: Returns whether the content of a file has this format.
        decode: Takes the content, `max_pixels` and `as_stored`. Returns the image, channels first: uint8 RGB, or with
            `as_stored` the file's values as uint8, uint16 or float32. Raises UnreadableImage if the file is at fault.
    """

    matches: Callable[[bytes], bool]
    decode: Callable[[bytes, int, bool], Tensor]


READERS: dict[str, Reader] = {}
"""Readers of formats that Pillow does not open, by file extension, such as '.npy'.

A module registers its readers when it is imported, and a config imports the module by ``custom_imports``. The functions of
a reader must be importable by name, because spawned data workers do not share this process's memory.
"""


def extensions() -> tuple[str, ...]:
    """Return the endings of image files."""
    return tuple(dict.fromkeys((*EXTENSIONS, *READERS)))


def ending_by_reader(data: bytes, readers: dict[str, Reader]) -> str | None:
    """Return the ending under which a reader for this content is registered; None if Pillow should read it."""
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
    """Decode a file to upright uint8 RGB, channels first. Of an animation, decode the first frame.

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
    # The memory keeps the channels of a pixel together, the layout that the first transform of a view needs.
    return torch.from_numpy(pixels).permute(2, 0, 1)


@contextmanager
def open_image(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image with Pillow, which reads only its header, and hide Pillow's warnings."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = max_pixels / 2  # because Pillow raises above twice its limit
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
    """Raise if a JPEG has so many scans that decoding would take minutes."""
    if data.count(START_OF_SCAN) > max(ORDINARY_SCANS, MAX_SCANNED_PIXELS // max(pixels, 1)):
        raise UnreadableImage(Reason.SCANS)


def decoder() -> str:
    """Return the packages that decode images, with their versions."""
    pillow = f'Pillow {PIL.__version__}'
    if simplejpeg is None:
        return pillow
    return f'simplejpeg {version("simplejpeg")} for upright JPEGs in RGB or grey, else {pillow}'


def refuse_pages(image: Image.Image) -> None:
    """Raise if the second page of a TIFF has the size of the first. If it is smaller, it is a preview."""
    size = image.size
    image.seek(1)
    if image.size == size:
        raise UnreadableImage(Reason.PAGES)
    image.seek(0)


def decode_jpeg(image: Image.Image, data: bytes) -> np.ndarray | None:
    """Decode an upright JPEG with simplejpeg: the pixels are those of Pillow, the time is two thirds.

    Return None if simplejpeg is not installed, for other files, and if libjpeg warns. Pillow then decodes the file.
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
    except (
        Exception
    ):  # a broken EXIF block raises many types, but the pixels of the image are intact
        pass


@contextmanager
def faults_explained(data: bytes) -> Iterator[None]:
    """Turn an exception of a decoder into an UnreadableImage with its reason."""
    try:
        yield
    except (MemoryError, UserError):  # a file within max_pixels cannot exhaust the memory by itself
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
    install = f'pip install {packages}'
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
    """Return the formats in FORMATS that this build of Pillow supports.

    This also silences Pillow's log and libtiff's output, which do not name the file and precede an exception anyway.
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
    """Convert an image to RGB, with white behind transparent parts, as on a web page.

    Without the white, the hidden color of transparent pixels would show, which is usually black. Color profiles are not
    applied, as in the data loaders behind published results.
    """
    # Pillow may read 16-bit PNG and PGM files in its 32-bit mode, and it clips 16 bits to 8 instead of scaling them.
    if image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM')):
        gray = np.rint(np.asarray(image, dtype=np.float32) * (255 / 65535)).astype(np.uint8)
        return Image.fromarray(gray).convert('RGB')
    if image.mode in ('I', 'F'):  # value range is unknown
        raise UnreadableImage(Reason.NOT_RGB)
    if image.mode == 'CMYK' and image.format == 'JPEG' and 'adobe' not in image.info:
        # JPEGs with Adobe's marker store 255 for no ink, and Pillow assumes this of every file.
        image = ImageChops.invert(image)
    if not image.has_transparency_data:
        return image.convert('RGB')
    image = image.convert('RGBA')
    white = Image.new('RGBA', image.size, 'white')
    return Image.alpha_composite(white, image).convert('RGB')


def to_unit(images: Tensor) -> Tensor:
    """Scale 8-bit or 16-bit integers to floats in [0, 1]. Return floats unchanged."""
    if images.is_floating_point():
        return images
    return images.float().div_(65535 if images.dtype is torch.uint16 else 255)
