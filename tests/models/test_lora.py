"""Low-rank adapters learn alone, and checkpoints hold the merged weights, with which a network without adapters agrees."""

import copy

import torch
from harness.errors import raises_code
from mmengine import Config

from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.backbone import load_backbone
from mmairl.registry import MODELS

VIT = dict(
    type='TimmBackbone',
    name='vit_tiny_patch16_224',
    img_size=32,
    patch_size=8,
    embed_dim=16,
    depth=2,
    num_heads=2,
)


def trained() -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return a network with trained adapters, and a copy of it before training."""
    torch.manual_seed(0)
    network = MODELS.build(dict(VIT, lora=4))
    start = copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.randn(8, 3, 32, 32)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return network, start


def test_only_adapters_learn():
    network, start = trained()
    changed = {
        key
        for (key, value), old in zip(network.named_parameters(), start.parameters(), strict=True)
        if not torch.equal(value, old)
    }
    adapters = {key for key, _ in network.named_parameters() if key.endswith(('.up', '.down'))}
    assert changed == adapters and len(adapters) == 2 * 2 * 4
    layer = network.blocks[0].attn.qkv
    update = layer.parametrizations.weight[0]
    expected = start.blocks[0].attn.qkv.weight + update.up @ update.down
    torch.testing.assert_close(layer.weight, expected)
    assert (
        torch.linalg.matrix_rank(
            (layer.weight - start.blocks[0].attn.qkv.weight).double(), rtol=1e-4
        )
        == 4
    )


def test_features_before_and_after_merging_are_equal(tmp_path):
    network, start = trained()
    images = torch.randn(4, 3, 32, 32)
    expected = network.eval()(images)
    assert not torch.allclose(expected, start.eval()(images), atol=1e-2)
    state = {f'backbone.{key}': value for key, value in network.state_dict().items()}
    torch.save(dict(state_dict=state, meta=dict(settings={})), tmp_path / 'a.pth')
    plain = MODELS.build(VIT).eval()
    found = read_backbone(tmp_path / 'a.pth', network=plain.state_dict()).weights
    assert found.keys() == plain.state_dict().keys()
    plain.load_state_dict(found)
    assert torch.equal(plain(images), expected)
    for backbone in (VIT, dict(VIT, lora=4)):
        cfg = Config(dict(model=dict(backbone=backbone)))
        torch.testing.assert_close(load_backbone(cfg, tmp_path / 'a.pth')(images), expected)


def test_adapters_resume_exactly_and_start_from_plain_weights():
    network, _ = trained()
    fresh = MODELS.build(dict(VIT, lora=4))
    fresh.load_state_dict(network.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), fresh.parameters(), strict=True)
    )
    plain = MODELS.build(VIT)
    fresh = MODELS.build(dict(VIT, lora=4))
    fresh.load_state_dict(plain.state_dict())
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(fresh.eval()(images), plain.eval()(images))


def test_network_without_linear_layers_is_an_error():
    with raises_code('no-linear-layers'):
        MODELS.build(dict(type='TimmBackbone', name='resnet18', lora=4))
