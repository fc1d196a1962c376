"""Each batched operation against torchvision's, image by image at the same parameters, and the distributions drawn from."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from mmengine.config import Config
from scipy.stats import ks_2samp
from torch import Tensor

from mmairl.data.transforms import gaussian, interleaved, planes
from mmairl.data.views import build_views

COUNT = 24
VIEWS = Path(__file__).parents[2] / 'configs/_base_/views'


def images(size: int = 40) -> Tensor:
    return torch.rand(COUNT, 3, size, size)


def build(**config):
    return build_views([[config]])[0][0]


def test_a_batched_crop_is_torchvisions_antialiased_crop():
    crop, batch = build(type='RandomResizedCrop', size=24, scale=(0.1, 1.0)), images()
    params = crop.draw(COUNT, 40, 40)
    for image, out, i in zip(batch, crop.apply(batch, params), range(COUNT)):
        box = [int(params[key][i]) for key in ('top', 'left', 'height', 'width')]
        expected = F.resized_crop(image, *box, [24, 24], antialias=True)
        torch.testing.assert_close(out, expected, atol=2e-3, rtol=0)


def test_boxes_have_the_asked_area_and_aspect_and_stay_inside():
    crop = build(type='RandomResizedCrop', size=24, scale=(0.2, 0.6))
    params = crop.draw(4000, 100, 100)
    area, ratio = params['height'] * params['width'] / 1e4, params['width'] / params['height']
    assert area.min() > 0.19 and area.max() < 0.61
    assert area.mean() == pytest.approx(0.4, abs=0.01), 'uniform in area'
    assert ratio.min() > 0.73 and ratio.max() < 1.37
    assert ratio.log().mean() == pytest.approx(0, abs=0.01), 'log-uniform in aspect'
    for start, length in (('top', 'height'), ('left', 'width')):
        assert (params[start] >= 0).all() and (params[start] + params[length] <= 100).all()


def test_an_image_too_long_for_any_box_is_cropped_in_the_middle():
    params = build(type='RandomResizedCrop', size=8, scale=(0.9, 1.0)).draw(5, 10, 100)
    assert params['height'].tolist() == [10] * 5 and params['width'].tolist() == [13] * 5
    assert params['left'].tolist() == [(100 - 13) // 2] * 5


ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


def test_batched_jitter_is_torchvisions_in_each_images_own_order():
    jitter = build(type='ColorJitter', p=0.7, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    batch, params = images(), jitter.draw(COUNT, 40, 40)
    assert 0 < params['on'].sum() < COUNT
    for i, out in enumerate(jitter.apply(batch, params)):
        expected = batch[i]
        for operation in params['order'][i].tolist() if params['on'][i] else []:
            expected = ADJUST[operation](expected, params['amounts'][i, operation].item())
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


def test_jitter_draws_uniform_factors_in_every_order():
    params = build(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.3, saturation=0.2, hue=0.1).draw(9600, 1, 1)
    assert params['on'].float().mean() == pytest.approx(0.8, abs=0.02)
    for column, (low, high) in enumerate([(0.6, 1.4), (0.7, 1.3), (0.8, 1.2), (-0.1, 0.1)]):
        values = (params['amounts'][:, column] - low) / (high - low)
        assert values.min() >= 0 and values.max() <= 1
        assert values.mean() == pytest.approx(0.5, abs=0.02) and values.std() == pytest.approx(
            1 / math.sqrt(12), abs=0.01
        )
    orders = (params['order'] * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)[1]
    assert len(orders) == 24 and orders.min() > 300 and orders.max() < 500


def test_batched_blur_is_torchvisions_at_each_images_own_sigma():
    blur, batch = build(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0), kernel_size=5), images()
    params = blur.draw(COUNT, 40, 40)
    assert 0 < params['on'].sum() < COUNT
    for i, out in enumerate(blur.apply(batch, params)):
        sigma = params['sigma'][i].item()
        expected = F.gaussian_blur(batch[i], [5, 5], [sigma, sigma]) if params['on'][i] else batch[i]
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_the_kernel_is_the_papers_at_full_size():
    assert build(type='GaussianBlur', p=0.5).taps(224) == 23


def test_grey_flip_and_solarize_act_on_the_drawn_images_only():
    batch = images()
    cases = {
        'RandomGrayscale': lambda image: F.rgb_to_grayscale(image, 3),
        'RandomFlip': F.horizontal_flip,
        'Solarize': lambda image: F.solarize(image, 127.5 / 255),
    }
    for kind, change in cases.items():
        operation = build(type=kind, p=0.5)
        params = operation.draw(COUNT, 40, 40)
        assert 0 < params['on'].sum() < COUNT
        for i, out in enumerate(operation.apply(batch, params)):
            torch.testing.assert_close(out, change(batch[i]) if params['on'][i] else batch[i], atol=1e-5, rtol=0)


RECIPE = [
    dict(type='RandomResizedCrop', size=24, scale=(0.2, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
    dict(type='Solarize', p=0.2, threshold=128),
]


def picture(height: int, width: int) -> Tensor:
    """Noise with grey, black and white parts, where hue and saturation have their edges."""
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    image[:, :5] = image[:1, :5]
    image[:, 5:8], image[:, 8:11] = 0, 255
    return image


def test_a_worker_crops_as_torchvision_does_whatever_the_layout_of_the_image():
    crop, image = build(type='RandomResizedCrop', size=24, scale=(0.1, 1.0)), picture(60, 45)
    as_decoded = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    for _ in range(20):
        params = crop.draw(1, 60, 45)
        box = [int(params[key]) for key in ('top', 'left', 'height', 'width')]
        expected = F.resized_crop(image, *box, [24, 24], antialias=True)
        assert torch.equal(crop.single(image, params), expected)
        assert torch.equal(crop.single(as_decoded, params), expected)


def test_what_the_blur_leaves_out_is_a_millionth_of_the_kernel():
    shorter = 0
    for sigma in np.linspace(0.1, 2.0, 200):
        whole = np.exp(-0.5 * (np.arange(-11, 12) / sigma) ** 2)
        whole /= whole.sum()
        kept = gaussian(sigma, 23)
        missing = (23 - len(kept)) // 2
        shorter += missing > 0
        assert whole[:missing].sum() + whole[23 - missing :].sum() < 1e-6
        np.testing.assert_allclose(kept, whole[missing : 23 - missing], rtol=1e-6)
    assert shorter > 150, 'most blurs are narrower than the kernel'


def test_what_p_has_not_chosen_stays_as_it_is():
    image, batch = picture(20, 20), images()
    for step in RECIPE[1:]:
        operation = build(**{**step, 'p': 0.0})
        assert operation(image) is image and torch.equal(operation.batch(batch), batch)


def test_opencvs_layout_and_back_is_the_same_image():
    image = picture(7, 9)
    assert np.array_equal(interleaved(image), image.permute(1, 2, 0).numpy())
    assert torch.equal(planes(interleaved(image)), image)


@pytest.mark.parametrize('step', [*RECIPE, dict(type='GaussianBlur', p=1.0, kernel_size=5)], ids=lambda s: s['type'])
def test_the_worker_form_is_the_batched_form_rounded_to_bytes(step):
    operation = build(**{**step, 'p': 1.0} if 'p' in step else step)
    image = picture(40, 50)
    for seed in range(20):
        torch.manual_seed(seed)
        single = operation(image)
        torch.manual_seed(seed)
        batched = operation.batch(image[None] / 255)[0] * 255
        # torch resizes bytes with weights of whole numbers, and cuts in two steps
        assert (single - batched).abs().max() < (1.2 if step['type'] == 'RandomResizedCrop' else 0.52)


DRAWN = {  # by torch's generator from the seed 3, for two images of 60 x 45: the same in every version of this package
    'RandomResizedCrop': dict(top=[22, 12], left=[12, 14], height=[27, 29], width=[23, 22]),
    'ColorJitter': dict(
        on=[1, 1],
        amounts=[[0.6034, 0.8287, 0.9886, 0.0189], [0.6845, 0.6216, 0.824, 0.0776]],
        order=[[2, 3, 0, 1], [0, 2, 1, 3]],
    ),
    'GaussianBlur': dict(on=[1, 1], sigma=[0.6431, 0.1512]),
}


@pytest.mark.parametrize('kind', DRAWN)
def test_a_seed_draws_what_it_always_drew(kind):
    torch.manual_seed(3)
    params = build(**next(step for step in RECIPE if step['type'] == kind)).draw(2, 60, 45)
    for key, values in DRAWN[kind].items():
        torch.testing.assert_close(params[key].double(), torch.tensor(values, dtype=torch.float64), atol=1e-4, rtol=0)


def config(name: str) -> Config:
    return Config.fromfile(VIEWS / f'{name}.py')


@pytest.mark.parametrize(
    ('whole', 'rest'), [('mocov2.mocov2_view', 'mocov2_on_device'), ('byol.second_view', 'second_on_device')]
)
def test_a_view_in_two_parts_is_the_view(whole, rest):
    """Its config adds up to the published one; and from the same draws a worker and the device make the same of an image."""
    file, name = whole.split('.')
    crop = 'mocov2_crop' if file == 'mocov2' else 'byol_crop'
    steps = config(file)[name]
    parts = config('on_device')
    assert [*parts[crop], *parts[rest]] == list(steps)
    worker, device = build_views([steps])[0], build_views([parts[rest]])[0]
    image = F.resize(torch.randint(0, 256, (3, 10, 12), dtype=torch.uint8), [250, 300], antialias=True)
    for seed in range(12):
        torch.manual_seed(seed)
        single = image
        for transform in worker:
            single = transform(single)
        torch.manual_seed(seed)
        batch = worker[0](image)[None] / 255
        for transform in device:
            batch = transform.batch(batch)
        off = (single - 255 * batch[0]).abs()
        assert off.max() < 3 and off.mean() < 0.6, 'what the worker rounds between two operations'


@pytest.mark.parametrize('step', RECIPE, ids=lambda step: step['type'])
def test_parameters_for_many_images_are_distributed_as_those_for_one(step):
    operation, count = build(**step), 500
    many = operation.draw(count, 50, 70)
    singles = [operation.draw(1, 50, 70) for _ in range(count)]
    for key, values in many.items():
        one_by_one = torch.cat([params[key] for params in singles])
        assert one_by_one.shape == values.shape and one_by_one.dtype == values.dtype
        for column, other in zip(values.reshape(count, -1).T, one_by_one.reshape(count, -1).T):
            assert ks_2samp(column.double(), other.double(), method='asymp').pvalue > 1e-4


def test_the_device_is_never_asked_for_a_value():
    """Tensors without values, on the device 'meta', refuse whatever a host would have to wait for."""
    batch = torch.empty(COUNT, 3, 40, 40, device='meta')
    for step in RECIPE:
        batch = build(**step).batch(batch)
    assert batch.shape == (COUNT, 3, 24, 24) and batch.is_meta
