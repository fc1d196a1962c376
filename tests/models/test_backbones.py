"""Features that backbones of several packages return, and the stages into which their parameters are divided."""

import sys

import pytest
import torch
import torchvision
from harness.errors import raises_code
from torch import nn

from mmairl.models.backbones import extra_tokens, features, parameters_by_stage, pooled, stages
from mmairl.registry import MODELS


def test_vision_transformer_has_quarters_as_stages():
    vit = dict(
        type='mmpretrain.VisionTransformer',
        arch='deit-tiny',
        img_size=32,
        patch_size=16,
        out_type='cls_token',
    )
    backbone = MODELS.build(vit)
    parts = parameters_by_stage(nn.ModuleDict(dict(backbone=backbone)))
    assert list(parts) == ['backbone', 'layers_0-2', 'layers_3-5', 'layers_6-8', 'layers_9-11']
    assert sum(map(len, parts.values())) == len(list(backbone.parameters()))
    assert {id(p) for p in parts['layers_3-5']} == {
        id(p) for p in backbone.layers[3:6].parameters()
    }
    five = nn.ModuleList(nn.Linear(1, 1) for _ in range(5))
    assert list(stages(nn.ModuleDict(dict(layers=five)))) == [
        'layers_0-1',
        'layers_2',
        'layers_3',
        'layers_4',
    ]


TINY = dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32)
SIZE = dict(img_size=32, patch_size=8)
TIMM = dict(
    type='TimmBackbone',
    name='vit_tiny_patch16_224',
    embed_dim=16,
    depth=1,
    num_heads=2,
    reg_tokens=2,
    **SIZE,
)


@pytest.mark.parametrize(
    'config, extra, patches',
    [
        (dict(type='mmpretrain.VisionTransformer', arch=TINY, out_type='raw', **SIZE), 1, True),
        (
            dict(type='mmpretrain.VisionTransformer', arch=TINY, out_type='cls_token', **SIZE),
            1,
            False,
        ),
        (dict(type='mmpretrain.MAEViT', arch=TINY, **SIZE), 1, True),
        (dict(TIMM, tokens=True), 3, True),
        (TIMM, 3, False),
    ],
)
def test_features_are_class_token_and_patches(config, extra, patches):
    backbone = MODELS.build(config)
    backbone.eval()
    images = torch.randn(2, 3, 32, 32)
    found = features(backbone, images)
    assert extra_tokens(backbone) == extra and found.pooled.shape == (2, 16)
    if not patches:
        assert found.patches is None
        return
    output = backbone(images, mask=None) if 'MAE' in config['type'] else backbone(images)
    tokens = output if isinstance(output, torch.Tensor) else output[-1]
    assert torch.equal(found.pooled, tokens[:, 0])
    assert torch.equal(found.patches.flatten(2).transpose(1, 2), tokens[:, extra:])
    assert found.patches.shape[2:] == (4, 4)


def test_features_of_a_map_are_averaged():
    network = nn.Sequential(*list(torchvision.models.resnet18().children())[:-2])
    images = torch.randn(2, 3, 64, 96)
    found = features(network, images)
    assert found.patches.shape == (2, 512, 2, 3)
    torch.testing.assert_close(found.pooled, found.patches.flatten(2).mean(dim=2))


@pytest.mark.parametrize(
    'output',
    [torch.zeros(2, dtype=torch.int64), (torch.zeros(2, 4, 8), torch.zeros(2, 4).long()), None],
)
def test_other_outputs_are_not_features(output):
    with raises_code('not-features'):
        pooled(output)


def test_timm_backbone_keeps_its_weights_and_names():
    backbone = MODELS.build(dict(TIMM, drop_path=0.3))
    before = backbone.patch_embed.proj.weight.clone()
    assert (
        backbone.blocks[0].drop_path1.drop_prob == 0.3
        and 'blocks.0.attn.qkv.weight' in backbone.state_dict()
    )
    backbone.init_weights()
    assert torch.equal(backbone.patch_embed.proj.weight, before)


def test_timm_backbone_without_timm_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm', None)
    with raises_code('no-timm'):
        MODELS.build(TIMM)


def test_maps_with_channels_last_are_an_error():
    swin = dict(type='TimmBackbone', name='swin_tiny_patch4_window7_224', embed_dim=16)
    swin |= dict(img_size=64, window_size=4, depths=(1,) * 4, num_heads=(1,) * 4)
    assert MODELS.build(swin)(torch.rand(2, 3, 64, 64)).shape == (2, 128)
    with raises_code('channels-last-maps'):
        MODELS.build(dict(swin, tokens=True))
