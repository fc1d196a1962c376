"""Images with any number of channels and bits: stored values stay unchanged, and operations treat all channels alike."""

import io
import itertools
import struct
import sys
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image
from torch.utils.data import DataLoader

from mmairl.data.datasets import ImageFolder, UnlabelledFolder, ViewDataset, build_views
from mmairl.data.decode import Reason, UnreadableImage
from mmairl.data.packed import pack
from mmairl.data.preprocess import ViewPreprocessor, require_channels
from mmairl.data.raw_values import decode_stored
from mmairl.data.shards.dataset import Shards
from mmairl.data.statistics import channel_statistics
from mmairl.errors import UserError

RANDOM = np.random.default_rng(0)
TYPES = (np.uint8, np.uint16, np.float32)
MOST = {np.uint8: 255, np.uint16: 65535, np.float32: 1}


def noise(*shape: int, kind: type = np.uint16) -> np.ndarray:
    return (RANDOM.random(shape) * MOST[kind]).astype(kind)


def npy(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, pixels)
    return file.getvalue()


def png(pixels: np.ndarray) -> bytes:
    """Encode an image with OpenCV, which orders colors as blue, green, red."""
    ordered = pixels if pixels.ndim == 2 else pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]
    _, data = cv2.imencode('.png', ordered)
    return data.tobytes()


def read(data: bytes, max_pixels: int = 10_000) -> np.ndarray:
    return decode_stored(data, max_pixels).permute(1, 2, 0).numpy()


def reason(data: bytes, max_pixels: int = 10_000) -> Reason:
    with pytest.raises(UnreadableImage) as caught:
        decode_stored(data, max_pixels)
    return caught.value.reason


def same(values: np.ndarray, reference: np.ndarray) -> bool:
    return values.dtype == reference.dtype and np.array_equal(values, reference)


def test_arrays_and_pictures_keep_their_values():
    for kind, channels in itertools.product(TYPES, (1, 2, 3, 5)):
        pixels = noise(6, 9, channels, kind=kind)
        assert same(read(npy(pixels)), pixels)
        assert same(read(npy(np.asfortranarray(pixels))), pixels)
        assert same(read(npy(pixels.astype(pixels.dtype.newbyteorder('>')))), pixels)
        assert same(read(npy(pixels[..., 0])), pixels[..., :1])
        if kind is not np.float32 and channels != 2:
            pixels = noise(6, 9, *((4,) if channels == 5 else (channels,) * (channels > 1)), kind=kind)
            assert same(read(png(pixels)), pixels.reshape(6, 9, -1))
    assert same(read(npy(np.float64([[0.1, 7]]))), np.float32([[[0.1], [7]]])), 'floats were scaled'
    file = io.BytesIO()
    Image.fromarray(noise(6, 9, kind=np.uint8)).save(file, 'JPEG')
    assert read(file.getvalue()).shape == (6, 9, 1)


@pytest.mark.parametrize('kind', TYPES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize('channels', (2, 4, 5, 13))
def test_tiff_channels_are_samples_planes_or_pages(kind, channels):
    tifffile = pytest.importorskip('tifffile', reason='tifffile is not installed (pip install tifffile)')

    def tiff(array: np.ndarray, **how) -> bytes:
        tifffile.imwrite(file := io.BytesIO(), array, photometric='minisblack', **how)
        return file.getvalue()

    pixels = noise(6, 9, channels, kind=kind)
    planes = pixels.transpose(2, 0, 1).copy()
    for how in ({}, dict(compression='zlib'), dict(tile=(16, 16)), dict(byteorder='>', bigtiff=True)):
        assert same(read(tiff(pixels, planarconfig='contig', **how)), pixels), how
        assert same(read(tiff(pixels[..., 0], **how)), pixels[..., :1]), how
    # Without options, tifffile writes a page for each channel.
    for how in ({}, dict(planarconfig='separate'), dict(imagej=True)):
        assert same(read(tiff(planes, **how)), pixels), how
    assert same(read(tiff(planes[:, None], metadata=dict(axes='CZYX'), ome=True)), pixels)
    several = tiff(noise(3, 2, 6, 9), imagej=True, metadata=dict(axes='ZCYX'))
    assert reason(several) is Reason.NO_ARRAY, 'a stack of several images is not rejected'


def test_invalid_file_has_its_reason(monkeypatch):
    good = npy(noise(6, 9, 5))
    assert reason(good[:-1]) is Reason.CUT_SHORT and reason(good, max_pixels=53) is Reason.TOO_LARGE
    assert reason(npy(noise(1, 9, 200)), max_pixels=10) is Reason.TOO_LARGE, 'the limit does not count channels'
    wrong = [np.int16([[1]]), np.zeros((2, 2, 2, 2)), np.zeros(3), np.zeros((0, 4, 3)), np.array([[None]], object)]
    assert [reason(npy(array)) for array in wrong] == [Reason.NO_ARRAY] * 5
    assert reason(npy(np.float32([[0, np.nan]]))) is Reason.NOT_FINITE
    assert reason(b'hello') is Reason.NO_IMAGE and reason(good[:20]) is Reason.BROKEN
    assert reason(png(noise(6, 9, 3)), max_pixels=53) is Reason.TOO_LARGE
    monkeypatch.setitem(sys.modules, 'tifffile', None)
    with pytest.raises(UserError, match='pip install tifffile'):
        decode_stored(b'II*\0', 100)


@pytest.fixture
def folder(tmp_path):
    """Write six arrays of five channels and 16 bits in two classes. The first file is damaged."""
    for number in range(6):
        path = tmp_path / 'images' / 'ab'[number % 2] / f'{number}.npy'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npy(noise(20 + number, 31, 5)))
    (tmp_path / 'images/a/0.npy').write_bytes(b'none')
    return tmp_path / 'images'


