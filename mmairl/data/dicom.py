"""DICOM files by pydicom: shown through their window, or stored as the whole range of their bits."""

import zlib
from io import BytesIO

import numpy as np
import torch
from torch import Tensor

from mmairl.data.decode import EXPANSION, Reason, UnreadableImage, faults_explained, installed, require_plausible_size
from mmairl.errors import UserError

PLAUSIBLE_PIXELS = 2**24  # fewer than of other images, because their values become float64
PREAMBLE = 132  # bytes before the file's meta group
META_GROUP = 2
CHUNK = 2**20


def decode_dicom(data: bytes, max_pixels: int, stored: bool = False) -> Tensor:
    """A DICOM file as uint8 RGB through its window, or `stored` as uint16 of one channel, channels first."""
    with faults_explained(data):
        pixels = dicom_pixels(data, max_pixels, stored)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None].repeat(1 if stored else 3, axis=2)
    return torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order='C'))


def dicom_pixels(data: bytes, max_pixels: int, stored: bool = False) -> np.ndarray:
    """Return H x W, or H x W x 3 of a colour image: uint8 through the file's window, or uint16 of all values if `stored`.

    The first window is taken, by the linear rule of the standard (PS3.3 C.11.2.1.2). Where there is none, the image's least and
    largest value are black and white. Stored, the least number that its bits can hold is 0 and the largest 65535.
    """
    with installed('pydicom', 'DICOM files'):
        from pydicom import dcmread
        from pydicom.pixels import apply_modality_lut
    require_inflated_size(data, 2 * max(PLAUSIBLE_PIXELS, EXPANSION * len(data)) + CHUNK)
    file = dcmread(BytesIO(data))
    if 'PixelData' not in file:
        raise UnreadableImage(Reason.NO_IMAGE)
    if int(file.get('NumberOfFrames') or 1) > 1:
        raise UnreadableImage(Reason.FRAMES)
    if file.Rows * file.Columns > max_pixels:
        raise UnreadableImage(Reason.TOO_LARGE)
    require_plausible_size(file.Rows * file.Columns, data, PLAUSIBLE_PIXELS)
    try:
        pixels = file.pixel_array
    except (RuntimeError, NotImplementedError) as error:  # pydicom's, where no package for the compression is installed
        raise UserError(f'pydicom cannot decode a DICOM file ({" ".join(str(error).split())[:150]})') from error
    if pixels.ndim == 3:
        return pixels
    if stored:
        levels = 2 ** int(file.BitsStored)
        values = (pixels + levels / 2 * int(file.PixelRepresentation)) / (levels - 1)
    else:
        values = apply_modality_lut(pixels, file).astype(np.float64)
        if all(file.get(f'Window{name}') is not None for name in ('Center', 'Width')):
            centre, width = (float(np.atleast_1d(file[f'Window{name}'].value)[0]) for name in ('Center', 'Width'))
            values = (values - (centre - 0.5)) / max(width - 1, 1e-6) + 0.5
        else:
            values = (values - values.min()) / max(np.ptp(values), 1e-6)
    if file.PhotometricInterpretation == 'MONOCHROME1':  # its largest value is black
        values = 1 - values
    white, kind = (65535, np.uint16) if stored else (255, np.uint8)
    return np.rint(white * values.clip(0, 1)).astype(kind)


def require_inflated_size(data: bytes, limit: int) -> None:
    """Raise if a deflated file inflates to more than `limit` bytes. pydicom inflates without a limit."""
    from pydicom.filereader import read_dataset
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    file = BytesIO(data)
    file.seek(PREAMBLE)
    meta = read_dataset(file, is_implicit_VR=False, is_little_endian=True, stop_when=_after_meta)
    if meta.get('TransferSyntaxUID') != DeflatedExplicitVRLittleEndian:
        return
    inflater, count = zlib.decompressobj(-zlib.MAX_WBITS), 0
    deflated = data[file.tell() :]
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
