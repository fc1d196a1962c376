"""Export to folders for model hubs: timm and transformers load the folders and compute the same features."""

import json

import huggingface_hub
import pytest
import timm
import torch
import yaml
from harness.backbones import SIDE, assert_same_features, features, randomized
from harness.errors import raises_code
from safetensors import safe_open
from torch import nn

from mmairl.checkpoints.hub_export import write_hub
from mmairl.checkpoints.read import read_backbone
from mmairl.registry import MODELS

VIT = dict(
    type='VisionTransformer',
    arch=dict(embed_dims=64, num_layers=2, num_heads=1, feedforward_channels=96),
    img_size=SIDE,
    patch_size=16,
)
DINOV3 = dict(
    type='RotaryVisionTransformer', embed_dims=64, num_layers=2, num_heads=1, feedforward_channels=128, patch_size=16
)
NETWORKS = {
    'resnet18': dict(type='ResNet', depth=18),
    'bottleneck': dict(type='ResNet', depth=50, base_channels=8),
    'narrow resnet': dict(type='ResNet', depth=18, stem_channels=16, base_channels=16),
    'narrow stem': dict(type='ResNet', depth=18, stem_channels=8, base_channels=16),
    'bottleneck without projection': dict(type='ResNet', depth=50, stem_channels=32, base_channels=8),
    'five channels': dict(type='ResNet', depth=18, in_channels=5),
    'vit': VIT,
    'vit without biases': {**VIT, 'qkv_bias': False},
    'vit with registers': {**VIT, 'registers': 3},
    'vit with layer scale': {**VIT, 'layer_scale_init_value': 1e-5},
    'dinov3': DINOV3,
    'gated dinov3': {**DINOV3, 'gated': True, 'qkv_bias': True},
}


def checkpoint_of(networks: dict[str, nn.Module], path) -> None:
    state = {f'{prefix}{key}': x for prefix, net in networks.items() for key, x in net.state_dict().items()}
    torch.save(dict(state_dict=state), path)


def noisy(network: dict) -> nn.Module:
    torch.manual_seed(0)
    return randomized(MODELS.build(network))


@pytest.mark.parametrize('name', NETWORKS)
def test_timm_loads_the_folder_with_our_features(name, tmp_path):
    student = noisy(NETWORKS[name])
    teacher = noisy(NETWORKS[name]).apply(lambda layer: hasattr(layer, 'weight') and layer.weight.data.mul_(1.1))
    checkpoint_of({'backbone.': student, 'teacher.backbone.': teacher}, tmp_path / 'a.pth')
    images = torch.randn(2, NETWORKS[name].get('in_channels', 3), SIDE, SIDE)
    for part, ours in (('student', student), ('teacher', teacher)):
        folder = tmp_path / part
        write_hub(read_backbone(tmp_path / 'a.pth', part), folder)
        theirs = timm.create_model(f'local-dir:{folder}', pretrained=True).eval()
        expected = features(ours, images)
        assert (features(theirs, images) - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert theirs.num_features == json.loads((folder / 'config.json').read_text())['num_features']
        assert_same_features(folder, ours, images)


@pytest.mark.parametrize('name', ['narrow resnet', 'bottleneck', 'vit with registers', 'dinov3'])
def test_transformers_loads_the_folder(name, tmp_path):
    transformers = pytest.importorskip('transformers', reason='transformers is not installed')
    checkpoint_of({'backbone.': noisy(NETWORKS[name])}, tmp_path / 'a.pth')
    write_hub(read_backbone(tmp_path / 'a.pth'), tmp_path / 'hub')
    theirs = transformers.AutoModel.from_pretrained(tmp_path / 'hub').eval()
    assert_same_features(tmp_path / 'a.pth', lambda images: theirs(images).pooler_output)


def test_hub_library_reads_the_weights(tmp_path):
    checkpoint_of({'backbone.': noisy(NETWORKS['narrow resnet'])}, tmp_path / 'a.pth')
    file = write_hub(read_backbone(tmp_path / 'a.pth'), tmp_path / 'hub', 'apache-2.0')
    assert len(huggingface_hub.load_state_dict_from_file(file)) > 100
    with safe_open(file, framework='pt') as opened:
        assert opened.metadata()['format'] == 'pt'
    images = json.loads((tmp_path / 'hub/config.json').read_text())['pretrained_cfg']
    assert images['license'] == 'apache-2.0' and images['mean'] == [0.485, 0.456, 0.406]


UNWRITABLE = {
    'small stem': dict(type='mmpretrain.ResNet_CIFAR', depth=18),
    'projection that timm lacks': dict(type='ResNet', depth=18, stem_channels=32),
    'wide stem': dict(type='ResNet', depth=18, stem_channels=96),
    'gates': {**VIT, 'layer_cfgs': dict(ffn_type='swiglu_fused')},
}


@pytest.mark.parametrize('name', UNWRITABLE)
def test_network_that_timm_lacks_is_an_error(name, tmp_path):
    checkpoint_of({'backbone.': MODELS.build(UNWRITABLE[name])}, tmp_path / 'a.pth')
    with raises_code('unwritable-network'):
        write_hub(read_backbone(tmp_path / 'a.pth'), tmp_path / 'hub')
    assert not (tmp_path / 'hub').exists()


def test_file_in_place_of_the_folder_is_an_error(tmp_path):
    checkpoint_of({'backbone.': MODELS.build(NETWORKS['narrow resnet'])}, tmp_path / 'a.pth')
    (tmp_path / 'hub').write_text('mine')
    with raises_code('not-a-folder'):
        write_hub(read_backbone(tmp_path / 'a.pth'), tmp_path / 'hub')


def test_command_writes_a_card_and_prints_the_upload(tmp_path, run_tool, capsys):
    checkpoint_of({'backbone.': MODELS.build(NETWORKS['narrow resnet'])}, tmp_path / 'a.pth')
    run_tool('tools/convert.py', tmp_path / 'a.pth', tmp_path / 'hub', '--to', 'hub', '--license', 'mit')
    files = {path.name for path in (tmp_path / 'hub').iterdir()}
    assert files == {'README.md', 'config.json', 'model.safetensors'}
    assert f'hf upload ORG/NAME {tmp_path}/hub' in capsys.readouterr().out
    card = (tmp_path / 'hub/README.md').read_text()
    front = yaml.safe_load(card.split('---\n')[1])
    assert front['license'] == 'mit' and front['library_name'] == 'timm' and 'torch.load' not in card
