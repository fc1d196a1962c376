"""An image file as the numbers that are in it, for the data sets with `channels=C`: nothing is converted or scaled.

Without `channels`, an image is what a viewer shows, RGB of 8 bits (data/images.py).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from math import prod

import cv2
import numpy as np
import torch
from torch import Tensor

from mmairl.data.decode import (
    BYTES_PER_PIXEL,
    NPY,
    TIFF,
    Reason,
    UnreadableImage,
    faults_explained,
    installed,
    open_image,
    turn_upright,
)
from mmairl.errors import UserError, printable

PNG = b'\x89PNG\r\n\x1a\n'
DEPTH, COLOURS, MANY_COLOURS = 24, 25, (2, 6)  # in a PNG's header, and RGB with and without transparency
MODES = ('L', 'LA', 'RGB', 'RGBA', 'I;16')  # of Pillow's, those whose values are those in the file


def decode_stored(data: bytes, max_pixels: int) -> Tensor:
    """A file as uint8, uint16 or float32, channels first. A TIFF's channels are its samples or its pages."""
    with faults_explained(data):
        read = from_npy if data.startswith(NPY) else from_tiff if data.startswith(TIFF) else from_picture
        return channels_first(read(data, max_pixels))


def channels_first(pixels: np.ndarray) -> Tensor:
    """An array H x W or H x W x C of uint8, uint16 or floats as a tensor C x H x W of uint8, uint16 or float32."""
    if pixels.dtype.kind == 'f':
        pixels = pixels.astype(np.float32)
        if not np.isfinite(pixels).all():
            raise UnreadableImage(Reason.NOT_FINITE)
    pixels = pixels.astype(pixels.dtype.newbyteorder('='), copy=False)
    if pixels.dtype not in (np.uint8, np.uint16, np.float32) or pixels.ndim not in (2, 3) or not pixels.size:
        raise UnreadableImage(Reason.NO_ARRAY)
    first = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.array(first, order='C'))


def require_size(shape: tuple[int, ...], height_width: tuple[int, ...], item: int, max_pixels: int) -> None:
    """Refuse an image by its header, before memory is taken."""
    if prod(height_width) > max_pixels or item * prod(shape) > BYTES_PER_PIXEL * max_pixels:
        raise UnreadableImage(Reason.TOO_LARGE)


def from_npy(data: bytes, max_pixels: int) -> np.ndarray:
    """An array H x W or H x W x C, as numpy.save writes it."""
    file = BytesIO(data)
    first = np.lib.format.read_magic(file) == (1, 0)
    header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = header(file)
    if dtype.hasobject or len(shape) not in (2, 3):
        raise UnreadableImage(Reason.NO_ARRAY)
    require_size(shape, shape[:2], dtype.itemsize, max_pixels)
    if len(data) - file.tell() < dtype.itemsize * prod(shape):
        raise UnreadableImage(Reason.CUT_SHORT)
    return np.frombuffer(data, dtype, prod(shape), file.tell()).reshape(shape, order='F' if by_columns else 'C')


def from_tiff(data: bytes, max_pixels: int) -> np.ndarray:
    """The first image of a TIFF. Pillow and OpenCV read four channels at most, and some of those wrongly."""
    with installed('tifffile', 'TIFF files as they are stored'):
        from tifffile import TiffFile
    logging.getLogger('tifffile').setLevel(logging.CRITICAL)  # it does not name the file, and an exception follows
    with TiffFile(BytesIO(data)) as file:
        image = file.series[0]
        sides = [(axis, length) for axis, length in zip(image.axes, image.shape) if axis in 'YX' or length > 1]
        others = [place for place, (axis, _) in enumerate(sides) if axis not in 'YX']
        if len(others) > 1 or len(sides) - len(others) != 2:
            raise UnreadableImage(Reason.NO_ARRAY)
        shape, height_width = tuple(length for _, length in sides), [length for axis, length in sides if axis in 'YX']
        require_size(shape, height_width, image.dtype.itemsize, max_pixels)
        with codec_installed('TIFF files'):
            pixels = image.asarray().reshape(shape)
    return np.moveaxis(pixels, others[0], 2) if others else pixels


@contextmanager
def codec_installed(name: str) -> Iterator[None]:
    """Turn what tifffile says where it lacks a codec into one sentence."""
    try:
        yield
    except ValueError as error:
        if 'imagecodecs' not in str(error):
            raise
        raise UserError(
            f'the package imagecodecs reads the compression of {printable(name)}; pip install imagecodecs'
        ) from error


def from_picture(data: bytes, max_pixels: int) -> np.ndarray:
    """A JPEG, PNG or whatever else Pillow opens, the right way up."""
    with open_image(data, max_pixels) as image:
        turn_upright(image)
        if data.startswith(PNG) and data[DEPTH] == 16 and data[COLOURS] in MANY_COLOURS:
            # Pillow keeps 8 bits of these, and OpenCV has blue first
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
            return pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
        if image.mode not in MODES:
            raise UnreadableImage(Reason.NO_ARRAY)
        return np.array(image)
