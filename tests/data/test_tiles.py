"""Tiles of large TIFFs and slides: the pixels at their places, background left out, what cannot be read in a sentence."""

import sys

import numpy as np
import pytest
import torch

from mmairl.data.decode import UnreadableImage
from mmairl.data.tiles import Tiff, Tiles, opened
from mmairl.errors import UserError
from mmairl.registry import DATASETS

tifffile = pytest.importorskip('tifffile')
HOW = {
    'tiles': dict(tile=(64, 64), compression='zlib'),
    'strips': dict(rowsperstrip=20, compression='zlib'),
    'planes': dict(tile=(48, 80), planarconfig='separate'),
    'whole': {},
}


@pytest.fixture
def scan() -> np.ndarray:
    """Noise of 300 x 500, of which the left third is a white background."""
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500, 3), np.uint8)
    pixels[:, :160] = 250
    return pixels


@pytest.mark.parametrize('how', HOW)
def test_tiles_are_the_pixels_at_their_places_without_background(how, scan, tmp_path):
    (tmp_path / 'p1').mkdir()
    given = scan.transpose(2, 0, 1) if how == 'planes' else scan
    tifffile.imwrite(tmp_path / 'p1' / 'a.tif', given, photometric='rgb', **HOW[how])
    dataset = DATASETS.build(dict(type='Tiles', root=str(tmp_path), size=90))
    names = [dataset.member(index) for index in range(len(dataset))]
    assert names == [f'p1/a.tif[y={y},x={x}]' for y in (0, 90, 180) for x in (90, 180, 270, 360)]  # no part of a tile
    for index, (_, y, x) in enumerate(dataset.places.tolist()):
        assert np.array_equal(dataset.raw(index).permute(1, 2, 0), scan[y : y + 90, x : x + 90]), names[index]
    assert dataset[0]['data_samples'] == dict(label=-1, index=0)


def test_of_a_compressed_file_only_what_lies_below_a_tile_is_decoded(scan, tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / 'a.tif', scan, photometric='rgb', **HOW['tiles'])
    tiff, decoded = Tiff(str(tmp_path / 'a.tif'), 0), []
    decode = tiff.page.decode
    monkeypatch.setattr(
        tiff.page, 'decode', lambda data, index, **how: decoded.append(index) or decode(data, index, **how)
    )
    tiff.read(64, 128, 100)
    assert sorted(decoded) == [8 * row + column for row in (1, 2) for column in (2, 3)]


def test_other_channels_and_levels_of_a_pyramid_are_read_as_stored(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (256, 256, 5), np.uint16)
    with tifffile.TiffWriter(tmp_path / 'a.tif') as file:
        file.write(pixels, subifds=1, tile=(64, 64), photometric='minisblack', planarconfig='contig')
        file.write(pixels[::2, ::2], subfiletype=1, tile=(64, 64), photometric='minisblack', planarconfig='contig')
    dataset = Tiles(tmp_path, size=64, channels=5, level=1)
    assert len(dataset) == 4 and dataset.depth is torch.uint16
    assert np.array_equal(dataset.raw(3).permute(1, 2, 0), pixels[128::2, 128::2])
    with pytest.raises(UserError, match='is not RGB of 8 bits; set channels=5'):
        Tiles(tmp_path, size=64).raw(0)
    with pytest.raises(UserError, match='has 2 levels and no level 2'):
        Tiles(tmp_path, size=64, channels=5, level=2)


def test_parts_without_bytes_are_black_and_a_damaged_one_is_met_when_it_is_drawn(scan, tmp_path):
    tifffile.imwrite(tmp_path / 'a.tif', scan, photometric='rgb', **HOW['tiles'])
    opened.cache_clear()
    dataset = Tiles(tmp_path, size=64)
    place = dataset.places.tolist().index([0, 64, 192])
    with tifffile.TiffFile(tmp_path / 'a.tif', mode='r+b') as file:
        page = file.pages[0]
        start, counts = page.dataoffsets[8 + 3], page.tags['TileByteCounts']
        sizes = list(counts.value)
        counts.overwrite([0 if number == 8 + 3 else size for number, size in enumerate(sizes)])
    opened.cache_clear()
    assert not dataset.raw(place).any()
    with tifffile.TiffFile(tmp_path / 'a.tif', mode='r+b') as file:
        file.pages[0].tags['TileByteCounts'].overwrite(sizes)
    with (tmp_path / 'a.tif').open('r+b') as file:
        file.seek(start)
        file.write(b'no zlib at all')
    opened.cache_clear()
    assert len(Tiles(tmp_path, size=64)) == len(dataset)
    with pytest.raises(UnreadableImage, match=r'a.tif\[y=64,x=192\] cannot be decoded'):
        dataset.raw(place)
    (tmp_path / 'b.tif').write_bytes(b'no TIFF')
    with pytest.raises(UserError, match='b.tif is no TIFF that can be read'):
        Tiles(tmp_path, size=64)


def test_what_cannot_be_cut_is_one_sentence(scan, tmp_path):
    tifffile.imwrite(tmp_path / 'a.tif', np.full_like(scan, 250), photometric='rgb')
    with pytest.raises(UserError, match='holds no tile of 64 x 64 in its 1 images that is not background'):
        Tiles(tmp_path, size=64)
    opened.cache_clear()
    tifffile.imwrite(tmp_path / 'a.tif', np.stack([scan, scan]), photometric='rgb')
    with pytest.raises(UserError, match='a.tif is a TIFF of several pages'):
        Tiles(tmp_path, size=64)


def test_a_slide_is_cut_as_openslide_reads_it(scan, tmp_path):
    openslide = pytest.importorskip('openslide')
    tifffile.imwrite(tmp_path / 'a.svs', scan, photometric='rgb', tile=(64, 64))  # a tiled TIFF, which it calls generic
    dataset = Tiles(tmp_path, size=100)
    assert dataset.member(0) == 'a.svs[y=0,x=100]' and len(dataset) == 12
    region = openslide.OpenSlide(tmp_path / 'a.svs').read_region((100, 0), 0, (100, 100)).convert('RGB')
    assert np.array_equal(dataset.raw(0).permute(1, 2, 0), np.asarray(region))
    assert np.array_equal(np.asarray(region), scan[:100, 100:200])


@pytest.mark.parametrize('package, file', [('tifffile', 'a.tif'), ('openslide', 'a.svs')])
def test_a_reader_that_is_missing_is_one_sentence(package, file, scan, tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / file, scan, photometric='rgb')
    opened.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"the package {package}.* pip install .*mmairl.own.'"):
        Tiles(tmp_path)
