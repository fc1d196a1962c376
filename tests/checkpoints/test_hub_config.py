"""Model hubs store settings next to the weights. The settings must describe the network and its input images."""

import json

import pytest
import timm
import torch
from harness.backbones import assert_same_features, build, dinov3, resnet, vit
from harness.errors import raises_code
from safetensors.torch import save_file
from test_layouts import hugging_face_dinov3, hugging_face_resnet, hugging_face_vit
from timm.models import save_for_hf
from torch import nn

import mmairl
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError

HUGGING_FACE = {
    'resnet': (resnet, hugging_face_resnet, dict(hidden_act='relu', layer_type='basic', depths=[2, 2, 2, 2])),
    'vit': (vit, hugging_face_vit, dict(hidden_act='gelu', layer_norm_eps=1e-6, qkv_bias=True, num_attention_heads=1)),
    'dinov3_vit': (dinov3, hugging_face_dinov3, dict(hidden_act='gelu', layer_norm_eps=1e-5, rope_theta=100.0)),
}


@pytest.fixture
def hugging_face(tmp_path):
    """Write a folder in Hugging Face's format, with some changes to config.json. Return its file and the network."""

    def write(kind: str, **changes: object) -> tuple:
        make, layout, fields = HUGGING_FACE[kind]
        network = make()
        file = tmp_path / 'model.safetensors'
        save_file({key: value.contiguous() for key, value in layout(network.state_dict()).items()}, file)
        config = dict(model_type=kind, architectures=['X'], **fields)
        (tmp_path / 'config.json').write_text(json.dumps({**config, **changes}))
        return file, network

    return write


@pytest.mark.parametrize('kind', HUGGING_FACE)
def test_hugging_face_folder_is_read(kind, hugging_face):
    path, network = hugging_face(kind)
    assert_same_features(path.parent, network)


OTHERS = [
    ('resnet', 'downsample_in_bottleneck', True),
    ('resnet', 'downsample_in_first_stage', True),
    ('resnet', 'hidden_act', 'silu'),
    ('resnet', 'model_type', 'regnet'),
    ('resnet', 'a_new_field', 1),
    ('vit', 'hidden_act', 'relu'),
    ('vit', 'model_type', 'beit'),
    ('vit', 'quantization_config', {}),
    ('vit', 'num_attention_heads', 7),
    ('dinov3_vit', 'rope_theta', 10000.0),
    ('dinov3_vit', 'layer_norm_eps', 1e-6),
    ('dinov3_vit', 'hidden_act', 'silu'),
]


@pytest.mark.parametrize('kind, field, value', OTHERS)
def test_unknown_hugging_face_field_is_an_error(kind, field, value, hugging_face):
    path, _ = hugging_face(kind, **{field: value})
    with raises_code('other-network'):
        build(read_backbone(path))


def test_epsilon_of_layer_norm_follows_the_config(hugging_face):
    path, network = hugging_face('vit', layer_norm_eps=0.1)
    for layer in network.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.eps = 0.1
    assert_same_features(path, network)


@pytest.mark.parametrize('name', ['resnet18', 'resnetaa50', 'resnetblur50', 'vit_tiny_patch16_224'])
def test_timm_architecture_is_checked(name, tmp_path):
    save_for_hf(timm.create_model(name), tmp_path, safe_serialization=True)
    backbone = read_backbone(tmp_path / 'model.safetensors')
    if 'aa' in name or 'blur' in name:
        with raises_code('other-network'):
            _ = backbone.network
    else:
        assert backbone.network['type'] in ('ResNet', 'VisionTransformer')


HALF = dict(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5])
SIDE = 32
PREPROCESSOR = dict(image_mean=HALF['mean'], image_std=HALF['std'], size=dict(height=SIDE, width=SIDE), resample=3)
CROPPED = dict(do_normalize=True, rescale_factor=1 / 255, crop_size=dict(height=SIDE, width=SIDE))
STATED = {
    'timm': ('config.json', dict(architecture='resnet18', pretrained_cfg=dict(**HALF, input_size=[3, SIDE, SIDE]))),
    'hugging face': ('preprocessor_config.json', PREPROCESSOR),
    'hugging face with a crop': ('preprocessor_config.json', {**PREPROCESSOR, **CROPPED}),
}
PIXELS = torch.randint(0, 256, (2, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize('name', STATED)
def test_embed_uses_statistics_next_to_the_weights(name, tmp_path, monkeypatch, warnings):
    torch.save(resnet().state_dict(), tmp_path / 'a.pth')
    assumed, _ = mmairl.embed(tmp_path / 'a.pth', PIXELS, size=SIDE)
    assert len(warnings) == 1 and '0.485' in warnings[0] and 'mean= and std=' in warnings[0]
    expected, _ = mmairl.embed(tmp_path / 'a.pth', PIXELS, size=SIDE, **HALF)
    file, content = STATED[name]
    (tmp_path / file).write_text(json.dumps(content))
    images = read_backbone(tmp_path / 'a.pth').input
    assert (list(images.mean), list(images.std), images.size) == (*HALF.values(), SIDE)
    assert images.interpolation == ('bilinear' if file == 'config.json' else 'bicubic')
    monkeypatch.setattr('mmairl.checkpoints.hub_config.PILLOW_INTERPOLATIONS', {})
    features, _ = mmairl.embed(tmp_path / 'a.pth', PIXELS)
    assert abs(features - expected).max() == 0 < abs(features - assumed).max()
    assert len(warnings) == 1


BAD = {
    'a mean of text': dict(image_mean='half', image_std=0.5),
    'no mean': dict(do_normalize=True),
    'a deviation of 0': dict(image_mean=0.5, image_std=0),
    'a size of text': dict(image_mean=0.5, image_std=0.5, size='large'),
    'an enormous size': dict(image_mean=0.5, image_std=0.5, size=10**9),
    'a list': [1],
}


@pytest.mark.parametrize('name', BAD)
def test_bad_preprocessor_config_is_an_error(name, stored, tmp_path):
    (tmp_path / 'preprocessor_config.json').write_text(json.dumps(BAD[name]))
    stored.update(resnet().state_dict())
    with pytest.raises(UserError):
        _ = read_backbone(tmp_path / 'a.pth').input


def test_folder_without_weights_is_an_error(tmp_path):
    with raises_code('no-weights-in-folder'):
        read_backbone(tmp_path)
