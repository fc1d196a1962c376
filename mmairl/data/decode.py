"""Decoding of image files to the RGB pixels that an image viewer shows.

The module also contains the registry of readers for formats that Pillow does not support.
"""

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

# Larger images count as unreadable. Pillow has the same limit, which is half a gigabyte of 8-bit RGB. The largest image of
# ImageNet has 61 million pixels.
MAX_PIXELS = 178_956_970
# An image may have PLAUSIBLE_PIXELS pixels (a page at 600 dpi has 35 million) or EXPANSION pixels per byte of its file,
# whichever is more. Without this limit, a blank image in a file of 100 kB could take a gigabyte of memory and several seconds
# to decode. Photographs have 2 to 10 pixels per byte.
PLAUSIBLE_PIXELS = 36 * 10**6
EXPANSION = 32
# A progressive JPEG consists of scans, and each scan is decoded by visiting all pixels. Encoders write about 10 scans. An
# empty scan takes only 10 bytes, so without a limit on scans, a small file could take minutes to decode.
ORDINARY_SCANS = 16
MAX_SCANNED_PIXELS = 2**31  # visiting this many pixels takes about 2 seconds
START_OF_SCAN = b'\xff\xda'
BYTES_PER_PIXEL = 16  # the largest pixels that Pillow reads have four channels of 32 bits
# The accepted formats. Pillow supports more, but opening an EPS file executes PostScript, and Pillow's TGA reader accepts
# arbitrary files.
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
# The file extension of each format whose name in Pillow differs from its extension. Some phones write MPO files, which are
# JPEG files with several pictures.
KINDS = {'JPEG': 'jpg', 'MPO': 'jpg', 'TIFF': 'tif', 'JPEG2000': 'jp2', 'DIB': 'bmp'}
NPY = b'\x93NUMPY'
ORIENTATION = 0x0112  # the EXIF tag that states how to rotate the image
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')


class Reason(IntEnum):
    """Reasons why an image cannot be read.

    A reason has a phrase for messages and a code. TrainingImages stores the code in one byte.
    """

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
    FORBIDDEN = 7, 'cannot be read by this user (check its permissions)'
    NO_FILE = 8, 'is not a regular file'
    NOT_FINITE = 9, 'holds NaN or infinite values'
    NO_ARRAY = (
        10,
        'is not an array of shape (height, width, channels) with uint8, uint16 or float values',
    )
    NOT_RGB = (
        11,
        'is damaged, or is a TIFF that is not RGB (to read such files, set channels of the data set)',
    )
    PAGES = (
        12,
        'is a TIFF with several pages (set channels of the data set to the number of pages, or keep one page)',
    )
    FRAMES = 13, 'is a DICOM file with several frames (save each frame to its own file)'
    SCANS = 14, 'is a JPEG with too many scans (save it as a baseline JPEG)'
    WINDOW = 16, 'is a DICOM file without a usable window or rescale slope'
    EXPANDS = (
        15,
        'has far more pixels than is plausible for its file size (save it without compression)',
    )


class UnreadableImage(UserError):
    """An error for an image file that cannot be read or decoded.

    Training uses another image in its place. Evaluation skips the image and reports it.
    """

    def __init__(self, reason: Reason | str, name: str = 'an image') -> None:
        # `reason` can also be the text of an error, because torch recreates the error of a data worker from its text.
        super().__init__(
            reason if isinstance(reason, str) else f'{name} {reason.phrase}; fix or remove it'
        )
        self.reason = reason


class Reader(NamedTuple):
    """Two functions that recognize and decode the files of one format.

    Args:
        matches: A function that takes the content of a file and returns whether the file has this format.
        decode: A function that takes the content of a file, `max_pixels` and `as_stored`. It returns the image, channels
            first. If `as_stored` is true, the image has the values in the file, as uint8, uint16 or float32. Otherwise, it
            is 8-bit RGB. The function raises UnreadableImage if the file is faulty.
    """

    matches: Callable[[bytes], bool]
    decode: Callable[[bytes, int, bool], Tensor]


READERS: dict[str, Reader] = {}
"""The registry of readers for formats that Pillow does not support. The keys are file extensions, such as '.dcm'.

A module adds its readers to this dictionary when it is imported, and a config imports the module by ``custom_imports``. The
functions of a reader must be importable by name, because spawned data workers do not share the memory of this process.
"""


def extensions() -> tuple[str, ...]:
    """Return the extensions by which image files are recognized, including those of registered readers."""
    return tuple(dict.fromkeys((*EXTENSIONS, *READERS)))


def ending_by_reader(data: bytes, readers: dict[str, Reader]) -> str | None:
    """Return the extension of the registered reader that recognizes this content, or None if there is no such reader.

    Raise if the content is a DICOM file and no reader recognizes it.
    """
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
    """Decode the content of an image file to 8-bit RGB, channels first, rotated as its EXIF data states.

    If the file is an animation, its first frame is decoded.

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
    # The channels of a pixel stay next to each other in memory, because the first transform of a view needs this layout.
    return torch.from_numpy(pixels).permute(2, 0, 1)


@contextmanager
def open_image(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image with Pillow without decoding it. Raise if decoding would take too much time or memory.

    Warnings of Pillow are hidden.
    """
    before = Image.MAX_IMAGE_PIXELS
    # Pillow raises only if an image has more than twice this number of pixels, so half of max_pixels is set.
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
    """Raise if the number of pixels is implausibly large for the size of the file."""
    if pixels > max(least, EXPANSION * len(data)):
        raise UnreadableImage(Reason.EXPANDS)


