"""Released models are read by name. The tests replace the download by random weights."""

import functools

import pytest
import timm
import torch
import torchvision
from harness.backbones import SIDE, build, features, randomized
from harness.errors import raises_code

from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.released import is_hub, is_released
from mmairl.registry import MODELS


@pytest.fixture
def networks(monkeypatch):
    """Return the list of the networks that timm creates, with random instead of released weights."""
    create = timm.create_model
    created = []

    @functools.wraps(create)
    def create_random(model_name, pretrained=False, **how):
        if model_name.startswith('vit'):
            how['depth'] = 2
        created.append(randomized(create(model_name, **how)))
        return created[-1]

    monkeypatch.setattr(timm, 'create_model', create_random)
    return created


RELEASED = {
    'vit_small_patch14_dinov2.lvd142m': (518, 'bicubic'),
    'vit_small_patch14_reg4_dinov2.lvd142m': (518, 'bicubic'),
    'vit_small_patch16_dinov3.lvd1689m': (256, 'bicubic'),
    'resnet18.a1_in1k': (224, 'bicubic'),
}


@pytest.mark.parametrize('name', RELEASED)
def test_timm_builds_its_network_and_describes_its_images(name, networks):
    backbone = read_backbone(f'timm:{name}')
    assert (backbone.input.size, backbone.input.interpolation) == RELEASED[name]
    assert (
        backbone.input.mean == (0.485, 0.456, 0.406) and backbone.network['type'] == 'TimmBackbone'
    )
    images = torch.randn(1, 3, RELEASED[name][0], RELEASED[name][0])
    torch.testing.assert_close(features(build(backbone), images), features(networks[0], images))


def test_timm_model_fills_the_network_of_a_config(networks):
    ours = MODELS.build(dict(type='ResNet', depth=18))
    ours.load_state_dict(read_backbone('timm:resnet18', network=ours.state_dict()).weights)
    ours.eval()
    images = torch.randn(2, 3, SIDE, SIDE)
    torch.testing.assert_close(features(ours, images), features(networks[0], images))


def test_torchvision_states_its_images(monkeypatch):
    state = torchvision.models.resnet18().state_dict()
    asked = {}
    monkeypatch.setattr(
        torch.hub,
        'load_state_dict_from_url',
        lambda url, **how: asked.update(how, url=url) or state,
    )
    backbone = read_backbone('torchvision:resnet18')
    assert backbone.network['depth'] == 18 and backbone.dropped == ['fc.weight', 'fc.bias']
    assert backbone.input.size == 224 and backbone.record['file'] == 'torchvision:resnet18'
    assert (
        asked['weights_only']
        and asked['check_hash']
        and asked['url'].endswith('resnet18-f37072fd.pth')
    )


@pytest.mark.parametrize('name', ['torchvision:resnet5', 'timm:resnet5', 'timm:a/b'])
def test_unknown_models_are_one_error(name):
    with raises_code('unavailable-model'):
        read_backbone(name)


def test_names_of_released_models_are_no_paths():
    assert is_released('torchvision:resnet50') and not is_hub('torchvision:resnet50')
    assert is_hub('hf-hub:org/name') and not is_released('work_dirs/timm/a.pth')
