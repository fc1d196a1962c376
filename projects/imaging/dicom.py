"""Read DICOM files with pydicom.

Gray values are either mapped through the window of the file, as for display, or scaled from the range of their stored bits.
"""

import zlib
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmairl.data.decode import (
    EXPANSION,
    Reason,
    UnreadableImage,
    faults_explained,
    installed,
    require_plausible_size,
)
from mmairl.errors import explained

PLAUSIBLE_PIXELS = 2**24  # lower than for other formats, because pixels are converted to float64
PREAMBLE = 128  # number of bytes before the magic number
MARK = b'DICM'
META_GROUP = 2
CHUNK = 2**20


def is_dicom(data: bytes) -> bool:
    return data[PREAMBLE : PREAMBLE + len(MARK)] == MARK


def decode_dicom(data: bytes, max_pixels: int, as_stored: bool = False) -> Tensor:
    """Return the image of a DICOM file, channels first.

    By default, the image is uint8 RGB, and the window of the file is applied. If `as_stored`, a gray image has one channel
    of type uint16, and an image with colors or with a palette has three channels, of type uint8 for values of 8 bits and
    uint16 otherwise.
    """
    with faults_explained(data):
        pixels = dicom_pixels(data, max_pixels, as_stored)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None].repeat(1 if as_stored else 3, axis=2)
    return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order='C'))


def dicom_pixels(data: bytes, max_pixels: int, as_stored: bool = False) -> np.ndarray:
    """Return the pixels (H, W) of a gray image or (H, W, 3) of a color image. See `decode_dicom` for their types."""
    with installed('pydicom', 'DICOM files'):
        from pydicom import dcmread
        from pydicom.pixels import apply_color_lut
    require_inflated_size(data, 2 * max(PLAUSIBLE_PIXELS, EXPANSION * len(data)) + CHUNK)
    file = dcmread(BytesIO(data))
    if 'PixelData' not in file:
        raise UnreadableImage(Reason.NO_IMAGE)
    if int(file.get('NumberOfFrames') or 1) > 1:
        raise UnreadableImage(Reason.FRAMES)
    if file.Rows * file.Columns > max_pixels:
        raise UnreadableImage(Reason.TOO_LARGE)
    require_plausible_size(file.Rows * file.Columns, data, PLAUSIBLE_PIXELS)
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
        raise UnreadableImage(Reason.NO_ARRAY)
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
        raise UnreadableImage(Reason.WINDOW)
    if file.get('WindowCenter') is None or file.get('WindowWidth') is None:
        return (values - values.min()) / max(np.ptp(values), 1e-6)
    center = float(np.atleast_1d(file['WindowCenter'].value)[0])
    width = float(np.atleast_1d(file['WindowWidth'].value)[0])
    if not np.isfinite([center, width]).all():
        raise UnreadableImage(Reason.WINDOW)
    return (values - (center - 0.5)) / max(width - 1, 1e-6) + 0.5


def require_inflated_size(data: bytes, limit: int) -> None:
    """Raise if a compressed (deflated) file expands to more than `limit` bytes. pydicom itself has no limit."""
    from pydicom.filereader import read_dataset
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    file = BytesIO(data)
    file.seek(PREAMBLE + len(MARK))
    meta = read_dataset(file, is_implicit_VR=False, is_little_endian=True, stop_when=_after_meta)
    if meta.get('TransferSyntaxUID') != DeflatedExplicitVRLittleEndian:
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    deflated = data[file.tell() :]
    count = 0
    while not inflater.eof:
        chunk = inflater.decompress(deflated, CHUNK)
        deflated = inflater.unconsumed_tail
        count += len(chunk)
        if count > limit:
            raise UnreadableImage(Reason.EXPANDS)
        if not chunk:
            raise UnreadableImage(Reason.CUT_SHORT)


def _after_meta(tag: int, *_: object) -> bool:
    return tag >> 16 != META_GROUP
