"""Reading of image files, and decoding to the RGB pixels that an image viewer shows or to stored values.

The module also contains the registry of readers for formats that Pillow does not support.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from mmairl.errors import UserError, explained

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

# The accepted formats. Pillow supports more, but opening an EPS file executes PostScript.
FORMATS = ('JPEG', 'PNG', 'WEBP', 'GIF', 'TIFF', 'BMP', 'PPM', 'AVIF', 'JPEG2000', 'DIB', 'ICO')
EXTENSIONS = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.gif', '.tif', '.tiff', '.ppm', '.pgm')
NPY = b'\x93NUMPY'
TIFF = (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+')
ORIENTATION = 0x0112  # the EXIF tag that states how to rotate the image
STORED = (
    'is damaged or not an RGB image; to read C channels as stored, set channels=C of the data set '
    'and model.backbone.in_channels=C'
)


class UnreadableImage(UserError):
    """An error for an image file that cannot be read or decoded.

    Training uses another image in its place. Evaluation skips the image and reports it.

    Args:
        reason: The reason as a predicate, such as 'is cut short'.
        name: The name of the image. Decoders leave it out, and the data set adds it.
    """

    def __init__(self, reason: str, name: str = '') -> None:
        message = f'{name} {reason}; fix or remove it' if name else reason
        super().__init__(message, code='unreadable-image')
        self.reason = reason


class Reader(NamedTuple):
    """Two functions that recognize and decode the files of one format.

    Args:
        matches: A function that takes the content of a file and returns whether the file has this
            format.
        decode: A function that takes the content of a file and `as_stored`. It returns the image,
            channels first. If `as_stored` is true, the image has the values in the file, as uint8,
            uint16 or float32. Otherwise, it is 8-bit RGB. The function raises UnreadableImage if
            the file is faulty.
    """

    matches: Callable[[bytes], bool]
    decode: Callable[[bytes, bool], Tensor]


READERS: dict[str, Reader] = {}
"""The registry of readers for formats that Pillow does not support. The keys are file extensions,
such as '.dcm'.

A module adds its readers to this dictionary when it is imported, and a config imports the module by
``custom_imports``. The functions of a reader must be importable by name, because spawned data
workers do not share the memory of this process.
"""


def extensions() -> tuple[str, ...]:
    """Return the extensions of image files, including those of registered readers."""
    return (*EXTENSIONS, *READERS)


def decode_bytes(data: bytes) -> Tensor:
    """Decode the content of an image file to 8-bit RGB, channels first, rotated as EXIF states.

    If the file is an animation, its first frame is decoded.

    >>> decode_bytes(Path('cat.jpg').read_bytes()).shape  # doctest: +SKIP
    torch.Size([3, 375, 500])
    """
    with faults_explained(data), open_image(data) as image:
        if image.format == 'TIFF' and image.n_frames > 1:
            raise UnreadableImage(STORED)  # several pages
        pixels = decode_jpeg(image, data)
        if pixels is None:
            image.load()
            with suppress(Exception):  # broken EXIF data raises errors of many types
                ImageOps.exif_transpose(image, in_place=True)
            pixels = np.array(as_rgb(image))
    # The channels of a pixel stay next to each other in memory, because the first transform of a
    # view needs this layout.
    return torch.from_numpy(pixels).permute(2, 0, 1)


def open_image(data: bytes) -> Image.Image:
    """Open an image with Pillow without decoding it."""
    # The log messages of Pillow do not name the file, and an exception follows anyway.
    logging.getLogger('PIL').setLevel(logging.CRITICAL)
    return Image.open(BytesIO(data), formats=FORMATS)


def decode_jpeg(image: Image.Image, data: bytes) -> np.ndarray | None:
    """Decode a JPEG with simplejpeg, which takes two thirds of Pillow's time for the same pixels.

    Return None if Pillow must decode the file instead: if simplejpeg is not installed, if the file
    is not an upright JPEG in RGB or gray, or if libjpeg warns about the file.
    """
    # Broken EXIF data and warnings of libjpeg raise errors of many types.
    with suppress(Exception):
        is_simple = image.format == 'JPEG' and image.mode in ('RGB', 'L')
        if simplejpeg and is_simple and image.getexif().get(ORIENTATION, 1) == 1:
            return simplejpeg.decode_jpeg(data)
    return None


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to 8-bit RGB. Transparent parts are shown on a white background.

    Without a background, transparent pixels would show their hidden color, which is usually black.
    Color profiles are not applied, because the data loaders of published results do not apply them.
    """
    # Pillow may open 16-bit PNG and PGM files in its 32-bit mode, and its conversion to 8 bits
    # clips values instead of scaling them.
    if image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM')):
        gray = np.asarray(image, dtype=np.float32) * (255 / 65535)
        image = Image.fromarray(np.rint(gray).astype(np.uint8))
        return image.convert('RGB')
    if image.mode in ('I', 'F'):  # the range of the values is unknown, so scaling is impossible
        raise UnreadableImage(STORED)
    if not image.has_transparency_data:
        return image.convert('RGB')
    image = image.convert('RGBA')
    white = Image.new('RGBA', image.size, 'white')
    return Image.alpha_composite(white, image).convert('RGB')