def test_stored_values_are_packed_exactly(folder):
    view = [[dict(type='RandomResizedCrop', size=16), dict(type='RandomFlip'), dict(type='GaussianBlur', p=1.0)]]
    plain = ImageFolder(folder, views=view, channels=5)
    list(pack(plain, folder.parent / 'images.tar'))
    packed = Shards(folder.parent / 'images.tar', views=view, channels=5)
    assert len(plain) == 6 and len(packed) == 5 and plain.depth == packed.depth == torch.uint16
    for index in range(5):
        path = plain.path(index + 1)
        assert np.array_equal(packed.raw(index).permute(1, 2, 0).numpy(), np.load(path))
        items = []
        for dataset, at in ((plain, index + 1), (packed, index)):
            torch.manual_seed(index)
            items.append(dataset[at]['inputs'][0])
        assert torch.equal(*items) and items[0].dtype == torch.float32 and items[0].shape == (5, 16, 16)
    batch = next(iter(DataLoader(packed, batch_size=4, num_workers=1)))
    assert batch['inputs'][0].shape == (4, 5, 16, 16)
    with raises_code('no-images', match='NAME.npy, with channels=C'):
        UnlabelledFolder(folder)


def png_of(pixels: np.ndarray, color_type: int, orientation: int = 1) -> bytes:
    """Encode 16-bit pixels without OpenCV and Pillow, which cannot write gray images with transparency."""
    exif = struct.pack('>2sHIHHHIHHI', b'MM', 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    header = struct.pack('>IIBBBBB', pixels.shape[1], pixels.shape[0], 16, color_type, 0, 0, 0)
    rows = zlib.compress(b''.join(b'\0' + row.astype('>u2').tobytes() for row in pixels))
    chunks = [(b'IHDR', header), (b'eXIf', exif), (b'IDAT', rows), (b'IEND', b'')]
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(text)) + kind + text + struct.pack('>I', zlib.crc32(kind + text)) for kind, text in chunks
    )


def test_16_bit_png_keeps_its_values_upright():
    for (color_type, channels), orientation in itertools.product({2: 3, 4: 2, 6: 4}.items(), range(1, 9)):
        pixels = noise(6, 9, channels)
        # Pillow reads each channel as a gray image without loss.
        grays = [read(png_of(pixels[..., channel], 0, orientation)) for channel in range(channels)]
        assert grays[0].shape[:2] == ((9, 6) if orientation > 4 else (6, 9))
        assert same(read(png_of(pixels, color_type, orientation)), np.concatenate(grays, 2))


@pytest.mark.parametrize('most', (100, 255, 1000, 65535))
def test_binary_pgm_and_ppm_keep_their_values(most):
    for magic, channels in (('P5', 1), ('P6', 3)):
        pixels = RANDOM.integers(0, most + 1, (6, 9, channels), np.uint8 if most < 256 else np.uint16)
        stored = pixels.astype(pixels.dtype.newbyteorder('>')).tobytes()
        data = f'{magic} 9 6 {most}\n'.encode() + stored
        assert same(read(data), pixels)
        assert reason(data[:-1]) in (Reason.CUT_SHORT, Reason.BROKEN)


def test_unchanged_images_are_scaled_like_changed_ones(tmp_path):
    for index in range(20):
        (tmp_path / f'{index}.png').write_bytes(png(noise(8, 8, 4, kind=np.uint8)))
    data = UnlabelledFolder(tmp_path, views=[[dict(type='RandomFlip')]], channels=4)
    for index in range(20):
        view = data[index]['inputs'][0]
        assert torch.equal(view.sort().values, (data.raw(index) / 255).sort().values)


