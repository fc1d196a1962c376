"""Decoded pixels and stored values of each image format, and the reasons why a file cannot be decoded."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from mmairl.data import decode
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.decode import (
    READERS,
    Reader,
    UnreadableImage,
    decode_bytes,
    decode_stored,
    file_kind,
    to_unit,
)

RANDOM = np.random.default_rng(0)
COLORS = RANDOM.integers(0, 256, (6, 10, 3), dtype=np.uint8)
DEEP = RANDOM.integers(0, 65536, (6, 10), dtype=np.uint16)


def encoded(image: Image.Image | np.ndarray, kind: str, **options) -> bytes:
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(buffer := BytesIO(), kind, **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return decode_bytes(data).permute(1, 2, 0).numpy()


def stored(data: bytes) -> np.ndarray:
    return decode_stored(data).permute(1, 2, 0).numpy()


@pytest.mark.parametrize('kind', ['PNG', 'BMP', 'TIFF', 'PPM', 'WEBP'])
def test_lossless_colors_are_exact(kind):
    data = encoded(COLORS, kind, lossless=True)
    assert np.array_equal(pixels(data), COLORS)
    assert np.array_equal(stored(data), COLORS)
    assert file_kind(data) == dict(TIFF='tif').get(kind, kind.lower())


@pytest.mark.parametrize('kind', ['PNG', 'TIFF', 'PPM'])
def test_sixteen_bits_are_scaled_or_stored(kind):
    data = encoded(DEEP, kind)
    expected = np.rint(DEEP / 257)[..., None].repeat(3, 2)
    assert np.array_equal(pixels(data), expected)
    assert np.array_equal(stored(data)[..., 0], DEEP)


def test_transparent_pixels_are_shown_on_white():
    values = RANDOM.integers(0, 256, (7, 9, 4), dtype=np.uint8)
    alpha = values[..., 3:] / 255
    data = encoded(values, 'PNG')
    assert np.abs(pixels(data) - (values[..., :3] * alpha + 255 * (1 - alpha))).max() <= 1
    assert np.array_equal(stored(data), values)
    palette = Image.new('P', (3, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    palette.putdata([0, 1, 2])
    alphas = pixels(encoded(palette, 'PNG', transparency=bytes([255, 0, 51])))[0]
    assert alphas.tolist() == [[10, 20, 30], [255] * 3, [218, 220, 222]]


@pytest.mark.parametrize('orientation', range(1, 9))
def test_orientation_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(COLORS, 'PNG', exif=exif)
    turned = COLORS.swapaxes(0, 1) if orientation > 4 else COLORS
    rows = slice(None, None, -1 if orientation in (3, 4, 7, 8) else 1)
    columns = slice(None, None, -1 if orientation in (2, 3, 6, 7) else 1)
    assert np.array_equal(pixels(data), turned[rows, columns])
    assert np.array_equal(stored(data), COLORS)


@pytest.mark.parametrize('mode', ['RGB', 'L', 'CMYK'])
def test_simplejpeg_equals_pillow(mode, monkeypatch):
    data = encoded(Image.fromarray(COLORS).resize((50, 40)).convert(mode), 'JPEG')
    fast = pixels(data)
    monkeypatch.setattr(decode, 'simplejpeg', None)
    assert np.array_equal(fast, pixels(data))


def test_first_frame_is_decoded_but_not_first_page():
    frames = [Image.new('RGB', (8, 6), color) for color in ('red', 'blue')]
    gif = encoded(frames[0], 'GIF', save_all=True, append_images=frames[1:])
    assert (pixels(gif) == [255, 0, 0]).all()
    with pytest.raises(UnreadableImage, match='set channels'):
        decode_bytes(encoded(frames[0], 'TIFF', save_all=True, append_images=frames[1:]))


@pytest.mark.parametrize('kind', [np.uint8, np.uint16, np.float32])
def test_arrays_and_tiffs_of_five_channels_are_exact(kind):
    tifffile = pytest.importorskip('tifffile', reason='tifffile is not installed')
    values = (RANDOM.random((6, 9, 5)) * 200).astype(kind)
    np.save(npy := BytesIO(), values)
    assert np.array_equal(stored(npy.getvalue()), values)
    for image, settings in (
        (values, dict(planarconfig='contig')),
        (values.transpose(2, 0, 1), dict(planarconfig='separate')),
    ):
        tifffile.imwrite(file := BytesIO(), image, photometric='minisblack', **settings)
        assert np.array_equal(stored(file.getvalue()), values)
    tifffile.imwrite(pages := BytesIO(), values.transpose(2, 0, 1), photometric='minisblack')
    assert np.array_equal(stored(pages.getvalue()), values)


def npy(values: np.ndarray) -> bytes:
    np.save(buffer := BytesIO(), values)
    return buffer.getvalue()


def test_five_channels_as_rgb_name_the_keys_to_set():
    tifffile = pytest.importorskip('tifffile', reason='tifffile is not installed')
    values = np.zeros((6, 9, 5), np.uint8)
    tifffile.imwrite(file := BytesIO(), values, photometric='minisblack', planarconfig='contig')
    for data in (file.getvalue(), npy(values)):
        with pytest.raises(UnreadableImage, match=r'channels=C .* model.backbone.in_channels=C'):
            decode_bytes(data)


FAULTS = {
    'empty': (decode_bytes, b'', 'is empty'),
    'text': (decode_bytes, b'no image', 'not recognized'),
    'cut': (decode_bytes, encoded(np.tile(COLORS, (20, 20, 1)), 'JPEG')[:900], 'truncated'),
    'PostScript': (
        decode_bytes,
        b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n',
        'not recognized',
    ),
    'float TIFF': (decode_bytes, encoded(np.float32([[0, 0.5]]), 'TIFF'), 'set channels'),
    'NaN': (decode_stored, npy(np.full((4, 4), np.nan)), 'finite float'),
    'int64': (decode_stored, npy(np.zeros((4, 4), np.int64)), 'uint8, uint16 or finite float'),
    'four dimensions': (decode_stored, npy(np.zeros((2, 4, 4, 3), np.uint8)), 'height x width'),
    'pickle': (decode_stored, npy(np.array([object()])), 'allow_pickle'),
    'stored text': (decode_stored, b'no image', 'cannot be decoded'),
}


@pytest.mark.parametrize('case', FAULTS)
def test_fault_states_its_reason(case):
    read, data, reason = FAULTS[case]
    with pytest.raises(UnreadableImage, match=reason):
        read(data)


def test_integers_fill_zero_to_one():
    assert to_unit(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0, 1]
    assert to_unit(torch.tensor([65535], dtype=torch.uint16)).tolist() == [1]
    assert to_unit(torch.tensor([3.5])).tolist() == [3.5]


def is_text(data: bytes) -> bool:
    return data.startswith(b'TEXT')


def decode_text(data: bytes, as_stored: bool) -> torch.Tensor:
    return torch.full((1 if as_stored else 3, 2, 2), data[4], dtype=torch.uint8)


def test_reader_of_another_format_is_used(tmp_path, monkeypatch):
    monkeypatch.setitem(READERS, '.txi', Reader(is_text, decode_text))
    (tmp_path / 'a.txi').write_bytes(b'TEXT\x07')
    assert UnlabelledFolder(tmp_path).raw(0).flatten().tolist() == [7] * 12
    assert UnlabelledFolder(tmp_path, channels=1).raw(0).shape == (1, 2, 2)
    assert file_kind(b'TEXT\x07') == 'txi'