@contextmanager
def faults_explained(data: bytes | None = None) -> Iterator[None]:
    """Turn an exception that a decoder raises for a faulty file into an UnreadableImage."""
    try:
        yield
    except (MemoryError, UserError):
        raise
    except Exception as error:
        # For broken files, Pillow raises errors of a dozen types: OSError, SyntaxError, ...
        reason = f'cannot be decoded ({" ".join(str(error).split()) or type(error).__name__})'
        if data == b'':
            reason = 'is empty'
        elif isinstance(error, UnidentifiedImageError):
            is_stored = data.startswith((NPY, *TIFF))
            reason = STORED if is_stored else 'is not recognized as an image'
        raise UnreadableImage(reason) from error


def installed(packages: str, reads: str) -> AbstractContextManager[None]:
    """Turn an ImportError into a UserError that names the packages to install."""
    name = packages.split()[0]
    install = f'pip install {packages}'
    return explained(f'{reads} require {name}', install, (ImportError,), code='no-package')


def file_kind(data: bytes) -> str:
    """Return the file extension, such as 'jpg' or 'png', that fits the content of an image file."""
    if data.startswith(NPY):
        return 'npy'
    if data.startswith(TIFF):  # Pillow does not open all TIFF files
        return 'tif'
    for ending, reader in READERS.items():
        if reader.matches(data):
            return ending[1:]
    with open_image(data) as image:
        return image.format.lower()


def to_unit(images: Tensor) -> Tensor:
    """Scale 8-bit or 16-bit integers to floats in [0, 1]. Return floats unchanged."""
    if images.is_floating_point():
        return images
    return images.float().div_(65535 if images.dtype is torch.uint16 else 255)


PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds before the second try, the third try, ...
# These errors are the fault of the file. All others (ESTALE, EIO, ETIMEDOUT) may be temporary.
FAULTS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def read_file(path: Path, root: Path) -> bytes:
    """Return the content of an image file below `root`."""
    try:
        return retried(path.read_bytes, path)
    except FAULTS as error:
        if not (root.is_dir() and any(os.scandir(root))):  # for example, after a mount was lost
            raise UserError(
                f'{root}: the image folder was removed or became empty during the run; mount it '
                'again, and resume the run',
                code='lost-folder',
            ) from error
        raise UnreadableImage(f'cannot be read ({error.strerror})') from error


def retried(read: Callable[[], bytes], name: Path | str) -> bytes:
    """Call `read` and return its result. After a temporary failure, pause and call it again."""
    for pause in PAUSES:
        try:
            return read()
        except FAULTS:
            raise
        except OSError:
            time.sleep(pause)
    fault, remedy = f'{name}: cannot be read', 'check the mount, and resume the run'
    with explained(fault, remedy, (OSError,), FAULTS, code='no-answer'):
        return read()


def decode_stored(data: bytes) -> Tensor:
    """Decode the content of an image file to its stored values, without conversion to RGB.

    The result is uint8, uint16 or float32, channels first. If a TIFF has several pages, each page
    is a channel. Otherwise, each sample of a pixel is a channel.
    """
    with faults_explained(data):
        if data.startswith(NPY):
            pixels = np.load(BytesIO(data), allow_pickle=False)
        elif data.startswith(TIFF):
            pixels = from_tiff(data)
        else:
            # OpenCV keeps 16 bits, unlike Pillow.
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
            if pixels is None:
                raise UnreadableImage('cannot be decoded')
            if pixels.ndim == 3:  # blue, green, red and, in some images, transparency
                pixels = pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
        return channels_first(pixels)


def channels_first(pixels: np.ndarray) -> Tensor:
    """Convert an array H x W or H x W x C to a tensor C x H x W. Floats become float32."""
    is_float = pixels.dtype.kind == 'f'
    kind = np.float32 if is_float else pixels.dtype.newbyteorder('=')
    pixels = pixels.astype(kind, copy=False)
    is_known = pixels.dtype in (np.uint8, np.uint16, np.float32)
    is_finite = not is_float or np.isfinite(pixels).all()
    if not (is_known and is_finite) or pixels.ndim not in (2, 3):
        raise UnreadableImage(
            'is not an array height x width x channels of uint8, uint16 or finite float values'
        )
    return torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())


def from_tiff(data: bytes) -> np.ndarray:
    """Read the first series of a TIFF: one page, or several pages of the same shape.

    Pillow and OpenCV support at most four channels and read some files incorrectly.
    """
    with installed('tifffile imagecodecs', 'TIFF files (with channels set)'):
        from tifffile import TiffFile
    with TiffFile(BytesIO(data)) as file:
        series = file.series[0]
        pixels = series.asarray().reshape(series.get_shape(squeeze=True))
        has_pages = series.get_axes(squeeze=True).endswith('YX')
    # More than three dimensions, such as stacks of RGB pages, are rejected by the caller.
    return np.moveaxis(pixels, 0, 2) if has_pages and pixels.ndim == 3 else pixels
