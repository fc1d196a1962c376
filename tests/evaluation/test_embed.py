"""`mmairl.embed` equals torchvision's and timm's networks on crops that the test computes itself."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from harness.errors import raises_code
from PIL import Image

import mmairl

# For a crop of 56, `embed` resizes images to 64. The images have that size, so their pixels stay unchanged.
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
    if not hasattr(network, 'layer1'):
        return network(x).numpy()
    for name, layer in network.named_children():
        x = layer(x) if name != 'fc' else x
    return x.flatten(1).numpy()


@pytest.fixture(scope='module')
def folder(pixels, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('images')
    for name, image in zip('abcde', pixels):
        Image.fromarray(image).save(folder / f'{name}.png')
    return folder


@pytest.mark.parametrize('kind', ['folder', 'files', 'pictures', 'arrays', 'tensors'])
def test_all_kinds_of_images_equal_torchvision(network, checkpoint, pixels, folder, kind):
    images = dict(
        folder=folder,
        files=sorted(folder.glob('*.png')),
        pictures=[Image.fromarray(image) for image in pixels],
        arrays=list(pixels),
        tensors=torch.from_numpy(pixels).permute(0, 3, 1, 2),
    )[kind]
    x, names = mmairl.embed(checkpoint, images, size=CROP, batch=2)
    assert np.allclose(x, expected(network, pixels, *IMAGENET), atol=1e-4) and len(names) == 5
    if kind in ('folder', 'files'):
        assert names == [str(path) for path in sorted(folder.glob('*.png'))]


def test_folders_can_be_listed(checkpoint, folder):
    x, names = mmairl.embed(checkpoint, [folder, folder / 'a.png'], size=CROP)
    files = sorted(map(str, folder.glob('*.png')))
    assert names == [*files, files[0]] and np.allclose(x[0], x[-1], atol=1e-5)


def test_gray_arrays_and_tensors_equal_gray_images(checkpoint, pixels):
    gray = pixels[0, :, :, 0]
    expected, _ = mmairl.embed(checkpoint, Image.fromarray(gray), size=CROP)
    kinds = gray, gray[..., None], torch.from_numpy(gray), torch.from_numpy(gray)[None]
    for image in kinds:
        assert np.allclose(mmairl.embed(checkpoint, [image], size=CROP)[0], expected, atol=1e-5)


def test_own_statistics_are_used(network, checkpoint, pixels):
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    x, _ = mmairl.embed(checkpoint, list(pixels), size=CROP, mean=mean, std=std)
    assert np.allclose(x, expected(network, pixels, mean, std), atol=1e-4)


def test_vit_equals_timm(pixels, tmp_path):
    torch.manual_seed(0)
    vit = timm.create_model('vit_tiny_patch16_224', num_classes=0, img_size=224).eval()
    torch.save(vit.state_dict(), tmp_path / 'vit.pth')
    large = np.kron(pixels, np.ones((1, 4, 4, 1), np.uint8))
    x, _ = mmairl.embed(
        tmp_path / 'vit.pth', list(large), size=224, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    inner = torch.from_numpy(large[:, 16:-16, 16:-16]).permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        assert np.allclose(x, vit(inner), atol=1e-3)


def test_unreadable_image_has_no_row(checkpoint, folder, tmp_path):
    (tmp_path / 'broken.png').write_bytes(b'no image')
    files = [folder / 'a.png', tmp_path / 'broken.png', folder / 'b.png']
    with pytest.warns(UserWarning, match='unreadable images: 1, such as'):
        x, names = mmairl.embed(checkpoint, files, size=CROP)
    assert len(x) == 2 and names == [str(files[0]), str(files[2])]


@pytest.mark.parametrize(
    'images, code',
    [
        ([], 'no-images'),
        ('missing/', 'no-images'),
        (['missing.png'], 'no-readable-image'),
        (np.zeros((8, 8, 3)), 'unknown-image'),
        ([np.zeros((8, 8, 7), np.uint8)], 'unknown-image'),
    ],
)
def test_wrong_images_are_errors(checkpoint, images, code):
    with raises_code(code):
        mmairl.embed(checkpoint, images)
