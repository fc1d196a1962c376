"""The architecture follows from the shapes of tensors, except for the number of attention heads."""

import pytest
import torch
import torchvision
from harness.backbones import assert_same_features, vit, with_prefix

from mmairl.checkpoints.architecture import resnet_of
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone


@pytest.mark.parametrize('depth', [18, 34, 50, 101])
def test_depth_follows_from_the_weights(depth):
    with torch.device('meta'):
        network = getattr(torchvision.models, f'resnet{depth}')()
    assert resnet_of(network.state_dict())['depth'] == depth


@pytest.mark.parametrize(
    'width, heads, prefix', [(384, 12, 'module.base_encoder.'), (384, 6, ''), (96, 1, '')]
)
def test_heads_follow_from_project_or_width(width, heads, prefix, tmp_path, warnings):
    network = vit(embed_dim=width, depth=1, num_heads=heads)
    torch.save(with_prefix(prefix, network.state_dict()), tmp_path / 'a.pth')
    for to in ('mmairl', 'safetensors'):
        write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / f'a.{to}', to)
        write_backbone(read_backbone(tmp_path / f'a.{to}'), tmp_path / f'again.{to}', to)
        assert_same_features(tmp_path / f'again.{to}', network)
    assert bool(warnings) == (width == 96)


@pytest.mark.parametrize(
    'settings, heads', [({'arch': 'deit-small'}, 6), ({'arch.num_heads': '8'}, 8), ({}, 6)]
)
def test_heads_follow_from_the_training_run(settings, heads, tmp_path):
    meta = dict(settings={f'model.backbone.{key}': text for key, text in settings.items()})
    state = with_prefix('backbone.', vit(embed_dim=384, depth=1).state_dict())
    torch.save(dict(state_dict=state, meta=meta), tmp_path / 'a.pth')
    assert read_backbone(tmp_path / 'a.pth').network['arch']['num_heads'] == heads
