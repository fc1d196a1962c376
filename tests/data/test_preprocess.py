"""Batches before and after the preprocessor, and the one preprocessing of evaluation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from mmengine.config import Config
from PIL import Image
from torch import Tensor, nn

from mmairl.data.datasets import UnlabelledFolder, ViewDataset
from mmairl.data.preprocess import (
    ViewPreprocessor,
    normalize,
    preprocessing_code,
    preprocessing_of,
    require_channels,
    view_of,
)

RECIPE = [
    dict(type='RandomResizedCrop', size=24, scale=(0.2, 1.0)),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
]
FLIP = [dict(type='RandomFlip', p=1.0)]
INVERT = [dict(type='Solarize', p=1.0, threshold=0)]
RGB = dict(mean=(0.0,) * 3, std=(1.0,) * 3)


def batch(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def test_each_view_continues_with_its_own_pipeline():
    make = ViewPreprocessor(**RGB, views=[FLIP, INVERT])
    first, second = batch(2, 4, 3, 8, 8)
    for inputs in ([first, second], [first]):
        flipped, inverted = make(dict(inputs=inputs), training=True)['inputs']
        torch.testing.assert_close(flipped, first.flip(-1) / 255)
        torch.testing.assert_close(inverted, 1 - inputs[-1] / 255)
    with raises_code('views-differ'):
        make(dict(inputs=[first] * 3), training=True)


def test_seed_repeats_views_and_evaluation_has_none():
    make = ViewPreprocessor((0.5, 0.4, 0.3), (0.2,) * 3, views=[RECIPE, RECIPE])
    data = dict(
        inputs=[batch(8, 3, 40, 40)], data_samples=dict(label=torch.ones(8), index=torch.arange(8))
    )
    made = []
    for autocast in (False, True):
        torch.manual_seed(1)
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            made.append(make(data, training=True))
    first, second = made[0]['inputs']
    assert first.shape == (8, 3, 24, 24)
    assert not torch.equal(first, second)
    assert all(map(torch.equal, made[0]['inputs'], made[1]['inputs'])), 'autocast changes the views'
    (still,) = make(data, training=False)['inputs']
    torch.testing.assert_close(
        still, (data['inputs'][0] / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / 0.2
    )
    assert not make.state_dict()


def test_single_view_is_a_tensor():
    make = ViewPreprocessor((0.5,) * 3, (0.2,) * 3, single_view=True)
    images = batch(4, 3, 8, 8)
    torch.testing.assert_close(make(dict(inputs=[images]))['inputs'], (images / 255 - 0.5) / 0.2)
    with raises_code('several-views'):
        make(dict(inputs=[images] * 2))


class FiveChannels(ViewDataset):
    channels = 5

    def raw(self, index: int) -> Tensor:
        return torch.linspace(-1, 200, 5).view(5, 1, 1)


def test_wrong_channels_or_values_are_an_error():
    data = FiveChannels(None)
    mean = [0.5] * 5
    require_channels(data, mean, nn.Conv2d(5, 1, 1), [[]])
    wrong = FiveChannels([INVERT])
    for code, *arguments in (
        ('other-channels', data, [0.5] * 3),
        ('other-channels', data, mean, nn.Conv2d(3, 1, 1)),
        ('views-range', wrong, mean, None, wrong.views),
    ):
        with raises_code(code):
            require_channels(*arguments)
    with raises_code('bad-statistics'):
        ViewPreprocessor([0.5], [0.0])


def normalized(kind: str, value: float) -> dict:
    device = dict(type=kind, mean=[value], std=[value])
    return dict(model=dict(data_preprocessor=device))


CROPS = [[dict(type='RandomResizedCrop', size=64)]] * 2


@pytest.mark.parametrize(
    ('cfg', 'expected'),
    [
        ({}, dict(resize=256, size=224, channels=None)),
        (
            dict(train_dataloader=dict(dataset=dict(views=CROPS, channels=5))),
            dict(resize=73, size=64, channels=5),
        ),
        (
            dict(
                train_dataloader=dict(dataset=dict(dataset=dict(channels=1))),
                model=dict(data_preprocessor=dict(mean=[0.5], std=[0.2], views=CROPS)),
            ),
            dict(resize=73, size=64, channels=1, mean=[0.5], std=[0.2]),
        ),
        (
            dict(preprocessing=dict(size=32, interpolation='bicubic')),
            dict(resize=36, size=32, interpolation='bicubic'),
        ),
        (dict(preprocessing=dict(size=48, resize=48)), dict(resize=48, size=48)),
        (normalized('mmairl.MaskedPreprocessor', 0.5), dict(mean=[0.5], std=[0.5])),
        (normalized('mmpretrain.SelfSupDataPreprocessor', 127.5), dict(mean=[0.5], std=[0.5])),
    ],
)
def test_preprocessing_follows_from_the_config(cfg, expected):
    found = preprocessing_of(Config(cfg))
    assert {key: found[key] for key in expected} == expected
    assert preprocessing_of(Config(dict(preprocessing=found))) == found, (
        'a stored preprocessing is the same'
    )


def test_unknown_key_of_preprocessing_is_an_error():
    with raises_code('unknown-key'):
        preprocessing_of(dict(preprocessing=dict(crop=3)))


def images_in(folder: Path, channels: int | None) -> Path:
    random = np.random.default_rng(0)
    if channels:
        path = folder / 'image.npy'
        np.save(path, random.integers(0, 65536, (90, 120, channels), np.uint16))
    else:
        path = folder / 'image.png'
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(random.integers(0, 256, (90, 120, 4), np.uint8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize('size', [32, 64, 224])
@pytest.mark.parametrize('channels', [None, 5])
def test_printed_recipe_equals_the_data_set(tmp_path, size, channels, monkeypatch):
    number = channels or 3
    statistics = dict(mean=[0.4] * number, std=[0.2] * number, channels=channels)
    preprocessing = preprocessing_of(dict(preprocessing=dict(size=size, **statistics)))
    path = images_in(tmp_path, channels)
    data = UnlabelledFolder(tmp_path, views=[view_of(preprocessing)], channels=channels)
    expected = normalize(data[0]['inputs'][0], statistics['mean'], statistics['std'])[None]
    monkeypatch.chdir(tmp_path)
    code = preprocessing_code(preprocessing).replace('image.jpg', path.name)
    values = {}
    exec('import numpy as np\nimport torch\nfrom PIL import Image, ImageOps\n' + code, values)
    assert expected.shape == (1, number, size, size)
    torch.testing.assert_close(values['x'].float(), expected, atol=0.006 / 0.2, rtol=0)
