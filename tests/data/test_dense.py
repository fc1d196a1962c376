"""Images with a target per pixel: drawn scenes and data sets of mmseg."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmairl.data.dense import MMSegImages, Scenes
from mmairl.data.scenes import FAR, NEAR, RADIUS
from mmairl.errors import UserError

needs_mmseg = pytest.mark.skipif(not find_spec('mmseg'), reason='requires mmseg')


def write(root: Path, mask: np.ndarray, image: tuple[int, int] = (6, 4)) -> dict:
    for folder in ('images', 'masks'):
        (root / folder).mkdir(parents=True, exist_ok=True)
    pixels = np.arange(3 * image[0] * image[1], dtype=np.uint8).reshape(image[1], image[0], 3)
    Image.fromarray(pixels).save(root / 'images/a.png')
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
    assert image[:, 0, 1].tolist() == [3, 4, 5], 'not in the order of OpenCV'
    assert target.tolist() == mask.tolist()
    assert data.classes == ['sky', 'sea']
    assert [Path(path).parent.name for path in (data.path(0), data.target_path(0))] == ['images', 'masks']


@needs_mmseg
@pytest.mark.parametrize(
    'mask, image, code',
    [
        (np.full((4, 6), 2, np.uint8), (6, 4), 'label-out-of-range'),
        (np.zeros((4, 5), np.uint8), (6, 4), 'target-size'),
    ],
)
def test_mask_that_does_not_fit_is_an_error(tmp_path, mask, image, code):
    data = MMSegImages(write(tmp_path, mask, image))
    with pytest.raises(UserError) as error:
        data[0]
    assert error.value.code == code


@needs_mmseg
def test_other_number_of_images_is_an_error(tmp_path):
    with pytest.raises(UserError) as error:
        MMSegImages(write(tmp_path, np.zeros((4, 6), np.uint8)), count=2)
    assert error.value.code == 'image-count'


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
    with pytest.raises(UserError) as error:
        Scenes(1, target='normals')
    assert error.value.code == 'unknown-target'
