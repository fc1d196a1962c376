"""Synthetic data in the layouts of VOC, COCO, Cityscapes and NYU. These tests are skipped if mmdet or mmseg is missing."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from transfer.drawn_sets import write_coco, write_voc

from mmairl.transfer.mmcv_ops import use_torchvision_ops

collect_ignore_glob = [] if find_spec('mmdet') and find_spec('mmseg') else ['test_*.py']
use_torchvision_ops()  # mmdet must not be imported before the ops are replaced


@pytest.fixture(scope='session')
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp('drawn')
    write_voc(root / 'voc', {'VOC2007': dict(trainval=6, test=3), 'VOC2012': dict(trainval=3)})
    write_coco(root / 'coco', dict(train2017=6, val2017=3))
    generator = np.random.default_rng(0)

    def draw(image, labels, size, values):
        for path, array in (
            (image, generator.integers(0, 255, (*size, 3), np.uint8)),
            (
                labels,
                generator.choice(
                    np.array(values, np.uint16 if max(values) > 255 else np.uint8), size
                ),
            ),
        ):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(root / path)

    for split, number in (('train', 0), ('train', 1), ('val', 0)):
        name = f'{split}/town/town_{number:06d}_000019'
        city = (
            f'cityscapes/leftImg8bit/{name}_leftImg8bit.png',
            f'cityscapes/gtFine/{name}_gtFine_labelTrainIds.png',
        )
        draw(*city, (64, 128), [0, 5, 18, 255])
        room = f'{split.replace("val", "test")}/room_0000{number}'
        draw(
            f'nyuv2/images/{room}.jpg', f'nyuv2/annotations/{room}.png', (240, 320), [0, 1000, 8000]
        )
    return root


@pytest.fixture(scope='session')
def pretrained(tmp_path_factory):
    """Return a function that writes a pre-training checkpoint of an untrained ResNet of some depth."""

    def write(depth):
        torch.manual_seed(0)
        state = getattr(torchvision.models, f'resnet{depth}')().state_dict()
        path = tmp_path_factory.mktemp('pretrained') / f'r{depth}.pth'
        torch.save(
            dict(meta={}, state_dict={f'backbone.{key}': value for key, value in state.items()}),
            path,
        )
        return path

    return write
