"""Export to the formats of other projects: a round trip is exact, and the projects load the files."""

import pickle

import numpy as np
import pytest
import timm
import torch
import torchvision
from harness.backbones import (
    SIDE,
    features,
    narrow_resnet,
    randomized,
    resnet,
    torchvision_vit,
    vit,
    with_prefix,
)
from harness.errors import raises_code
from safetensors import safe_open
from safetensors.torch import load_file

from mmairl.checkpoints.hub_export import write_hub
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import WRITERS, write_backbone
from mmairl.registry import MODELS


def dinov3() -> torch.nn.Module:
    torch.manual_seed(0)
    name = 'vit_small_patch16_dinov3'
    return randomized(
        MODELS.build(dict(type='TimmBackbone', name=name, depth=2, embed_dim=64, num_heads=1))
    )


@pytest.mark.parametrize('to', [to for to in WRITERS if to != 'detectron2'])
def test_round_trip_is_exact(to, tmp_path):
    state = narrow_resnet().state_dict()
    torch.save(dict(state_dict=with_prefix('encoder_q.', state)), tmp_path / 'moco.pth')
    out = tmp_path / ('a.safetensors' if to == 'safetensors' else 'a.pth')
    write_backbone(read_backbone(tmp_path / 'moco.pth'), out, to)
    back = read_backbone(out)
    assert back.weights.keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in back.weights.items())
    assert back.origin['file'] == 'moco.pth' and back.origin['source_format'] == 'MoCo v1 or v2'


def test_detectron2_gets_arrays_under_its_names(tmp_path):
    state = resnet().state_dict()
    torch.save(state, tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'a.pkl', 'detectron2')
    content = pickle.loads((tmp_path / 'a.pkl').read_bytes())
    names = {
        'stem.conv1.weight': 'conv1.weight',
        'stem.conv1.norm.bias': 'bn1.bias',
        'res2.0.conv2.norm.running_var': 'layer1.0.bn2.running_var',
        'res5.0.shortcut.weight': 'layer4.0.downsample.0.weight',
        'res5.0.shortcut.norm.weight': 'layer4.0.downsample.1.weight',
    }
    for theirs, ours in names.items():
        assert np.array_equal(content['model'][theirs], state[ours].numpy())
    assert content['matching_heuristics'] and len(content['model']) == sum(
        'num_batches' not in key for key in state
    )


def timm_vit(**how: object) -> torch.nn.Module:
    sizes = dict(img_size=SIDE, patch_size=16, embed_dim=64, depth=2, num_heads=1, num_classes=0)
    return timm.create_model('vit_small_patch16_224', **sizes, **how)


LOADED = {
    'resnet in torchvision': (resnet, 'torchvision', torchvision.models.resnet18),
    'resnet in timm': (resnet, 'timm', lambda: timm.create_model('resnet18')),
    'vit in torchvision': (torchvision_vit, 'torchvision', torchvision_vit),
    'vit of torchvision in timm': (torchvision_vit, 'timm', lambda: timm_vit(mlp_ratio=2)),
    'vit in timm': (vit, 'timm', timm_vit),
}


@pytest.mark.parametrize('name', LOADED)
def test_package_loads_its_format_with_equal_features(name, tmp_path):
    make, to, theirs = LOADED[name]
    network = make()
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'b.pth', to)
    other = theirs().eval()
    faults = other.load_state_dict(torch.load(tmp_path / 'b.pth', weights_only=True), strict=False)
    assert not faults.unexpected_keys and set(faults.missing_keys) <= {'fc.weight', 'fc.bias'}
    other.fc = torch.nn.Identity()
    torch.testing.assert_close(features(other), features(network), atol=1e-4, rtol=1e-4)


NETWORKS = {
    'resnet': dict(type='ResNet', depth=18, base_channels=16),
    'five channels': dict(type='ResNet', depth=18, in_channels=5),
    'vit': dict(
        type='mmpretrain.VisionTransformer',
        arch=dict(embed_dims=64, num_layers=2, num_heads=1, feedforward_channels=96),
        img_size=SIDE,
        patch_size=16,
        qkv_bias=False,
        layer_scale_init_value=1e-5,
    ),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_timm_loads_the_hub_folder_with_equal_features(name, tmp_path):
    torch.manual_seed(0)
    ours = randomized(MODELS.build(NETWORKS[name]))
    torch.save(dict(state_dict=with_prefix('backbone.', ours.state_dict())), tmp_path / 'a.pth')
    write_hub(read_backbone(tmp_path / 'a.pth'), tmp_path / 'hub', license='mit')
    network = timm.create_model(
        f'local-dir:{tmp_path / "hub"}', pretrained=True, num_classes=0
    ).eval()
    images = torch.randn(2, NETWORKS[name].get('in_channels', 3), SIDE, SIDE)
    expected = features(ours, images)
    assert (features(network, images) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert network.pretrained_cfg['license'] == 'mit'
    again = read_backbone(tmp_path / 'hub')
    assert again.network['type'] == 'TimmBackbone'
    assert (
        read_backbone(tmp_path / 'hub', network=ours.state_dict()).weights.keys()
        == ours.state_dict().keys()
    )


@pytest.mark.parametrize('to', ['mmairl', 'safetensors', 'timm'])
def test_network_of_timm_stays_with_converted_files(to, tmp_path):
    network = dinov3()
    settings = dict(
        type='TimmBackbone', name='vit_small_patch16_dinov3', depth=2, embed_dim=64, num_heads=1
    )
    meta = dict(settings={f'model.backbone.{key}': str(value) for key, value in settings.items()})
    torch.save(
        dict(meta=meta, state_dict=with_prefix('backbone.', network.state_dict())),
        tmp_path / 'a.pth',
    )
    out = tmp_path / ('b.safetensors' if to == 'safetensors' else 'b.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), out, to)
    write_hub(read_backbone(out), tmp_path / 'hub')
    for path in (tmp_path / 'a.pth', out, tmp_path / 'hub'):
        backbone = read_backbone(path)
        again = MODELS.build(backbone.network)
        again.load_state_dict(backbone.weights)
        assert torch.equal(features(again.eval()), features(network))


def test_shared_memory_and_records_are_stored(tmp_path):
    state = narrow_resnet().state_dict()
    state['bn1.bias'] = state['bn1.weight']
    torch.save(state, tmp_path / 'a.pth')
    write_backbone(
        read_backbone(tmp_path / 'a.pth'), tmp_path / 'a.safetensors', 'safetensors', note='x'
    )
    assert torch.equal(load_file(tmp_path / 'a.safetensors')['bn1.bias'], state['bn1.weight'])
    with safe_open(tmp_path / 'a.safetensors', framework='pt') as file:
        assert file.metadata()['format'] == 'pt' and file.metadata()['note'] == 'x'


UNWRITABLE = [
    ('torchvision', lambda: vit('vit_small_patch14_dinov2', patch_size=16)),
    ('detectron2', vit),
    ('hub', narrow_resnet),
]


@pytest.mark.parametrize('to, make', UNWRITABLE)
def test_networks_that_a_format_lacks_are_errors(to, make, tmp_path):
    torch.save(make().state_dict(), tmp_path / 'a.pth')
    backbone = read_backbone(tmp_path / 'a.pth')
    with raises_code('unwritable-network'):
        if to == 'hub':
            write_hub(backbone, tmp_path / 'out')
        else:
            write_backbone(backbone, tmp_path / 'out', to)
    assert not (tmp_path / 'out').exists()