def require_few_scans(data: bytes, pixels: int) -> None:
    """Raise if a JPEG has so many scans that decoding would take more than a few seconds."""
    if data.count(START_OF_SCAN) > max(ORDINARY_SCANS, MAX_SCANNED_PIXELS // max(pixels, 1)):
        raise UnreadableImage(Reason.SCANS)


def decoder() -> str:
    """Return the packages that decode images, with their versions."""
    pillow = f'Pillow {PIL.__version__}'
    if simplejpeg is None:
        return pillow
    return f'simplejpeg {version("simplejpeg")} for upright JPEGs in RGB or grey, else {pillow}'


def refuse_pages(image: Image.Image) -> None:
    """Raise if a TIFF has a second page as large as the first page, because only the first page would be read.

    A second page of another size counts as a preview and is ignored.
    """
    size = image.size
    image.seek(1)
    if image.size == size:
        raise UnreadableImage(Reason.PAGES)
    image.seek(0)


def decode_jpeg(image: Image.Image, data: bytes) -> np.ndarray | None:
    """Decode a JPEG with simplejpeg. It returns the same pixels as Pillow in two thirds of the time.

    Return None if Pillow must decode the file instead: if simplejpeg is not installed, if the file is not an upright JPEG in
    RGB or gray, or if libjpeg warns about the file.
    """
    if simplejpeg is None or image.format != 'JPEG' or image.mode not in ('RGB', 'L'):
        return None
    with suppress(Exception):  # broken EXIF data and warnings of libjpeg raise errors of many types
        if image.getexif().get(ORIENTATION, 1) == 1:
            return simplejpeg.decode_jpeg(data)
    return None


def turn_upright(image: Image.Image) -> None:
    image.load()
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:
        # Broken EXIF data raises errors of many types, but the pixels of the image are intact.
        pass


@contextmanager
def faults_explained(data: bytes) -> Iterator[None]:
    """Turn an exception that a decoder raises for a faulty file into an UnreadableImage that states the reason."""
    try:
        yield
    except (MemoryError, UserError):
        # An image within max_pixels does not exhaust the memory, so a MemoryError is not the fault of the file.
        raise
    except Exception as error:
        # For broken files, Pillow raises errors of a dozen types: OSError, SyntaxError, struct.error, ...
        raise UnreadableImage(_reason_of(error, data)) from error


def _reason_of(error: Exception, data: bytes) -> Reason:
    if isinstance(error, Image.DecompressionBombError):
        return Reason.TOO_LARGE
    if isinstance(error, UnidentifiedImageError):
        return Reason.NOT_RGB if data.startswith(TIFF) else Reason.NO_IMAGE
    if 'truncated' in str(error).lower():  # Pillow has no error type for a file that is cut short
        return Reason.CUT_SHORT
    return Reason.BROKEN


def installed(packages: str, reads: str) -> AbstractContextManager[None]:
    """Turn an ImportError into a UserError that names the packages to install."""
    name = packages.split()[0]
    install = f'pip install {packages}'
    return explained(f'{reads} require {name}', install, (ImportError,), code='no-package')


def file_kind(data: bytes) -> str:
    """Return the file extension, such as 'jpg' or 'png', that fits the content of an image file."""
    if data.startswith(NPY):
        return 'npy'
    if data.startswith(TIFF):  # Pillow is not used here, because it does not open all TIFF files
        return 'tif'
    if ending := ending_by_reader(data, READERS):
        return ending[1:]
    with Image.open(BytesIO(data), formats=formats()) as image:
        return KINDS.get(image.format, image.format.lower())


@functools.cache
def formats() -> tuple[str, ...]:
    """Return the formats in FORMATS that this build of Pillow supports.

    Also silence the log messages of Pillow and libtiff. They do not name the file, and an exception follows anyway.
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
    """Convert an image to 8-bit RGB. Transparent parts are shown on a white background, as on a web page.

    Without a background, transparent pixels would show their hidden color, which is usually black. Color profiles are not
    applied, because the data loaders of published results do not apply them either.
    """
    # Pillow may open 16-bit PNG and PGM files in its 32-bit mode. Pillow's conversion to 8 bits clips values instead of scaling
    # them.
    if image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM')):
        gray = np.rint(np.asarray(image, dtype=np.float32) * (255 / 65535)).astype(np.uint8)
        return Image.fromarray(gray).convert('RGB')
    if image.mode in ('I', 'F'):  # the value range is unknown, so scaling is impossible
        raise UnreadableImage(Reason.NOT_RGB)
    if image.mode == 'CMYK' and image.format == 'JPEG' and 'adobe' not in image.info:
        # In a CMYK JPEG with Adobe's marker, 255 means no ink. Pillow assumes this of all CMYK JPEGs, so a file without the
        # marker must be inverted.
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
