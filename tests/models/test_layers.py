"""Outputs of selected layers: the stages of a ResNet, and the blocks of a ViT."""

import pytest
import torch
from harness.errors import raises_code
from torch import nn

from mmairl.models.layers import joined_map, layer_outputs
from mmairl.registry import MODELS

VIT = dict(embed_dims=32, num_layers=3, num_heads=2, feedforward_channels=64)


@pytest.fixture
def resnet() -> nn.Module:
    network = MODELS.build(
        dict(type='mmpretrain.ResNet', depth=18, base_channels=8, stem_channels=8)
    )
    network.eval()
    return network


@pytest.fixture
def vit() -> nn.Module:
    torch.manual_seed(0)
    network = MODELS.build(
        dict(
            type='mmpretrain.VisionTransformer', arch=VIT, img_size=32, patch_size=8, out_type='raw'
        )
    )
    network.init_weights()
    network.eval()
    return network


def test_stages_of_a_resnet_are_joined_at_the_largest(resnet):
    outputs = layer_outputs(resnet, torch.rand(2, 3, 64, 96), (-1, 0))
    assert [tuple(output.features.shape) for output in outputs] == [(2, 64, 2, 3), (2, 8, 16, 24)]
    assert outputs[0].token is None
    joined = joined_map(outputs)
    assert joined.shape == (2, 72, 16, 24)
    assert torch.equal(joined[:, 64:], outputs[1].features)


def test_final_norm_applies_to_every_layer_of_a_vit(vit):
    images = torch.rand(2, 3, 24, 40)
    stored = {}
    for number, layer in enumerate(vit.layers):
        layer.register_forward_hook(lambda _, __, out, number=number: stored.update({number: out}))
    outputs = layer_outputs(vit, images, (0, -1))
    for output, number in zip(outputs, (0, 2)):
        tokens = vit.ln1(stored[number])
        torch.testing.assert_close(output.token, tokens[:, 0])
        cells = output.features.flatten(2).transpose(1, 2)
        torch.testing.assert_close(cells, tokens[:, 1:])
        assert output.features.shape == (2, 32, 3, 5)


def test_impossible_layers_and_images_are_errors(vit):
    for code, network, side, layer in [
        ('unknown-layer', vit, 32, 4),
        ('unknown-layer', vit, 32, -4),
        ('no-spatial-features', nn.Flatten(), 8, -1),
    ]:
        with raises_code(code):
            layer_outputs(network, torch.rand(1, 3, side, side), [layer])
