"""Test `decode_dicom` on files written by pydicom, with the window applied (`as_stored=False`) and with stored values."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.decode import UnreadableImage
from projects.imaging import decode_dicom

pydicom = pytest.importorskip('pydicom', reason='pydicom is not installed (pip install pydicom)')


def written(pixels: np.ndarray, kind: str = 'MONOCHROME2', bits: int = 12, **more) -> bytes:
    file = pydicom.Dataset()
    file.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    file.set_pixel_data(pixels, kind, bits)
    file.RescaleSlope = 1
    file.RescaleIntercept = -1024
    for name, value in more.items():
        setattr(file, name, value)
    file.save_as(buffer := BytesIO(), enforce_file_format=True)
    return buffer.getvalue()


@pytest.fixture
def scan() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4096, (20, 30), np.uint16)


def shown(pixels: np.ndarray, **more) -> np.ndarray:
    """Return the decoded image, whose channels are equal."""
    image = decode_dicom(written(pixels, **more))
    assert image.dtype == torch.uint8
    assert (image == image[:1]).all()
    return image[0].numpy()


def stretched(values: np.ndarray) -> np.ndarray:
    return 255 * ((values - values.min()) / np.ptp(values))


def test_window_equals_pydicoms(scan):
    window = dict(WindowCenter=[40, 600], WindowWidth=[400, 1500])
    file = pydicom.dcmread(BytesIO(written(scan, **window)))
    rescaled = pydicom.pixels.apply_modality_lut(scan, file)
    windowed = pydicom.pixels.apply_voi_lut(rescaled, file)
    # Some pixels of the scan are below and some above the window, so minimum and maximum of `windowed` are black and white.
    np.testing.assert_allclose(shown(scan, **window), stretched(windowed), atol=0.51)


def test_image_without_a_window_fills_the_range(scan):
    full_range = shown(scan)
    np.testing.assert_allclose(full_range, stretched(scan), atol=0.51)
    inverted = shown(scan, kind='MONOCHROME1')
    # If a value lies halfway between two integers, its inverse may be rounded in the other direction.
    assert (inverted == 255 - full_range).mean() > 0.99


def test_stored_values_are_exact(scan):
    signed = scan.astype(np.int16) - 2048
    for pixels, least in ((scan, 0), (signed, -2048)):
        image = decode_dicom(written(pixels), as_stored=True)
        assert image.dtype == torch.uint16
        assert image.shape == (1, 20, 30)
        back = np.rint(image[0].numpy() / 65535 * 4095) + least
        assert np.array_equal(back, pixels)


def test_palette_is_shown_in_its_colors():
    from pydicom.data import get_testdata_file

    path = get_testdata_file('examples_palette.dcm', download=False)
    file = pydicom.dcmread(path)
    colors = pydicom.pixels.apply_color_lut(file.pixel_array, file) / 65535
    data = Path(path).read_bytes()
    shown = decode_dicom(data).permute(1, 2, 0)
    np.testing.assert_allclose(shown / 255, colors, atol=0.51 / 255)
    stored = decode_dicom(data, as_stored=True).permute(1, 2, 0)
    np.testing.assert_allclose(stored.numpy() / 65535, colors, atol=1e-6)


@pytest.mark.parametrize('bits', [8, 12, 16])
def test_colors_of_any_depth_fill_the_range(bits):
    kind = np.uint8 if bits == 8 else np.uint16
    pixels = np.random.default_rng(0).integers(0, 2**bits, (6, 8, 3), kind)
    data = written(pixels, kind='RGB', bits=bits)
    shown = decode_dicom(data).permute(1, 2, 0)
    assert shown.dtype == torch.uint8
    np.testing.assert_allclose(shown / 255, pixels / (2**bits - 1), atol=0.51 / 255)
    stored = decode_dicom(data, as_stored=True).permute(1, 2, 0).numpy()
    assert stored.dtype == kind
    largest = 255 if bits == 8 else 65535
    np.testing.assert_allclose(stored / largest, pixels / (2**bits - 1), atol=1e-5)


def test_folder_reads_dicom_and_names_bad_files(scan, tmp_path):
    (tmp_path / 'a.dcm').write_bytes(written(scan))
    (tmp_path / 'b.dcm').write_bytes(written(np.stack([scan, scan])))
    (tmp_path / 'c.dcm').write_bytes(written(scan)[:600])
    dataset = UnlabelledFolder(tmp_path)
    assert dataset[0]['inputs'][0].shape == (3, 20, 30)
    assert UnlabelledFolder(tmp_path, channels=1).raw(0).dtype == torch.uint16
    with pytest.raises(UnreadableImage, match='b.dcm has several frames'):
        dataset[1]
    with pytest.raises(UnreadableImage, match='c.dcm'):
        dataset[2]