def test_file_with_other_channels_or_depth_is_named(folder):
    uses = [lambda data: data[6], lambda data: list(pack(data, folder.parent / 'out.tar')), channel_statistics]
    odd = {
        '3 channels of 16 bits': noise(8, 8, 3),
        '5 channels of 8 bits': noise(8, 8, 5, kind=np.uint8),
        '5 channels of floats': noise(8, 8, 5, kind=np.float32),
    }
    for (stored, pixels), use in itertools.product(odd.items(), uses):
        (folder / 'b/9.npy').write_bytes(npy(pixels))
        with raises_code('mixed-images', f'b/9.npy: the image has {stored}, .*channels=5 of 16 bits'):
            use(ImageFolder(folder, channels=5))
    with raises_code('mixed-images', 'a/2.npy: the image has 5 channels .*channels=4'):
        ImageFolder(folder, channels=4)


def test_statistics_equal_numpy(folder, run_tool, capsys):
    pixels = np.concatenate([np.load(path).reshape(-1, 5) for path in sorted(folder.glob('*/[1-5].npy'))]) / 65535
    statistics = channel_statistics(ImageFolder(folder, channels=5))
    np.testing.assert_allclose(statistics.mean, pixels.mean(0), rtol=1e-6)
    np.testing.assert_allclose(statistics.std, pixels.std(0), rtol=1e-6)
    assert (statistics.images, statistics.unreadable) == (5, 1)
    assert channel_statistics(ImageFolder(folder, channels=5), most=3).images == 2
    run_tool('tools/pack.py', folder, '--statistics', '--channels', 5, '--workers', 0)
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[-2].endswith('images; 1 could not be read')
    scope = {}
    exec(printed[-1], scope)
    preprocessor = ViewPreprocessor(**scope['model']['data_preprocessor'])
    np.testing.assert_allclose(preprocessor.mean.flatten(), pixels.mean(0), rtol=1e-4)
    np.testing.assert_allclose(preprocessor.std.flatten(), pixels.std(0), rtol=1e-4)
    with raises_code('bad-statistics'):
        ViewPreprocessor([0.5, 0.5], [0.1, 0.0])


STEPS = [
    dict(type='RandomResizedCrop', size=16, scale=(0.2, 1.0)),
    dict(type='RandomFlip', p=1.0),
    dict(type='GaussianBlur', p=1.0),
    dict(type='ColorJitter', p=1.0, brightness=0.4, contrast=0.4, saturation=0, hue=0),
    dict(type='Solarize', p=1.0, threshold=128),
]


@pytest.mark.parametrize('channels', (1, 2, 5))
@pytest.mark.parametrize('step', STEPS, ids=lambda step: step['type'])
def test_each_channel_changes_like_a_gray_image(step, channels):
    """The reference is computed on gray RGB images, and test_transforms.py tests RGB images.

    The tolerance is needed because the luma weights of RGB images add up to 0.9999 instead of 1.
    """
    ((operation,),) = build_views([[step]])

    def drawn(make: Callable, images: torch.Tensor, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return make(images)

    for kind in TYPES:
        pixels = torch.from_numpy(noise(channels, 24, 31, kind=kind))
        values = (pixels.double() / MOST[kind]).float()
        stored = pixels if kind is np.uint8 else values
        for seed in range(4):
            grays = [drawn(operation.batch, value.expand(1, 3, 24, 31), seed)[0, :1] for value in values]
            reference = torch.cat(grays)
            torch.testing.assert_close(drawn(operation.batch, values[None], seed)[0], reference, atol=2e-5, rtol=0)
            torch.testing.assert_close(drawn(operation, stored, seed), reference, atol=2e-5, rtol=0)


def test_rgb_changes_of_other_channels_are_an_error():
    jitter = dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.0, hue=0.1)
    views = build_views([[jitter, dict(type='RandomGrayscale', p=0.2), dict(type='RandomFlip')]] * 2)

    class Five(ViewDataset):
        channels = 5

        def __init__(self, reach: tuple[float, float] = (0.0, 1.0)) -> None:
            super().__init__(None)
            self.value_range = reach

    mean, wide = [0.5] * 5, Five(reach=(-0.5, 3.0))
    release = {**jitter, 'type': 'ReleaseColorJitter', 'hue': 0.0}
    fine = build_views([[{**jitter, 'hue': 0}, dict(type='RandomGrayscale', p=0)], [{**jitter, 'p': 0}]])
    require_channels(Five(), mean, torch.nn.Conv2d(5, 1, 1), fine)
    require_channels(wide, mean, None, build_views([[dict(type='GaussianBlur', p=1.0), {**jitter, 'p': 0}]]))
    for code, match, arguments in [
        ('views-channels', 'hue of ColorJitter [^;]*; RandomGrayscale', (Five(), None, None, views)),
        ('statistics-channels', '5 channels, .* 3 numbers', (Five(), [0.5] * 3)),
        ('backbone-channels', 'in_channels=5', (Five(), mean, torch.nn.Conv2d(3, 1, 1))),
        ('views-channels', 'require RGB: ReleaseColorJitter', (Five(), None, None, build_views([[release]]))),
        ('views-range', '-0.5 to 3, but ColorJitter', (wide, mean, None, fine)),
    ]:
        with raises_code(code, match):
            require_channels(*arguments)
