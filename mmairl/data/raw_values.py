"""Decoding of image files to their stored values, without scaling or conversion to RGB, for data sets with `channels` set."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from math import prod

import cv2
import numpy as np
import torch
from torch import Tensor

from mmairl.data.decode import (
    BYTES_PER_PIXEL,
    NPY,
    ORIENTATION,
    TIFF,
    Reason,
    UnreadableImage,
    faults_explained,
    installed,
    open_image,
    turn_upright,
)
from mmairl.errors import UserError

PNG = b'\x89PNG\r\n\x1a\n'
DEPTH = 24  # offset of the bit depth in a PNG file
COLOR_TYPE = 25  # offset of the color type in a PNG file
GRAY_ALPHA = 4  # PNG's color type for gray with transparency
# PNG's color types of which Pillow does not keep 16 bits: RGB, gray with transparency, and RGB with transparency.
CHANGED_TYPES = (2, GRAY_ALPHA, 6)
NETPBM = (b'P5', b'P6')  # the first bytes of binary PGM and PPM files
# In these modes, Pillow does not change the stored values, except that it scales gray values of 2 or 4 bits in PNG files and
# values in ASCII files of the formats PGM and PPM.
MODES = ('L', 'LA', 'RGB', 'RGBA', 'I;16')


def decode_stored(data: bytes, max_pixels: int) -> Tensor:
    """Decode the content of an image file to its stored values: uint8, uint16 or float32, channels first.

    If a TIFF has several pages, each page is a channel. Otherwise, each sample of a pixel is a channel.
    """
    if data.startswith(NPY):
        read = from_npy
    elif data.startswith(TIFF):
        read = from_tiff
    else:
        read = from_picture
    with faults_explained(data):
        return channels_first(read(data, max_pixels))


def channels_first(pixels: np.ndarray) -> Tensor:
    """Convert an H x W or H x W x C array to a C x H x W tensor. Floats of any precision become float32."""
    if pixels.dtype.kind == 'f':
        pixels = pixels.astype(np.float32)
        if not np.isfinite(pixels).all():
            raise UnreadableImage(Reason.NOT_FINITE)
    pixels = pixels.astype(pixels.dtype.newbyteorder('='), copy=False)
    is_image = pixels.ndim in (2, 3) and pixels.size
    if not is_image or pixels.dtype not in (np.uint8, np.uint16, np.float32):
        raise UnreadableImage(Reason.NO_ARRAY)
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.array(planes, order='C'))


def require_size(
    shape: Sequence[int], height_width: Sequence[int], itemsize: int, max_pixels: int
) -> None:
    """Raise if the shape in the header of a file is too large. Call this before allocating memory for the image."""
    if prod(height_width) > max_pixels or itemsize * prod(shape) > BYTES_PER_PIXEL * max_pixels:
        raise UnreadableImage(Reason.TOO_LARGE)


def from_npy(data: bytes, max_pixels: int) -> np.ndarray:
    """Read a file that numpy.save wrote. The array must have the shape H x W or H x W x C."""
    file = BytesIO(data)
    if np.lib.format.read_magic(file) == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject or len(shape) not in (2, 3):
        raise UnreadableImage(Reason.NO_ARRAY)
    require_size(shape, shape[:2], dtype.itemsize, max_pixels)
    if len(data) - file.tell() < dtype.itemsize * prod(shape):
        raise UnreadableImage(Reason.CUT_SHORT)
    values = np.frombuffer(data, dtype, prod(shape), file.tell())
    return values.reshape(shape, order='F' if is_fortran else 'C')


def from_tiff(data: bytes, max_pixels: int) -> np.ndarray:
    """Read the first series of a TIFF, which contains one page or several pages of the same shape, with tifffile.

    Pillow and OpenCV are not used, because they support at most four channels and read some files incorrectly.
    """
    with installed('tifffile', 'TIFF files (with channels set)'):
        from tifffile import TiffFile
    # The log messages of tifffile do not name the file, and an exception follows anyway.
    logging.getLogger('tifffile').setLevel(logging.CRITICAL)
    with TiffFile(BytesIO(data)) as file:
        image = file.series[0]
        axes = image.get_axes(squeeze=True)
        shape = image.get_shape(squeeze=True)
        height_width = [length for axis, length in zip(axes, shape) if axis in 'YX']
        channel_axes = [number for number, axis in enumerate(axes) if axis not in 'YX']
        if len(channel_axes) > 1 or len(height_width) != 2:
            raise UnreadableImage(Reason.NO_ARRAY)
        require_size(shape, height_width, image.dtype.itemsize, max_pixels)
        with codec_installed('TIFF files'):
            pixels = image.asarray().reshape(shape)
    return np.moveaxis(pixels, channel_axes[0], 2) if channel_axes else pixels


@contextmanager
def codec_installed(name: str) -> Iterator[None]:
    """Turn tifffile's error for a missing codec into a UserError."""
    try:
        yield
    except ValueError as error:
        if 'imagecodecs' not in str(error):
            raise
        raise UserError(
            f'{name}: decompressing a file requires imagecodecs; pip install imagecodecs',
            code='no-codec',
        ) from error


def from_picture(data: bytes, max_pixels: int) -> np.ndarray:
    """Read a JPEG, a PNG or another file that Pillow supports, rotated as its EXIF data states."""
    with open_image(data, max_pixels) as image:
        orientation = 1
        with suppress(Exception):  # broken EXIF data raises errors of many types
            orientation = image.getexif().get(ORIENTATION, 1)
        turn_upright(image)
        is_deep_png = (
            data.startswith(PNG) and data[DEPTH] == 16 and data[COLOR_TYPE] in CHANGED_TYPES
        )
        if is_deep_png or data.startswith(NETPBM):
            # Pillow keeps only 8 of the 16 bits of these PNG files, and scales values of NETPBM files. OpenCV keeps the
            # values, but its channels are in the order blue, green, red, transparency. If a PNG file is gray with
            # transparency, the first three channels are equal.
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
            if pixels.ndim == 3:
                is_gray = is_deep_png and data[COLOR_TYPE] == GRAY_ALPHA
                pixels = pixels[:, :, [0, 3] if is_gray else [2, 1, 0, 3][: pixels.shape[2]]]
            return oriented(pixels, orientation)
        if image.mode not in MODES:
            raise UnreadableImage(Reason.NO_ARRAY)
        return np.array(image)


def oriented(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate and mirror an H x W or H x W x C array as the EXIF orientation (1 to 8) states.

    OpenCV ignores the orientation if it reads a file with IMREAD_UNCHANGED.
    """
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
