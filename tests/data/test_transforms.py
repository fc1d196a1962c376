"""Both forms of each transform equal torchvision's operation, and equal seeds draw equal parameters."""

import pytest
import torch
import torchvision.transforms.v2.functional as F
from harness.errors import raises_code
from torch import Tensor

from mmairl.data.datasets import build_views
from mmairl.data.transforms import Augmentation

COUNT = 24
STEPS = dict(
    RandomResizedCrop=dict(size=24, scale=(0.2, 1.0)),
    RandomFlip=dict(p=0.5),
    ColorJitter=dict(p=0.5, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    RandomGrayscale=dict(p=0.5),
    GaussianBlur=dict(p=0.5, sigma=(0.1, 2.0)),
    Solarize=dict(p=0.5, threshold=128),
)
ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def build(kind: str, **settings) -> Augmentation:
    return build_views([[dict(type=kind, **{**STEPS.get(kind, {}), **settings})]])[0][0]


def box(params: dict, i: int = 0) -> list[int]:
    return [int(params[key][i]) for key in ('top', 'left', 'height', 'width')]


def jittered(image: Tensor, params: dict, i: int) -> Tensor:
    for operation in params['order'][i].tolist():
        image = ADJUST[operation](image, params['amounts'][i, operation].item())
    return image


# torchvision's equivalent for one image with the i-th parameters, and the tolerance.
THEIRS = {
    'RandomResizedCrop': (
        lambda x, params, i: F.resized_crop(x, *box(params, i), [24, 24], antialias=True),
        2e-3,
    ),
    'RandomFlip': (lambda x, *_: F.horizontal_flip(x), 0),
    'ColorJitter': (jittered, 1e-4),
    'RandomGrayscale': (lambda x, *_: F.rgb_to_grayscale(x, 3), 1e-5),
    'GaussianBlur': (
        lambda x, params, i: F.gaussian_blur(x, [5, 5], [params['sigma'][i].item()] * 2),
        1e-5,
    ),
    'Solarize': (lambda x, *_: F.solarize(x, 127.5 / 255), 1e-5),
}


@pytest.mark.parametrize('size', [24, 60])
def test_bicubic_crop_equals_torchvision(size):
    crop = build('RandomResizedCrop', size=size, interpolation='bicubic')
    image = torch.rand(3, 40, 40)
    bicubic = F.InterpolationMode.BICUBIC
    for _ in range(COUNT):
        params = crop.draw(1, 40, 40)
        crop.draw = lambda *_, params=params: params
        expected = F.resized_crop(image, *box(params), [size, size], bicubic, antialias=True)
        assert torch.equal(crop(image), expected)
        changed = crop.apply(image[None], params)[0]
        torch.testing.assert_close(changed, expected, atol=1e-5, rtol=0)
        del crop.draw


@pytest.mark.parametrize('kind', STEPS)
def test_device_form_equals_torchvision(kind):
    operation, batch, (theirs, off) = build(kind), torch.rand(COUNT, 3, 40, 40), THEIRS[kind]
    params = operation.draw(COUNT, 40, 40)
    for i, out in enumerate(operation.apply(batch, params)):
        torch.testing.assert_close(out, theirs(batch[i], params, i), atol=off, rtol=0)


def picture(height: int, width: int) -> Tensor:
    """Return noise with gray, black and white parts, for which hue and saturation are edge cases."""
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    image[:, :5] = image[:1, :5]
    image[:, 5:8], image[:, 8:11] = 0, 255
    return image


@pytest.mark.parametrize(
    ('kind', 'height'), [*((kind, 40) for kind in STEPS), ('GaussianBlur', 230)]
)
def test_worker_form_is_the_rounded_device_form(kind, height):
    operation = build(kind)
    image = picture(height, height + 10)
    for _ in range(20):
        params = operation.draw(1, height, height + 10)
        batched = operation.apply(image[None] / 255, params)[0] * 255
        operation.draw, operation.p = lambda *_, params=params: params, 1.0
        # torch resizes bytes with integer weights, and torchvision rounds gray values down.
        off = dict(RandomResizedCrop=1.2, RandomGrayscale=1.0).get(kind, 0.52)
        assert (operation(image) - batched).abs().max() < off
        operation = build(kind)


def test_p_is_the_probability_of_each_image():
    invert = build('Solarize', p=0.3, threshold=0)
    batch = torch.zeros(4000, 3, 1, 1)
    assert 0.25 < invert.batch(batch).mean() < 0.35
    image = torch.zeros(3, 1, 1, dtype=torch.uint8)
    assert 0.2 < sum(bool(invert(image).any()) for _ in range(500)) / 500 < 0.4
    assert torch.equal(build('Solarize', p=0.0, threshold=0).batch(batch), batch)


def test_crop_equals_torchvision_for_any_layout():
    crop = build('RandomResizedCrop')
    image = picture(60, 45)
    as_decoded = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    for seed in range(20):
        torch.manual_seed(seed)
        expected = F.resized_crop(image, *box(crop.draw(1, 60, 45)), [24, 24], antialias=True)
        for layout in (image, as_decoded):
            torch.manual_seed(seed)
            assert torch.equal(crop(layout), expected)


def test_crop_of_a_long_image_fits():
    crop = build('RandomResizedCrop', size=8, scale=(0.9, 1.0))
    for height, width in ((10, 100), (100, 10)):
        for top, left, h, w in zip(*crop.draw(20, height, width).values()):
            assert top == 0 if height == 10 else left == 0
            assert 1 <= h <= height - top
            assert 1 <= w <= width - left


def test_turns_are_the_eight_symmetries():
    image = torch.arange(27, dtype=torch.uint8).view(3, 3, 3)
    turn = build('RandomTurn')
    single = {tuple(turn(image).flatten().tolist()) for _ in range(200)}
    batch = turn.batch((image / 255).expand(200, -1, -1, -1))
    assert single == {tuple(one.flatten().mul(255).round().int().tolist()) for one in batch}
    assert len(single) == 8


@pytest.mark.parametrize('depth', [torch.uint8, torch.uint16, torch.float32])
def test_five_channels_are_changed_alike(depth):
    image = (torch.rand(5, 40, 40) * (1 if depth.is_floating_point else 255)).to(depth)
    image = (
        image.float() / (1 if depth.is_floating_point else 255) if depth is torch.uint16 else image
    )
    for kind in ('RandomResizedCrop', 'RandomFlip', 'GaussianBlur', 'Solarize'):
        assert build(kind)(image).shape[0] == 5
    jitter = build('ColorJitter', p=1.0, saturation=0, hue=0)
    equal = torch.full((5, 8, 8), 100, dtype=torch.uint8)
    assert jitter(equal).std() < 1e-6, 'brightness must not depend on the channel'
    for kind in ('ColorJitter', 'RandomGrayscale'):
        with raises_code('views-channels'):
            build(kind, p=1.0)(image)


def test_device_form_never_waits_for_the_device():
    """A tensor on the device 'meta' has no values, so an operation raises if it reads a value."""
    for kind in STEPS:
        batch = torch.empty(COUNT, 3, 40, 40, device='meta')
        assert build(kind).batch(batch).is_meta
