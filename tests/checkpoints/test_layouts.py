"""Key layouts of other packages.

A complete file gives the features of its package. A file with a changed key is an error, or gives the same features.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import pytest
import timm
import torch
from harness.backbones import (
    SMALL,
    State,
    assert_same_features,
    build,
    dinov3,
    features,
    narrow_resnet,
    randomized,
    resnet,
    torchvision_vit,
    vit,
    with_prefix,
)
from harness.errors import raises_code
from mmengine.config import Config
from torch import nn

from mmairl.checkpoints.layouts import rename
from mmairl.checkpoints.read import read_backbone
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone, tensors_of_config


def replaced(state: State, pairs: list[tuple[str, str | Callable]]) -> State:
    """Rename each key by all pairs, in order. A pair has a regular expression and its replacement."""

    def name(key: str) -> str:
        for old, new in pairs:
            key = re.sub(old, new, key)
        return key

    return {name(key): value for key, value in state.items()}


def split_attention(state: State, names: Sequence[str]) -> State:
    """Return the tensors with query, key and value split into separate tensors with these names."""
    split: State = {}
    for key, value in state.items():
        if 'attn.qkv' in key:
            parts = value.chunk(3)
            split |= {key.replace('attn.qkv', name): part.clone() for name, part in zip(names, parts)}
        else:
            split[key] = value
    return split


def hugging_face_resnet(state: State) -> State:
    """Rename torchvision's tensors as Hugging Face's ResNetModel names them."""
    names = [
        (r'^conv1\.', 'embedder.embedder.convolution.'),
        (r'^bn1\.', 'embedder.embedder.normalization.'),
        (r'^layer(\d)\.', lambda match: f'encoder.stages.{int(match[1]) - 1}.layers.'),
        (r'downsample\.0', 'shortcut.convolution'),
        (r'downsample\.1', 'shortcut.normalization'),
        (r'\.conv(\d)\.', lambda match: f'.layer.{int(match[1]) - 1}.convolution.'),
        (r'\.bn(\d)\.', lambda match: f'.layer.{int(match[1]) - 1}.normalization.'),
    ]
    return replaced(state, names)


def hugging_face_vit(state: State) -> State:
    """Rename timm's tensors as Hugging Face's ViTModel names them."""
    names = [
        (r'^cls_token', 'embeddings.cls_token'),
        (r'^pos_embed', 'embeddings.position_embeddings'),
        (r'^patch_embed\.proj', 'embeddings.patch_embeddings.projection'),
        (r'^norm\.', 'layernorm.'),
        (r'^blocks\.', 'encoder.layer.'),
        (r'\.norm1\.', '.layernorm_before.'),
        (r'\.norm2\.', '.layernorm_after.'),
        (r'\.attn\.proj\.', '.attention.output.dense.'),
        (r'\.mlp\.fc1\.', '.intermediate.dense.'),
        (r'\.mlp\.fc2\.', '.output.dense.'),
    ]
    parts = [f'attention.attention.{name}' for name in ('query', 'key', 'value')]
    return replaced(split_attention(state, parts), names)


def hugging_face_vit_with_head(state: State) -> State:
    return {**with_prefix('vit.', hugging_face_vit(state)), 'classifier.weight': torch.ones(2, 64)}


def hugging_face_dinov3(state: State) -> State:
    names = [
        (r'^cls_token', 'embeddings.cls_token'),
        (r'^reg_token', 'embeddings.register_tokens'),
        (r'^patch_embed\.proj', 'embeddings.patch_embeddings'),
        (r'^blocks\.', 'layer.'),
        (r'\.attn\.proj\.', '.attention.o_proj.'),
        (r'\.gamma_(\d)', r'.layer_scale\1.lambda1'),
        (r'\.mlp\.fc1\.', '.mlp.up_proj.'),
        (r'\.mlp\.fc2\.', '.mlp.down_proj.'),
    ]
    return replaced(split_attention(state, [f'attention.{name}_proj' for name in 'qkv']), names)


def detectron2(state: State) -> State:
    return {rename(key, 'detectron2'): value for key, value in state.items() if 'num_batches' not in key}


def sequential(state: State) -> State:
    names = [(r'^conv1', '0'), (r'^bn1', '1'), (r'^layer(\d)', lambda match: str(int(match[1]) + 3))]
    return replaced(state, names)


def unchanged(state: State) -> State:
    return state


# Each known layout has a function that builds the network, and one that renames the network's
# tensors.
LAYOUTS: dict[str, tuple[Callable[[], nn.Module], Callable[[State], State]]] = {
    'torchvision': (resnet, unchanged),
    'detectron2': (resnet, detectron2),
    'sequential': (resnet, sequential),
    'hugging face resnet': (resnet, hugging_face_resnet),
    'moco': (resnet, lambda state: with_prefix('encoder_q.', state)),
    'ours': (resnet, lambda state: with_prefix('backbone.', state)),
    'timm vit': (vit, unchanged),
    'moco v3 vit': (vit, lambda state: with_prefix('base_encoder.', state)),
    'timm dinov2': (lambda: vit('vit_small_patch14_dinov2', patch_size=16), unchanged),
    'timm dinov2 with registers': (lambda: vit('vit_small_patch14_reg4_dinov2', patch_size=16), unchanged),
    'timm dinov3': (dinov3, unchanged),
    'timm dinov3 with gates': (lambda: dinov3('small_plus'), unchanged),
    'timm dinov3 with biases': (lambda: dinov3('small_plus_qkvb'), unchanged),
    'torchvision vit': (torchvision_vit, unchanged),
    'hugging face vit': (vit, hugging_face_vit),
    'hugging face vit with a head': (vit, hugging_face_vit_with_head),
    'hugging face dinov3': (dinov3, hugging_face_dinov3),
}


@pytest.mark.parametrize('name', LAYOUTS)
def test_layout_has_the_features_of_its_package(name, stored):
    make, layout = LAYOUTS[name]
    network = make()
    stored.update(layout(network.state_dict()))
    assert_same_features('a.pth', network)


def changed(state: State, stride: int) -> Iterator[tuple[str, State]]:
    """Yield copies of the tensors with one key deleted, renamed or added, or with one tensor of another number of
    dimensions.

    Only every `stride`-th key is changed.
    """
    for key in list(state)[::stride]:
        value = state[key]
        others = {name: tensor for name, tensor in state.items() if name != key}
        yield f'without {key}', others
        for new in (f'{key}_', f'x.{key}', key.replace('weight', 'bias'), key.replace('.0.', '.1.')):
            if new not in state:
                yield f'{key} as {new}', {**others, new: value}
        yield f'another {key}', {**state, f'{key}.extra': value}
        yield f'{key} of no dimension', {**state, key: torch.tensor(1.0)}
        yield f'{key} of five dimensions', {**state, key: value.reshape(1, 1, 1, 1, -1)}


@pytest.mark.parametrize('stride', [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', LAYOUTS)
def test_a_changed_key_is_equal_or_an_error(name, stride, stored):
    make, layout = LAYOUTS[name]
    network = narrow_resnet() if make is resnet else make()
    whole = layout(network.state_dict())
    expected = features(network)
    equal = 0
    for change, state in changed(whole, stride):
        stored.clear()
        stored.update(state)
        try:
            output = features(build(read_backbone('a.pth')))
        except UserError as error:
            assert error.code, change
            continue
        equal += 1
        if change == 'without reg_token' and name == 'timm dinov2 with registers':
            # Without this key, the tensors are those of DeiT III, so the file is read as DeiT III.
            continue
        assert (output - expected).abs().max() <= 1e-5 * expected.abs().max(), change
    assert equal < 3 * len(whole)


UNSUPPORTED = {
    'beit_base_patch16_224': dict(depth=1, embed_dim=64, num_heads=1),
    'vit_small_patch16_18x2_224': dict(depth=1, embed_dim=64, num_heads=1),
    'vit_base_patch16_xp_224': dict(depth=1, embed_dim=64, num_heads=1),
    'skresnet18': {},
    'vit_base_mci_224': dict(depth=1),
    'deit_tiny_distilled_patch16_224': dict(depth=1),
    'vit_base_patch16_clip_224': dict(depth=1, embed_dim=64, num_heads=1),
    'vit_base_patch16_224': dict(depth=1, embed_dim=64, num_heads=1, global_pool='avg'),
    'vit_small_patch16_rope_224': dict(depth=1),
    'vit_small_patch16_rope_mixed_224': dict(depth=1),
    'eva02_tiny_patch14_224': dict(depth=1),
    'seresnet18': {},
    'resnet50d': {},
    'resnext50_32x4d': {},
    'swin_tiny_patch4_window7_224': {},
    'convnext_atto': {},
}


@pytest.mark.parametrize('name', UNSUPPORTED)
def test_another_network_is_an_error(name, stored):
    state = timm.create_model(name, **UNSUPPORTED[name]).state_dict()
    for prefix in ('', 'backbone.', 'net.'):
        stored.clear()
        stored.update(with_prefix(prefix, state))
        with pytest.raises(UserError) as caught:
            build(read_backbone('a.pth'))
        assert caught.value.code


@pytest.mark.parametrize('missing', ['.key.bias', ('.query.bias', '.key.bias')])
def test_beit_of_hugging_face_is_an_error(missing, stored):
    state = hugging_face_vit(vit().state_dict())
    stored.update({key: value for key, value in state.items() if not key.endswith(missing)})
    stored['encoder.relative_position_bias.relative_position_bias_table'] = torch.zeros(9, 1)
    with raises_code('other-network'):
        read_backbone('a.pth')


@pytest.mark.parametrize('prefix', ['', 'backbone.', 'net.', 'backbone.timm_model.'])
def test_timm_file_fills_the_network_of_a_config(prefix, stored):
    cfg = Config(dict(model=dict(backbone=dict(type='mmpretrain.TIMMBackbone', model_name='tf_efficientnet_lite0'))))
    network = randomized(timm.create_model('tf_efficientnet_lite0'))
    stored.update(with_prefix(prefix, network.state_dict()))
    ours = load_backbone(cfg, 'a.pth')
    torch.testing.assert_close(features(ours), features(network.forward_features))
    dropped = read_backbone('a.pth', network=tensors_of_config(cfg)).dropped
    assert dropped == [f'{prefix}classifier.weight', f'{prefix}classifier.bias']


def test_registers_are_read_from_our_file(stored):
    """The file has 2 x 2 patches and five extra tokens.

    Nine position embeddings could also be those of 3 x 3 patches, so the tensors alone do not determine the grid.
    """
    stored.update(vit('vit_small_patch14_reg4_dinov2', **{**SMALL, 'img_size': 28, 'patch_size': 14}).state_dict())
    first = read_backbone('a.pth').weights
    stored.clear()
    stored.update(with_prefix('backbone.', first))
    again = read_backbone('a.pth').weights
    assert first['cls_token'].shape == (1, 5, 64) and first['pos_embed'].shape == (1, 9, 64)
    assert all(torch.equal(value, again[key]) for key, value in first.items())
