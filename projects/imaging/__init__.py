"""Read DICOM files, and tiles of images too large for memory. Importing this package registers both readers with mmairl."""

from mmairl.data.decode import READERS, Reader
from projects.imaging.dicom import decode_dicom, is_dicom
from projects.imaging.tiles import Tiles

READERS['.dcm'] = Reader(is_dicom, decode_dicom)

__all__ = ['Tiles', 'decode_dicom']
