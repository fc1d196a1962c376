"""Each image format: the decoded pixels, and the reasons why a file cannot be decoded."""

import itertools
import struct
import zlib
from io import BytesIO
from unittest.mock import Mock

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from mmairl.data import decode
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.decode import (
    MAX_PIXELS,
    ORDINARY_SCANS,
    READERS,
    START_OF_SCAN,
    Reader,
    Reason,
    UnreadableImage,
    decode_bytes,
    file_kind,
    require_few_scans,
    require_plausible_size,
)
from mmairl.errors import UserError

RANDOM = np.random.default_rng(0)
COLORS = RANDOM.integers(0, 256, (6, 10, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data: bytes, **options) -> np.ndarray:
    return decode_bytes(data, **options).permute(1, 2, 0).numpy()


def reason(data: bytes, **options) -> Reason:
    with pytest.raises(UnreadableImage) as caught:
        decode_bytes(data, **options)
    return caught.value.reason


def near(values: np.ndarray, reference: np.ndarray, levels: float) -> bool:
    return values.shape == reference.shape and np.abs(values - np.asarray(reference, dtype=float)).max() <= levels


def test_lossless_colors_are_exact_in_all_formats():
    for kind in ('PNG', 'BMP', 'TIFF', 'PPM', 'WEBP'):
        decoded = decode_bytes(encoded(Image.fromarray(COLORS), kind, lossless=True))
        assert decoded.dtype == torch.uint8
        assert torch.equal(decoded, torch.from_numpy(COLORS).permute(2, 0, 1))


def test_sixteen_bit_grays_are_scaled_not_clipped():
    """The expected gray of a stored value v is round(255 v / 65535), computed in integers."""
    gray = np.array([[0, 1, 128, 129, 255, 256], [257, 4095, 40_000, 65_278, 65_407, 65_535]], dtype=np.uint16)
    rows = [[(2 * 255 * int(value) + 65_535) // (2 * 65_535) for value in row] for row in gray]
    reference = np.stack([rows] * 3, axis=2)
    for kind in ('PNG', 'TIFF', 'PPM'):
        assert np.array_equal(pixels(encoded(Image.fromarray(gray), kind)), reference)
    high_byte_first = encoded(Image.frombytes('I;16B', gray.shape[::-1], gray.astype('>u2').tobytes()), 'TIFF')
    assert high_byte_first[:2] == b'MM' and np.array_equal(pixels(high_byte_first), reference)


def test_tiff_that_is_not_rgb_advises_channels():
    tiffs = [encoded(Image.fromarray(values), 'TIFF') for values in (np.float32([[0, 0.5]]), np.int32([[0, 257]]))]
    tifffile = pytest.importorskip('tifffile', reason='tifffile is not installed (pip install tifffile)')
    five_channels = np.zeros((6, 9, 5), np.uint16)
    tifffile.imwrite(file := BytesIO(), five_channels, photometric='minisblack', planarconfig='contig')
    for tiff in (*tiffs, file.getvalue()):
        with pytest.raises(
            UnreadableImage, match='a TIFF that is not RGB .to read such files, set channels of the data set'
        ):
            decode_bytes(tiff)


def test_adobe_inks_are_inverted():
    # These are amounts of cyan, magenta, yellow and black, where 0 is no ink.
    inks = np.array([200, 30, 90, 60])
    data = encoded(Image.new('CMYK', (16, 16), tuple(inks.tolist())), 'JPEG', quality=100)
    marker = data.index(b'\xff\xee\x00\x0eAdobe')
    for file, of_paper in ((data, 255 - inks), (data[:marker] + data[marker + 16 :], inks)):
        assert near(pixels(file), np.full((16, 16, 3), of_paper[:3] * of_paper[3] / 255), 3)


def test_transparent_pixels_are_shown_on_white():
    values = RANDOM.integers(0, 256, (7, 9, 4), dtype=np.uint8)
    alpha = values[..., 3:] / 255
    decoded = pixels(encoded(Image.fromarray(values), 'PNG'))
    assert near(decoded, values[..., :3] * alpha + 255 * (1 - alpha), 1)
    palette = Image.new('P', (3, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    palette.putdata([0, 1, 2])
    alphas = pixels(encoded(palette, 'PNG', transparency=bytes([255, 0, 51])))[0]
    assert alphas.tolist() == [[10, 20, 30], [255] * 3, [218, 220, 222]]
    single = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8))
    assert pixels(encoded(single, 'PNG', transparency=(1, 2, 3)))[0].tolist() == [[255] * 3, [4, 5, 6]]


def test_orientation_is_applied_unless_damaged():
    def shown(orientation: int) -> np.ndarray:
        exif = Image.Exif()
        exif[0x0112] = orientation
        return pixels(encoded(Image.fromarray(COLORS), 'PNG', exif=exif))

    assert np.array_equal(shown(3), COLORS[::-1, ::-1]) and np.array_equal(shown(6), np.rot90(COLORS, -1))
    assert np.array_equal(shown(9), COLORS)
    broken = encoded(Image.fromarray(COLORS), 'PNG', exif=b'Exif\0\0MM\0*\xff\xff\xff\xff')
    assert np.array_equal(pixels(broken), COLORS)


def test_first_frame_is_decoded_but_not_first_page():
    frames = [Image.new('RGB', (8, 6), color) for color in ('red', 'blue')]
    data = encoded(frames[0], 'GIF', save_all=True, append_images=frames[1:])
    assert (pixels(data) == [255, 0, 0]).all()
    preview = encoded(frames[0], 'TIFF', save_all=True, append_images=[frames[1].resize((4, 3))])
    assert (pixels(preview) == [255, 0, 0]).all()
    with pytest.raises(UnreadableImage, match='is a TIFF with several pages .set channels of the data set'):
        decode_bytes(encoded(frames[0], 'TIFF', save_all=True, append_images=frames[1:]))


def shown(data: bytes) -> list | Reason:
    try:
        return pixels(data).tolist()
    except UnreadableImage as fault:
        return fault.reason


def decoded_by_simplejpeg(data: bytes) -> bool:
    with decode.open_image(data, 10**6) as image:
        return decode.decode_jpeg(image, data) is not None


def test_both_jpeg_decoders_equal_pillow(monkeypatch, capfd):
    fast = pytest.importorskip('simplejpeg', reason='simplejpeg is not installed (pip install simplejpeg)')
    image = Image.fromarray(RANDOM.integers(0, 256, (65, 33, 3), dtype=np.uint8))
    sound = [encoded(image, 'JPEG', quality=95, keep_rgb=True)]
    for size, progressive in itertools.product(((1, 1), (17, 8), (33, 65)), (False, True)):
        one = image.resize(size, Image.Resampling.BICUBIC)
        options = dict(quality=80, progressive=progressive)
        sound += [encoded(one, 'JPEG', subsampling=sampling, **options) for sampling in (0, 1, 2)]
        sound += [encoded(one.convert('L'), 'JPEG', **options)]
        sound += [fast.encode_jpeg(np.array(one), 80, colorsubsampling=sampling) for sampling in ('440', '411')]
    data, turned = encoded(image, 'JPEG'), Image.Exif()
    turned[0x0112] = 6
    start, twelve = data.index(b'\xff\xda'), bytearray(data)
    # This byte of the header states the number of bits per channel.
    twelve[data.index(b'\xff\xc0') + 4] = 12
    for_pillow = dict(
        turned=encoded(image, 'JPEG', exif=turned),
        inks=encoded(image.convert('CMYK'), 'JPEG'),
        twin=encoded(image, 'MPO', save_all=True, append_images=[image]),
        half=data[: len(data) // 2],
        no_end=data[:-2],
        more_before_a_marker=data[:start] + bytes(30) + data[start:],
    )
    others = dict(
        spoilt=data[: start + 200] + bytes(40) + data[start + 240 :],
        twelve_bits=bytes(twelve),
        no_colors=data[:2] + data[start:],
        broken_exif=encoded(image, 'JPEG', exif=b'Exif\0\0MM\0*\xff\xff\xff\xff'),
    )
    assert all(decoded_by_simplejpeg(data) for data in sound)
    assert [name for name, data in for_pillow.items() if decoded_by_simplejpeg(data)] == []
    files = [*sound, *for_pillow.values(), *others.values()]
    decoded = [shown(data) for data in files]
    assert decode.decoder().startswith(f'simplejpeg {fast.__version__} for upright JPEGs in RGB or grey, else Pillow')
    monkeypatch.setattr(decode, 'simplejpeg', None)
    assert decode.decoder() == f'Pillow {PIL.__version__}'
    assert decoded == [shown(data) for data in files]
    assert shown(for_pillow['half']) is Reason.CUT_SHORT and shown(others['twelve_bits']) is Reason.NO_IMAGE
    assert capfd.readouterr() == ('', '')


def test_cut_or_foreign_file_has_its_reason():
    noise = Image.fromarray(RANDOM.integers(0, 256, (60, 60, 3), dtype=np.uint8))
    for kind in ('JPEG', 'PNG', 'BMP', 'GIF', 'TIFF', 'WEBP'):
        data = encoded(noise, kind)
        possible = [Reason.CUT_SHORT] if kind[0] in 'JPBG' else [Reason.BROKEN, Reason.NO_IMAGE, Reason.CUT_SHORT]
        assert reason(data[: len(data) // 2]) in possible
    for data in (b'hello', bytes(5000), b'<html>404</html>', b'\xff\xd8', b'\x89PNG\r\n\x1a\n'):
        assert reason(data) is Reason.NO_IMAGE


def test_decompression_bomb_is_rejected_by_header():
    """The files are small, but their headers state billions of pixels."""
    png, jpeg, gif, bmp = (bytearray(encoded(Image.new('RGB', (3, 3)), kind)) for kind in ('PNG', 'JPEG', 'GIF', 'BMP'))
    png[16:24] = struct.pack('>II', 60_000, 60_000)
    png[29:33] = struct.pack('>I', zlib.crc32(png[12:29]))
    at = jpeg.index(b'\xff\xc0') + 5
    jpeg[at : at + 4] = struct.pack('>HH', 65_500, 65_500)
    gif[6:10] = struct.pack('<HH', 65_535, 65_535)
    bmp[18:26] = struct.pack('<II', 100_000, 100_000)
    for bomb in (png, jpeg, gif, bmp, b'P6 100000 100000 255\n' + bytes(100)):
        assert reason(bytes(bomb)) is Reason.TOO_LARGE


def test_max_pixels_is_the_last_size_that_is_read(monkeypatch):
    data = encoded(Image.fromarray(COLORS), 'PNG')
    # Another library may have set this limit of Pillow, so decoding must restore it.
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 7)
    assert np.array_equal(pixels(data, max_pixels=60), COLORS)
    assert reason(data, max_pixels=59) is Reason.TOO_LARGE and Image.MAX_IMAGE_PIXELS == 7


def test_memory_error_is_not_a_fault_of_the_image(monkeypatch):
    monkeypatch.setattr(decode, 'as_rgb', Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        decode_bytes(encoded(Image.fromarray(COLORS), 'PNG'))


def test_dicom_without_reader_names_the_project(tmp_path, monkeypatch):
    (tmp_path / 'a.dcm').write_bytes(b'\0' * 128 + b'DICM' + b'\0' * 100)
    monkeypatch.delitem(READERS, '.dcm', raising=False)
    with pytest.raises(UserError, match=r'projects\.imaging') as error:
        UnlabelledFolder(tmp_path).raw(0)
    assert error.value.code == 'no-reader'


def test_reader_from_outside_decodes_its_format(tmp_path, monkeypatch):
    image = torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)
    reader = Reader(lambda data: data.startswith(b'MINE'), lambda data, max_pixels, as_stored: image)
    monkeypatch.setitem(READERS, '.mine', reader)
    (tmp_path / 'a.MINE').write_bytes(b'MINE')
    dataset = UnlabelledFolder(tmp_path)
    assert torch.equal(dataset.raw(0), image)
    assert file_kind(b'MINE') == 'mine'


def test_mpo_is_a_jpeg_and_worker_errors_stay_one_line():
    one, two = (Image.new('RGB', (8, 8), color) for color in ('red', 'blue'))
    data = encoded(one, 'MPO', save_all=True, append_images=[two])
    assert file_kind(data) == 'jpg' and decode_bytes(data).shape == (3, 8, 8)
    # torch recreates an error of a data worker from this text.
    assert str(UnreadableImage('Caught it in a worker')) == 'Caught it in a worker'


def progressive(width: int, height: int, more: int = 0) -> bytes:
    """Return a progressive JPEG to which `more` empty scans were appended."""
    data = encoded(Image.new('L', (width, height), 'gray'), 'JPEG', progressive=True)
    header = data[data.rindex(START_OF_SCAN) :][:10]
    return data.removesuffix(b'\xff\xd9') + more * header + b'\xff\xd9'


@pytest.mark.parametrize('kind', ['PNG', 'JPEG', 'GIF'])
def test_small_file_with_many_pixels_is_not_decoded(kind, monkeypatch):
    data = encoded(Image.new('1' if kind == 'PNG' else 'L', (8000, 5000)), kind)
    assert len(data) < 2**20
    # A blank A4 page at 600 dpi has this number of pixels, in a file of about 10 kB.
    require_plausible_size(4960 * 7016, bytes(10_000))
    monkeypatch.setattr(Image.Image, 'load', lambda _: pytest.fail('the image was decoded'))
    assert reason(data) is Reason.EXPANDS


@pytest.mark.parametrize('pixels', [64, 2000])
def test_ordinary_progressive_jpeg_is_decoded(pixels):
    data = progressive(pixels, pixels)
    assert 1 < data.count(START_OF_SCAN) <= ORDINARY_SCANS
    assert decode_bytes(data).shape == (3, pixels, pixels)


def test_too_many_scans_of_a_jpeg_raise(monkeypatch):
    data = progressive(2000, 2000, more=600)
    assert len(data) < 50_000
    for decoder in ('turn_upright', 'decode_jpeg'):
        monkeypatch.setattr(decode, decoder, lambda *_: pytest.fail('the image was decoded'))
    assert reason(data) is Reason.SCANS
    require_few_scans(ORDINARY_SCANS * START_OF_SCAN, MAX_PIXELS)
    with pytest.raises(UnreadableImage):
        require_few_scans((ORDINARY_SCANS + 1) * START_OF_SCAN, MAX_PIXELS)
