"""Data sets that have a target for each pixel: synthetic scenes, and data sets of mmseg."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.data.dense import MMSegImages, Scenes
from mmairl.data.scenes import FAR, NEAR, RADIUS

needs_mmseg = pytest.mark.skipif(not find_spec('mmseg'), reason='mmseg is not installed')


def write(root: Path, mask: np.ndarray) -> dict:
    """Write an image of 6 x 4 pixels with its mask. Return the config of the data set."""
    for folder in ('images', 'masks'):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.arange(72, dtype=np.uint8).reshape(4, 6, 3)).save(root / 'images/a.png')
    Image.fromarray(mask).save(root / 'masks/a.png')
    return dict(
        type='BaseSegDataset',
        data_root=str(root),
        img_suffix='.png',
        data_prefix=dict(img_path='images', seg_map_path='masks'),
        metainfo=dict(classes=('sky', 'sea')),
    )


@needs_mmseg
def test_mmseg_images_are_rgb_with_their_masks(tmp_path):
    mask = np.array([[0, 1, 255, 0, 0, 0]] * 4, np.uint8)
    data = MMSegImages(write(tmp_path, mask), count=1)
    image, target = data[0]
    assert image[:, 0, 1].tolist() == [3, 4, 5], 'the colors are not in the order RGB'
    assert target.tolist() == mask.tolist()
    assert data.classes == ['sky', 'sea']
    assert [Path(path).parent.name for path in (data.path(0), data.target_path(0))] == ['images', 'masks']


@needs_mmseg
@pytest.mark.parametrize(
    ('code', 'mask', 'count'),
    [
        ('label-out-of-range', np.full((4, 6), 2, np.uint8), 1),
        ('target-size', np.zeros((4, 5), np.uint8), 1),
        ('image-count', np.zeros((4, 6), np.uint8), 2),
    ],
)
def test_unexpected_mask_or_count_is_an_error(tmp_path, code, mask, count):
    with raises_code(code):
        MMSegImages(write(tmp_path, mask), count=count)[0]


@needs_mmseg
def test_depth_is_in_meters(tmp_path):
    for folder in ('images', 'annotations'):
        (tmp_path / folder).mkdir()
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(tmp_path / 'images/kitchen_1.jpg')
    Image.fromarray(np.full((4, 6), 2500, np.uint16)).save(tmp_path / 'annotations/kitchen_1.png')
    _, depth = MMSegImages(dict(type='NYUDataset', data_root=str(tmp_path)), target='depth')[0]
    assert depth.shape == (4, 6)
    assert depth.unique().tolist() == [2.5]


def test_scenes_have_equal_images_for_both_targets():
    classes, depths = (Scenes(5, size=64, seed=3, target=target) for target in ('classes', 'depth'))
    for index in range(5):
        image, mask = classes[index]
        same, depth = depths[index]
        assert torch.equal(image, same)
        assert torch.equal(depth == FAR, mask == 0)
        assert NEAR / RADIUS[1] <= float(depth.min()) <= NEAR / RADIUS[0]


def test_unknown_target_is_an_error():
    with raises_code('unknown-target'):
        Scenes(1, target='normals')
