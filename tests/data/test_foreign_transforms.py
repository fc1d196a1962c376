"""Transforms of other libraries in a pipeline of views."""

import random

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from mmairl.data.datasets import ViewDataset, build_views
from mmairl.data.sampler import ResumableSampler, TrainingImages
from mmairl.data.transforms import ForeignTransform, as_configs

ROTATION = dict(
    type='ForeignTransform', transform='torchvision.transforms.v2.RandomRotation', degrees=30
)
IMAGE = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)


def shift(image: Tensor, most: int = 9) -> Tensor:
    """Shift the image by random amounts. One comes from Python's generator, the other from NumPy's."""
    return image.roll((random.randint(0, most), int(np.random.randint(most))), (-2, -1))


class Same(ViewDataset):
    """A data set that holds the same image eight times."""

    classes = ['a']

    def __init__(self, views: list) -> None:
        super().__init__(views)
        self.labels = torch.zeros(8, dtype=torch.int64)

    def raw(self, index: int) -> Tensor:
        return IMAGE


def epoch(step: object, workers: int) -> Tensor:
    data = TrainingImages(Same([[step]]))
    loader = DataLoader(data, 4, sampler=ResumableSampler(data, seed=3), num_workers=workers)
    return torch.cat([batch['inputs'][0] for batch in loader])


@pytest.mark.parametrize(
    'step',
    [ROTATION, v2.RandomResizedCrop(20), dict(type='ForeignTransform', transform=shift, most=3)],
)
def test_seed_repeats_a_foreign_step_in_any_worker(step):
    views = epoch(step, workers=0)
    assert torch.equal(views, epoch(step, workers=2))
    assert len(views.flatten(1).unique(dim=0)) > 4


def test_albumentations_repeats_by_seed():
    albumentations = pytest.importorskip('albumentations', reason='albumentations is not installed')
    chain = albumentations.Compose(
        [albumentations.HorizontalFlip(p=1), albumentations.RandomBrightnessContrast(p=1)]
    )
    views = epoch(chain, workers=0)
    assert torch.equal(views, epoch(chain, workers=2))
    assert len(views.flatten(1).unique(dim=0)) > 4
    ((step,),) = build_views(
        [[dict(type='ForeignTransform', transform='albumentations.HorizontalFlip', p=1)]]
    )
    for image in (IMAGE, IMAGE / 255, IMAGE[:1]):
        assert torch.equal(step(image), image.flip(-1))


def test_objects_are_named_in_configs():
    first = v2.RandomRotation(5)
    second = v2.RandomRotation(5)
    configs = as_configs([first, second, shift, ROTATION])
    assert configs[2] == dict(type='ForeignTransform', transform=f'{__name__}.shift')
    assert configs[3] is ROTATION
    (steps,) = build_views([eval(repr(configs))])
    assert [step.transform for step in steps[:3]] == [first, second, shift]


@pytest.mark.parametrize(
    'function',
    [lambda image: image[None], lambda image: image[:1], lambda image: None, v2.FiveCrop(8)],
)
def test_result_that_is_not_one_image_is_an_error(function):
    with raises_code('not-one-image'):
        ForeignTransform(function)(IMAGE)


@pytest.mark.parametrize('name', ['torchvision.transforms.v2.Nothing', 'no_such_package.Blur'])
def test_unknown_transform_is_an_error(name):
    with raises_code('no-transform'):
        build_views([[dict(type='ForeignTransform', transform=name)]])
