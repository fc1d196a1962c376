"""Each batched operation against torchvision's, image by image at the same parameters, and the distributions drawn from."""

import math

import pytest
import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor

from mmairl.data.preprocess import ViewPreprocessor
from mmairl.data.views import build_views

COUNT = 24


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


@pytest.mark.parametrize('step', RECIPE, ids=lambda step: step['type'])
def test_a_worker_and_the_batched_form_agree_from_the_same_seed(step):
    """One image of bytes through both: they may differ by what rounding to bytes between operations loses."""
    operation = build(**{**step, 'p': 1.0} if 'p' in step else step)
    image = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8)
    torch.manual_seed(5)
    single = operation(image)
    torch.manual_seed(5)
    batched = operation.batch(image[None] / 255)[0] * 255
    assert (single - batched).abs().max() < 5


def test_the_preprocessor_makes_normalised_views_of_one_batch_and_repeats_by_seed():
    make = ViewPreprocessor(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2), views=[RECIPE, RECIPE])
    data = dict(inputs=[torch.randint(0, 256, (COUNT, 3, 40, 40), dtype=torch.uint8)])
    torch.manual_seed(1)
    first, second = make(data, training=True)['inputs']
    torch.manual_seed(1)
    again = make(data, training=True)['inputs']
    assert first.shape == (COUNT, 3, 24, 24) and not torch.equal(first, second)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    still = make(data, training=False)['inputs']
    expected = (data['inputs'][0] / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / 0.2
    torch.testing.assert_close(still[0], expected)
    assert not make.state_dict(), 'the statistics are no part of a checkpoint'
