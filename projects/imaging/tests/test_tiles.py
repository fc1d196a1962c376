"""Test the data set Tiles on TIFFs of all layouts and on whole slides."""

import numpy as np
import pytest
import torch
from harness.errors import raises_code

from mmairl.registry import DATASETS
from projects.imaging.tiles import Tiles, open_scan

tifffile = pytest.importorskip('tifffile')
HOW = {
    'tiles': dict(tile=(64, 64), compression='zlib'),
    'strips': dict(rowsperstrip=20, compression='zlib'),
    'planes': dict(tile=(48, 80), planarconfig='separate'),
    'whole': {},
}


@pytest.fixture
def scan() -> np.ndarray:
    """Return an image of noise, 300 x 500 pixels. The left 160 columns are a constant background (250)."""
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500, 3), np.uint8)
    pixels[:, :160] = 250
    return pixels


@pytest.mark.parametrize('how', HOW)
def test_tiles_have_their_pixels_and_no_background(how, scan, tmp_path):
    (tmp_path / 'p1').mkdir()
    pixels = scan.transpose(2, 0, 1) if how == 'planes' else scan
    tifffile.imwrite(tmp_path / 'p1' / 'a.tif', pixels, photometric='rgb', **HOW[how])
    dataset = DATASETS.build(dict(type='Tiles', root=str(tmp_path), size=90))
    names = [dataset.member(index) for index in range(len(dataset))]
    # The tiles at x=0 are background, and incomplete tiles at the edges are left out.
    assert names == [f'p1/a.tif[y={y},x={x}]' for y in (0, 90, 180) for x in (90, 180, 270, 360)]
    for index, (_, y, x) in enumerate(dataset.corners.tolist()):
        tile = dataset.raw(index).permute(1, 2, 0)
        assert np.array_equal(tile, scan[y : y + 90, x : x + 90]), names[index]
    assert dataset[0]['data_samples'] == dict(label=-1, index=0)


def test_channels_and_pyramid_levels_as_stored(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (256, 256, 5), np.uint16)
    how = dict(tile=(64, 64), photometric='minisblack', planarconfig='contig')
    with tifffile.TiffWriter(tmp_path / 'a.tif') as file:
        file.write(pixels, subifds=1, **how)
        file.write(pixels[::2, ::2], subfiletype=1, **how)
    dataset = Tiles(tmp_path, size=64, channels=5, level=1)
    assert len(dataset) == 4
    assert dataset.raw(3).dtype is torch.uint16
    assert np.array_equal(dataset.raw(3).permute(1, 2, 0), pixels[128::2, 128::2])
    with raises_code('not-rgb'):
        Tiles(tmp_path, size=64).raw(0)
    with raises_code('no-level'):
        Tiles(tmp_path, size=64, channels=5, level=2)


def test_background_alone_or_pages_raise(scan, tmp_path):
    tifffile.imwrite(tmp_path / 'a.tif', np.full_like(scan, 250), photometric='rgb')
    with raises_code('no-tiles'):
        Tiles(tmp_path, size=64)
    open_scan.cache_clear()
    tifffile.imwrite(tmp_path / 'a.tif', np.stack([scan, scan]), photometric='rgb')
    with raises_code('pages'):
        Tiles(tmp_path, size=64)


def test_slide_tiles_equal_openslide(scan, tmp_path):
    openslide = pytest.importorskip('openslide')
    # openslide reads a tiled TIFF as a slide of the vendor 'generic-tiff'.
    tifffile.imwrite(tmp_path / 'a.svs', scan, photometric='rgb', tile=(64, 64))
    dataset = Tiles(tmp_path, size=100)
    assert dataset.member(0) == 'a.svs[y=0,x=100]'
    assert len(dataset) == 12
    slide = openslide.OpenSlide(tmp_path / 'a.svs')
    region = slide.read_region((100, 0), 0, (100, 100)).convert('RGB')
    assert np.array_equal(dataset.raw(0).permute(1, 2, 0), np.asarray(region))
    assert np.array_equal(np.asarray(region), scan[:100, 100:200])
