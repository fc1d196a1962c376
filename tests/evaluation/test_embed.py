"""`mmairl.embed` equals torchvision's network on crops that the test computes itself."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from harness.errors import raises_code
from PIL import Image

import mmairl
from mmairl.evaluation.embed import dataset_of

# For a crop of 56, `embed` resizes images to 64. The images have that size, so their pixels stay
# unchanged.
SIDE, CROP = 64, 56
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture(scope='module')
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


@pytest.fixture(scope='module')
def checkpoint(network, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('embed') / 'resnet18.pth'
    torch.save(network.state_dict(), path)
    return path


@pytest.fixture(scope='module')
def pixels() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (5, SIDE, SIDE, 3), np.uint8)


@torch.no_grad()
def expected(network: torch.nn.Module, pixels: np.ndarray, mean: tuple, std: tuple) -> np.ndarray:
    edge = (SIDE - CROP) // 2
    inner = pixels[:, edge:-edge, edge:-edge].astype(np.float32) / 255
    x = torch.from_numpy((inner - np.float32(mean)) / np.float32(std)).permute(0, 3, 1, 2)
    for name, layer in network.named_children():
        x = layer(x) if name != 'fc' else x
    return x.flatten(1).numpy()


def test_folder_files_and_arrays_have_equal_features(network, checkpoint, pixels, tmp_path):
    folder = tmp_path / 'images'
    (folder / 'inner').mkdir(parents=True)
    pictures = [Image.fromarray(one) for one in pixels]
    files = [folder / 'a.png', folder / 'b.png', *(folder / f'inner/{name}.png' for name in 'abc')]
    for picture, file in zip(pictures, files):
        picture.save(file)
    reference = expected(network, pixels, *IMAGENET)
    for images, names in (
        (folder, [str(file) for file in files]),
        (files, [str(file) for file in files]),
        (pictures, [f'image {number}' for number in range(5)]),
        (str(files[0]), [str(files[0])]),
    ):
        features, returned_names = mmairl.embed(checkpoint, images, size=CROP, batch=2)
        assert returned_names == names
        np.testing.assert_allclose(features, reference[: len(names)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    'number', [dict(batch=0), dict(workers=-1), dict(size=0), dict(batch=1.5), dict(size='5')], ids=str
)
def test_number_out_of_range_is_an_error(number, pixels):
    with raises_code('bad-number'):
        mmairl.embed('unread.pth', pixels, **number)


@pytest.mark.parametrize('device', ['cuda:99', 'nothing'])
def test_missing_device_is_an_error(device, pixels):
    with raises_code('no-device'):
        mmairl.embed('unread.pth', pixels, device=device)


def test_array_of_five_planes_is_ambiguous():
    with raises_code('ambiguous-array'):
        dataset_of(np.zeros((40, 40, 5), np.uint8), None)
    assert len(dataset_of(np.zeros((3, 40, 40), np.uint8), None)) == 3
    assert len(dataset_of(np.zeros((40, 40, 5), np.float32), None, channels=5)) == 1


def test_each_kind_of_image_is_embedded_or_an_error(network, checkpoint, pixels):
    reference, tensor = expected(network, pixels, *IMAGENET), torch.from_numpy(pixels).permute(0, 3, 1, 2)
    grey = expected(network, pixels[..., :1].repeat(3, 3), *IMAGENET)
    black_or_white = expected(network, np.where(pixels[:1] > 127, 255, 0).astype(np.uint8), *IMAGENET)
    for images, features in (
        (Image.fromarray(pixels[0]), reference[:1]),
        (pixels[0], reference[:1]),
        (pixels, reference),
        (tensor[0], reference[:1]),
        (tensor, reference),
        (list(tensor), reference),
        (pixels[0, ..., 0], grey[:1]),
        (pixels[0, ..., :1], grey[:1]),
        (pixels[..., :1], grey),
        (tensor[0, 0], grey[:1]),
        (tensor[:, :1], grey),
        (pixels[0] > 127, black_or_white),
        (tensor[0] > 127, black_or_white),
    ):
        rows, names = mmairl.embed(checkpoint, images, size=CROP)
        assert names == [f'image {number}' for number in range(len(features))]
        np.testing.assert_allclose(rows, features, rtol=1e-4, atol=1e-5)
    for images, kind in (
        (pixels / 255, '0 is an array 64 x 64 x 3 of float64'),
        (tensor[0].bfloat16(), '0 is an array 64 x 64 x 3 of float32'),
        (pixels.transpose(0, 3, 1, 2), '0 is an array 3 x 64 x 64 of uint8'),
        ([tensor], '0 is an array 5 x 64 x 64 x 3 of uint8'),
        ([pixels[0], pixels[:0]], '1 is an array 0 x 64 x 64 x 3 of uint8'),
        ([pixels[0], None], '1 is NoneType'),
        (7, '0 is int'),
        (np.uint8(7), '0 is uint8'),
        (torch.tensor(7), r'0 is an array  of int64'),
    ):
        with raises_code('unknown-image', match=f'^image {kind}; '):
            mmairl.embed(checkpoint, images)


def test_checkpoint_states_statistics_and_image_size(network, pixels, tmp_path):
    views = "[[{'type': 'RandomFlip', 'p': 0.5}, {'type': 'RandomResizedCrop', 'size': 56, 'scale': (0.2, 0.6)}]]"
    settings = {
        'model.data_preprocessor.mean': '[0.5, 0.4, 0.3]',
        'model.data_preprocessor.std': '[0.25, 0.2, 0.3]',
        'model.data_preprocessor.views': 'None',
        'train_dataloader.dataset.views': views,
    }
    weights = {f'backbone.{key}': value for key, value in network.state_dict().items() if not key.startswith('fc')}
    torch.save(dict(state_dict=weights, meta=dict(settings=settings)), tmp_path / 'epoch_1.pth')
    features, _ = mmairl.embed(tmp_path / 'epoch_1.pth', [Image.fromarray(one) for one in pixels])
    reference = expected(network, pixels, (0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
    np.testing.assert_allclose(features, reference, rtol=1e-4, atol=1e-5)


def test_unreadable_has_no_row_and_missing_is_an_error(network, checkpoint, pixels, tmp_path):
    Image.fromarray(pixels[0]).save(tmp_path / 'a.png')
    (tmp_path / 'b.png').write_bytes(b'no image')
    with pytest.warns(UserWarning, match=r'1 images cannot be read and have no features; the first is .*b\.png'):
        features, names = mmairl.embed(checkpoint, [tmp_path / 'b.png', tmp_path / 'a.png'], size=CROP)
    assert names == [str(tmp_path / 'a.png')]
    np.testing.assert_allclose(features, expected(network, pixels[:1], *IMAGENET), rtol=1e-4, atol=1e-5)
    for images, code in (
        ([tmp_path / 'c.png'], 'no-readable-image'),
        ([], 'no-images'),
        ([tmp_path / 'b.png'], 'no-readable-image'),
    ):
        with raises_code(code):
            mmairl.embed(checkpoint, images)
    with raises_code('no-checkpoint'):
        mmairl.embed(tmp_path / 'none.pth', tmp_path)


def test_resnet_cells_average_to_pooled_features(network, checkpoint, pixels, tmp_path):
    for name, one in zip('acd', pixels):
        Image.fromarray(one).save(tmp_path / f'{name}.png')
    (tmp_path / 'b.png').write_bytes(b'no picture')
    with pytest.warns(UserWarning, match='1 images cannot be read and have only NaN as features; the first is .*b.png'):
        how = dict(size=CROP, batch=3, patches=True, out=tmp_path / 'cells.npy')
        cells, names, places = mmairl.embed(checkpoint, tmp_path, **how)
    assert isinstance(cells, np.memmap) and cells.shape == (4, 4, 512) and cells.dtype == np.float32
    assert [name[-5] for name in names] == [*'abcd'] and np.isnan(cells[1]).all()
    np.testing.assert_allclose(cells[[0, 2, 3]].mean(1), expected(network, pixels[:3], *IMAGENET), rtol=1e-4, atol=1e-5)
    # Each position is (y, x).
    assert places.tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    with raises_code('no-out'):
        mmairl.embed(checkpoint, tmp_path, patches=True)


def test_vit_patches_equal_timm_without_extra_tokens(pixels, tmp_path):
    how = dict(img_size=CROP, embed_dim=128, depth=2, num_heads=2)
    vit = timm.create_model('vit_small_patch14_reg4_dinov2', **how).eval()
    torch.save(vit.state_dict(), tmp_path / 'vit.pth')
    pictures = [Image.fromarray(one) for one in pixels]
    how = dict(size=CROP, patches=True, out=tmp_path / 'patches.npy')
    patches, _, places = mmairl.embed(tmp_path / 'vit.pth', pictures, **how)
    edge = (SIDE - CROP) // 2
    images = torch.from_numpy(pixels[:, edge:-edge, edge:-edge]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
    with torch.no_grad():
        tokens = vit.forward_features((images - mean) / std).numpy()
    np.testing.assert_allclose(patches, tokens[:, 5:], atol=1e-4)
    assert len(places) == 16
    pooled, _ = mmairl.embed(tmp_path / 'vit.pth', pictures, size=CROP)
    np.testing.assert_allclose(pooled, tokens[:, 0], atol=1e-4)
