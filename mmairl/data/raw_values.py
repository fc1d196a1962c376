"""Decoding of image files to their stored values, for data sets with `channels` set."""

from io import BytesIO

import cv2
import numpy as np
import torch
from torch import Tensor

from mmairl.data.decode import NPY, TIFF, UnreadableImage, faults_explained, installed


def decode_stored(data: bytes) -> Tensor:
    """Decode the content of an image file to its stored values, without conversion to RGB.

    The result is uint8, uint16 or float32, channels first. If a TIFF has several pages, each page
    is a channel. Otherwise, each sample of a pixel is a channel.
    """
    with faults_explained(data):
        if data.startswith(NPY):
            return channels_first(np.load(BytesIO(data), allow_pickle=False))
        return channels_first(from_tiff(data) if data.startswith(TIFF) else from_picture(data))


def channels_first(pixels: np.ndarray) -> Tensor:
    """Convert an array H x W or H x W x C to a tensor C x H x W. Floats become float32."""
    if pixels.dtype.kind == 'f':
        pixels = pixels.astype(np.float32)
        if not np.isfinite(pixels).all():
            raise UnreadableImage('has NaN or infinite values')
    pixels = pixels.astype(pixels.dtype.newbyteorder('='), copy=False)
    if pixels.ndim not in (2, 3) or pixels.dtype not in (np.uint8, np.uint16, np.float32):
        raise UnreadableImage(
            'is not an array height x width x channels of uint8, uint16 or float values'
        )
    return torch.from_numpy(np.array(np.atleast_3d(pixels).transpose(2, 0, 1), order='C'))


def from_tiff(data: bytes) -> np.ndarray:
    """Read the first series of a TIFF: one page, or several pages of the same shape.

    Pillow and OpenCV support at most four channels and read some files incorrectly.
    """
    with installed('tifffile imagecodecs', 'TIFF files (with channels set)'):
        from tifffile import TiffFile
    with TiffFile(BytesIO(data)) as file:
        series = file.series[0]
        axes = series.get_axes(squeeze=True)
        pixels = series.asarray().reshape(series.get_shape(squeeze=True))
    others = [number for number, axis in enumerate(axes) if axis not in 'YX']
    # More than three dimensions, such as stacks of RGB pages, are rejected by the caller.
    return np.moveaxis(pixels, others[0], 2) if len(others) == 1 else pixels


def from_picture(data: bytes) -> np.ndarray:
    """Read a JPEG, a PNG or another picture with OpenCV, which keeps 16 bits, unlike Pillow."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise UnreadableImage('cannot be decoded')
    # OpenCV's channels are blue, green, red and transparency.
    return pixels if pixels.ndim == 2 else pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]]
