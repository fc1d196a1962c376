"""Transforms of batches equal torchvision's operations and the same transforms in data workers.

Equal seeds draw equal parameters.
"""

from pathlib import Path

import pytest
import torch
import torchvision.transforms.v2.functional as F
from harness.kernels import Kernels
from mmengine.config import Config
from torch import Tensor

from mmairl.data.datasets import build_views
from mmairl.data.transforms import taps_for

COUNT = 24
VIEWS = Path(__file__).parents[2] / 'configs/_base_/views'
RECIPE = [
    dict(type='RandomResizedCrop', size=24, scale=(0.2, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
    dict(type='Solarize', p=0.2, threshold=128),
]
STEPS = {step['type']: step for step in RECIPE}
ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def build(**config):
    return build_views([[config]])[0][0]


def box(params: dict, i: int = 0) -> list[int]:
    return [int(params[key][i]) for key in ('top', 'left', 'height', 'width')]


def jittered(image: Tensor, params: dict, i: int) -> Tensor:
    for operation in params['order'][i].tolist():
        image = ADJUST[operation](image, params['amounts'][i, operation].item())
    return image


# For each operation: torchvision's equivalent for one image with the i-th parameters, and the
# tolerance.
THEIRS = {
    'RandomResizedCrop': (lambda x, params, i: F.resized_crop(x, *box(params, i), [24, 24], antialias=True), 2e-3),
    'RandomFlip': (lambda x, *_: F.horizontal_flip(x), 0),
    'ColorJitter': (jittered, 1e-4),
    'RandomGrayscale': (lambda x, *_: F.rgb_to_grayscale(x, 3), 1e-5),
    'GaussianBlur': (lambda x, params, i: F.gaussian_blur(x, [5, 5], [params['sigma'][i].item()] * 2), 1e-5),
    'Solarize': (lambda x, *_: F.solarize(x, 127.5 / 255), 1e-5),
}


@pytest.mark.parametrize('kind', STEPS)
def test_batched_operation_equals_torchvision(kind):
    half = {'p': 0.5} if 'p' in STEPS[kind] else {}
    operation = build(**{**STEPS[kind], **half})
    batch, (theirs, off) = torch.rand(COUNT, 3, 40, 40), THEIRS[kind]
    params = operation.draw(COUNT, 40, 40)
    on = params.get('on', torch.ones(COUNT))
    assert not half or 0 < on.sum() < COUNT
    for i, out in enumerate(operation.apply(batch, params)):
        torch.testing.assert_close(out, theirs(batch[i], params, i) if on[i] else batch[i], atol=off, rtol=0)


def picture(height: int, width: int) -> Tensor:
    """Return noise with gray, black and white parts, for which hue and saturation are edge cases."""
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    image[:, :5] = image[:1, :5]
    image[:, 5:8], image[:, 8:11] = 0, 255
    return image


RELEASE_JITTER = {**STEPS['ColorJitter'], 'type': 'ReleaseColorJitter'}
WORKER_FORMS = [*((step, 40) for step in [*RECIPE, RELEASE_JITTER]), (STEPS['GaussianBlur'], 230)]


@pytest.mark.parametrize(('step', 'height'), WORKER_FORMS)
def test_worker_form_is_the_rounded_batched_form(step, height):
    operation = build(**{**step, 'p': 1.0} if 'p' in step else step)
    image = picture(height, height + 10)
    for seed in range(20):
        torch.manual_seed(seed)
        single = operation(image)
        torch.manual_seed(seed)
        batched = operation.batch(image[None] / 255)[0] * 255
        # torch resizes bytes with integer weights and rounds after each axis, so the tolerance for crops is larger.
        assert (single - batched).abs().max() < (1.2 if step['type'] == 'RandomResizedCrop' else 0.52)
    if 'p' in step:
        never, batch = build(**{**step, 'p': 0.0}), torch.rand(2, 3, 20, 20)
        assert never(image) is image and torch.equal(never.batch(batch), batch)


def test_crop_equals_torchvision_for_any_layout():
    crop, image = build(type='RandomResizedCrop', size=24, scale=(0.1, 1.0)), picture(60, 45)
    as_decoded = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    for _ in range(20):
        params = crop.draw(1, 60, 45)
        expected = F.resized_crop(image, *box(params), [24, 24], antialias=True)
        assert torch.equal(crop.single(image, params), expected)
        assert torch.equal(crop.single(as_decoded, params), expected)


@pytest.mark.parametrize('interpolation', ['bilinear', 'bicubic'])
def test_resize_keeps_values_outside_zero_to_one(interpolation):
    resize = build(type='Resize', size=(15, 20), interpolation=interpolation)
    images = torch.rand(2, 1, 60, 80)
    shifted = 40 * images - 10
    torch.testing.assert_close(resize.batch(shifted), 40 * resize.batch(images) - 10)
    edge = torch.zeros(1, 1, 60, 80)
    edge[..., 40:] = 1
    assert resize.batch(edge).min() == 0 and resize.batch(edge).max() == 1


def test_too_long_image_is_cropped_in_the_middle():
    crop = build(type='RandomResizedCrop', size=8, scale=(0.9, 1.0))
    assert box(crop.draw(5, 10, 100), 4) == [0, (100 - 13) // 2, 10, 13]
    assert box(crop.draw(5, 100, 10), 4) == [(100 - 13) // 2, 0, 13, 10]


def test_blur_kernel_is_a_tenth_of_the_image():
    assert [taps_for(torch.empty(3, size, 300)) for size in (224, 40, 32)] == [23, 5, 3]


# Seed 3 draws these parameters for two images of 60 x 45 pixels.
DRAWN = {
    'RandomResizedCrop': dict(top=[22, 12], left=[12, 14], height=[27, 29], width=[23, 22]),
    'ColorJitter': dict(
        on=[1, 1],
        amounts=[[0.6034, 0.8287, 0.9886, 0.0189], [0.6845, 0.6216, 0.824, 0.0776]],
        order=[[2, 3, 0, 1], [0, 2, 1, 3]],
    ),
    'GaussianBlur': dict(on=[1, 1], sigma=[0.6431, 0.1512]),
}


@pytest.mark.parametrize('kind', DRAWN)
def test_seed_draws_pinned_parameters(kind):
    torch.manual_seed(3)
    params = build(**STEPS[kind]).draw(2, 60, 45)
    for key, values in DRAWN[kind].items():
        torch.testing.assert_close(params[key].double(), torch.tensor(values, dtype=torch.float64), atol=1e-4, rtol=0)


def test_crop_and_device_part_equal_the_whole_view():
    parts = Config.fromfile(VIEWS / 'on_device.py')
    for file, name, rest in (
        ('mocov2', 'mocov2_view', 'mocov2_on_device'),
        ('byol', 'second_view', 'second_on_device'),
    ):
        assert [*parts[f'{file}_crop'], *parts[rest]] == list(Config.fromfile(VIEWS / f'{file}.py')[name])


def test_operation_never_waits_for_the_device():
    """A tensor on the device 'meta' has no values, so an operation raises if it reads a value."""
    batch = torch.empty(COUNT, 3, 40, 40, device='meta')
    for step in RECIPE:
        operation = build(**step)
        params = operation.draw(COUNT, 40, 40)
        with Kernels('meta') as seen:
            batch = operation.apply(batch, params)
        copies = seen.launches['_to_copy']
        assert copies < 5 and seen.launches.total() - copies <= (43 if 'size' in step else 40), step['type']
    assert batch.shape == (COUNT, 3, 24, 24) and batch.is_meta


def test_release_jitter_equals_its_formulas():
    torch.manual_seed(0)
    images = torch.rand(6, 3, 5, 4)
    jitter = build(**RELEASE_JITTER)
    params = jitter.draw(6, 5, 4)
    assert params['amounts'][:, 0].min() < 0
    changed = jitter.apply(images, params)
    for image, result, on, amounts, order in zip(images, changed, *params.values()):
        expected = image
        for number in order.tolist() if on else []:
            expected = release_change(expected, number, amounts[number].item())
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)


def release_change(image, number, amount):
    if number == 0:
        image = image + amount
    elif number == 1:
        mean = image.mean((1, 2), keepdim=True)
        image = amount * (image - mean) + mean
    elif number == 2:
        image = F.adjust_saturation(image, amount)
    else:
        image = F.adjust_hue(image, amount)
    return image.clamp(0, 1)
