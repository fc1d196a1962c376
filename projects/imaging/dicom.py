"""Read DICOM files with pydicom.

Gray values are either mapped through the window of the file, as for display, or scaled from the range of their stored bits.
"""

from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmairl.data.decode import UnreadableImage, faults_explained, installed
from mmairl.errors import explained

PREAMBLE = 128  # number of bytes before the magic number
MARK = b'DICM'


def is_dicom(data: bytes) -> bool:
    return data[PREAMBLE : PREAMBLE + len(MARK)] == MARK


def decode_dicom(data: bytes, as_stored: bool = False) -> Tensor:
    """Return the image of a DICOM file, channels first.

    By default, the image is uint8 RGB, and the window of the file is applied. If `as_stored`, a gray image has one channel
    of type uint16, and an image with colors or with a palette has three channels, of type uint8 for values of 8 bits and
    uint16 otherwise.
    """
    with faults_explained(data):
        pixels = dicom_pixels(data, as_stored)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None].repeat(1 if as_stored else 3, axis=2)
    return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order='C'))


def dicom_pixels(data: bytes, as_stored: bool) -> np.ndarray:
    """Return the pixels (H, W) of a gray image or (H, W, 3) of a color image. See `decode_dicom` for their types."""
    with installed('pydicom', 'DICOM files'):
        from pydicom import dcmread
        from pydicom.pixels import apply_color_lut
    file = dcmread(BytesIO(data))
    if 'PixelData' not in file:
        raise UnreadableImage('has no image')
    if int(file.get('NumberOfFrames') or 1) > 1:
        raise UnreadableImage('has several frames (save each frame to its own file)')
    missing_codec = (RuntimeError, NotImplementedError)
    with explained(
        'DICOM: pydicom cannot decode a file', 'install that package', missing_codec, code='dicom'
    ):
        pixels = file.pixel_array
    bits = int(file.BitsStored)
    if file.PhotometricInterpretation == 'PALETTE COLOR':
        pixels = apply_color_lut(pixels, file)
        bits = 8 * pixels.itemsize
    if bits > 16 and (as_stored or pixels.ndim == 3):
        raise UnreadableImage('has colors or stored values of more than 16 bits')
    if pixels.ndim == 3:
        if bits == 8:
            return pixels
        values = pixels / (2**bits - 1)
    else:
        values = stored_values(file, pixels) if as_stored else windowed_values(file, pixels)
    if file.PhotometricInterpretation == 'MONOCHROME1':  # the largest value means black
        values = 1 - values
    largest, kind = (65535, np.uint16) if as_stored else (255, np.uint8)
    return np.rint(largest * values.clip(0, 1)).astype(kind)


def stored_values(file: Any, pixels: np.ndarray) -> np.ndarray:
    """Map the smallest value that the stored bits can represent to 0, and the largest to 1."""
    levels = 2 ** int(file.BitsStored)
    # PixelRepresentation is 1 for signed values.
    lowest = -levels / 2 * int(file.PixelRepresentation)
    return (pixels - lowest) / (levels - 1)


def windowed_values(file: Any, pixels: np.ndarray) -> np.ndarray:
    """Map the values of the file's first window linearly to the range 0 to 1, as the standard defines (PS3.3 C.11.2.1.2).

    Without a window, map the smallest value of the image to 0 and the largest to 1.
    """
    from pydicom.pixels import apply_modality_lut

    values = apply_modality_lut(pixels, file).astype(np.float64)
    if file.get('RescaleSlope') == 0 or not np.isfinite(values).all():
        raise UnreadableImage('has no usable window or rescale slope')
    if file.get('WindowCenter') is None or file.get('WindowWidth') is None:
        return (values - values.min()) / max(np.ptp(values), 1e-6)
    center = float(np.atleast_1d(file['WindowCenter'].value)[0])
    width = float(np.atleast_1d(file['WindowWidth'].value)[0])
    if not np.isfinite([center, width]).all():
        raise UnreadableImage('has no usable window or rescale slope')
    return (values - (center - 0.5)) / max(width - 1, 1e-6) + 0.5
