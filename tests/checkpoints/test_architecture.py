"""The architecture follows from the shapes of tensors, except for the number of attention heads."""

import numpy as np
import pytest
import torch
import torchvision
from harness.backbones import assert_same_features, build, dinov3, vit, with_prefix
from harness.errors import raises_code

import mmairl
from mmairl.checkpoints.architecture import resnet_of
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone


@pytest.mark.parametrize('depth', [18, 34, 50, 101])
def test_depth_follows_from_the_weights(depth):
    with torch.device('meta'):
        network = getattr(torchvision.models, f'resnet{depth}')()
    assert resnet_of(network.state_dict())['depth'] == depth


@pytest.mark.parametrize('width, heads, prefix', [(384, 12, 'module.base_encoder.'), (384, 6, ''), (96, 1, '')])
def test_heads_follow_from_project_or_width(width, heads, prefix, tmp_path, warnings):
    network = vit(embed_dim=width, depth=1, num_heads=heads)
    torch.save(with_prefix(prefix, network.state_dict()), tmp_path / 'a.pth')
    for to in ('mmairl', 'safetensors'):
        write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / f'a.{to}', to)
        write_backbone(read_backbone(tmp_path / f'a.{to}'), tmp_path / f'again.{to}', to)
        assert_same_features(tmp_path / f'again.{to}', network)
    assert ['1 heads of 96 dimensions' in text for text in warnings] == [True, True] * (width == 96)


@pytest.mark.parametrize('settings, heads', [({'arch': 'deit-small'}, 6), ({'arch.num_heads': '8'}, 8), ({}, 6)])
def test_heads_follow_from_the_settings(settings, heads, tmp_path, warnings):
    meta = dict(settings={f'model.backbone.{key}': text for key, text in settings.items()})
    state = with_prefix('backbone.', vit(embed_dim=384, depth=1).state_dict())
    torch.save(dict(state_dict=state, meta=meta), tmp_path / 'a.pth')
    assert read_backbone(tmp_path / 'a.pth').network['arch']['num_heads'] == heads
    assert not warnings


def test_sine_positions_mean_the_heads_of_moco_v3(stored, warnings):
    stored.update(vit(embed_dim=384, depth=1).state_dict())
    stored['pos_embed'][0, 1] = torch.tensor([0.0, 1.0]).repeat_interleave(96).repeat(2)
    assert read_backbone('a.pth').network['arch']['num_heads'] == 12
    assert '12 heads of 32 dimensions' in warnings[0]


def test_heads_of_config_json_are_kept(tmp_path, run_tool, warnings):
    (folder := tmp_path / 'released').mkdir()
    torch.save(vit(embed_dim=384, depth=1).state_dict(), folder / 'pytorch_model.bin')
    (folder / 'config.json').write_text('{"num_attention_heads": 8}')
    run_tool('tools/normrescale.py', folder / 'pytorch_model.bin', tmp_path / 'a.pth', '--constant', 0.5)
    for path in (folder / 'pytorch_model.bin', tmp_path / 'a.pth'):
        assert read_backbone(path).network['arch']['num_heads'] == 8
    assert not warnings


def test_vit_without_positions_or_registers_raises(stored):
    stored.update(dinov3().state_dict())
    del stored['reg_token']
    with raises_code('unknown-network'):
        build(read_backbone('a.pth'))


def test_patch_features_of_dinov3_equal_timm(tmp_path):
    network = dinov3()
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    # The images are gray, and `embed` converts them to RGB.
    pixels = np.random.default_rng(0).integers(0, 256, (1, 64, 64), np.uint8)
    # For a size of 56, `embed` resizes images to 64 pixels. It crops the central 48 pixels, because 56
    # is not a multiple of the patch size 16.
    features, _, places = mmairl.embed(tmp_path / 'a.pth', list(pixels), size=56, patches=True, out=tmp_path / 'p.npy')
    mean = torch.tensor([0.485, 0.456, 0.406])
    std = torch.tensor([0.229, 0.224, 0.225])
    image = (torch.from_numpy(pixels[:, 4:52, 4:52, None]) / 255 - mean) / std
    with torch.no_grad():
        expected = network.forward_features(image.permute(0, 3, 1, 2))[:, 5:]
    np.testing.assert_allclose(features, expected.numpy(), atol=1e-4)
    assert len(places) == 9
