"""`read_backbone` returns the right tensors, complete and unchanged, from the checkpoints of all supported projects."""

import pytest
import timm
import torch
from harness.backbones import (
    NARROW,
    State,
    assert_same_features,
    features,
    randomized,
    resnet,
    torchvision_vit,
    vit,
    with_prefix,
)
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.checkpoints.architecture import tensors_of
from mmairl.checkpoints.formats import rename
from mmairl.checkpoints.read import Input, read_backbone
from mmairl.evaluation.backbone import load_backbone
from mmairl.registry import MODELS


@pytest.fixture(scope='module')
def states() -> list[State]:
    """Return the backbones of two narrow ResNet-18s with different statistics, under torchvision's names."""
    torch.manual_seed(0)
    return [randomized(MODELS.build(NARROW)).state_dict(), MODELS.build(NARROW).state_dict()]


def assert_equal(state: State, expected: State) -> None:
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in expected)


# For each project's training script: the key that holds the weights, and the prefixes of student and teacher.
PROJECTS = {
    'ours': ('state_dict', 'backbone.', 'teacher.backbone.'),
    'release': ('model', 'module.online_encoder.', 'module.target_encoder.'),
    'moco v1 and v2': ('state_dict', 'module.encoder_q.', 'module.encoder_k.'),
    'moco v3': ('state_dict', 'module.base_encoder.', 'module.momentum_encoder.'),
    'mmselfsup moco': ('state_dict', 'encoder_q.0.', 'encoder_k.0.'),
    'mmpretrain moco': ('state_dict', 'backbone.', 'encoder_k.module.0.'),
    'mmpretrain byol': ('state_dict', 'backbone.', 'target_net.module.0.'),
    'solo-learn': ('state_dict', 'backbone.', 'momentum_backbone.'),
    'lightly': ('state_dict', 'backbone.', 'teacher_backbone.'),
}


@pytest.mark.parametrize('name', PROJECTS)
def test_student_and_teacher_of_every_project(name, states, tmp_path):
    envelope, *prefixes = PROJECTS[name]
    heads = {f'{prefixes[0]}fc.0.weight': torch.randn(3), 'queue': torch.randn(4, 8)}
    both = [with_prefix(prefix, state) for prefix, state in zip(prefixes, states)]
    torch.save({'epoch': 200, envelope: {**both[0], **both[1], **heads}}, tmp_path / 'a.pth')
    for index, part in enumerate(('student', 'teacher')):
        backbone = read_backbone(tmp_path / 'a.pth', part)
        assert_equal(backbone.weights, states[index])
        assert set(backbone.dropped) == {
            key.removeprefix('module.') for key in {**both[1 - index], **heads}
        }


def vissl(state: State) -> dict:
    trunk = dict(
        trunk=with_prefix('_feature_blocks.', state), heads={'0.clf.weight': state['bn1.bias']}
    )
    return dict(classy_state_dict=dict(base_model=dict(model=trunk)))


ALONE = {
    'torchvision': lambda state: state,
    'vissl': vissl,
    'simsiam': lambda state: dict(state_dict=with_prefix('module.encoder.', state)),
    'compiled and wrapped': lambda state: with_prefix('_orig_mod.module.', state),
    'moco without its teacher': lambda state: dict(state_dict=with_prefix('encoder_q.', state)),
    'lightning module': lambda state: dict(state_dict=with_prefix('model.net.', state)),
}


@pytest.mark.parametrize('name', ALONE)
def test_single_network_is_a_student_only(name, states, tmp_path):
    torch.save(ALONE[name](states[0]), tmp_path / 'a.pth')
    backbone = read_backbone(tmp_path / 'a.pth')
    assert_equal(backbone.weights, states[0])
    assert backbone.dropped == (['heads.0.clf.weight'] if name == 'vissl' else [])
    with raises_code('no-backbone'):
        read_backbone(tmp_path / 'a.pth', 'teacher')


def test_prefix_chooses_between_two_backbones(states, stored):
    stored.update({**with_prefix('one.', states[0]), **with_prefix('other.', states[1])})
    with raises_code('several-backbones'):
        read_backbone('a.pth')
    for prefix, state in zip(('one.', 'other.'), states):
        assert_equal(read_backbone('a.pth', prefix=prefix).weights, state)


def sequential(state: State) -> State:
    return {
        next(iter(names)): value
        for key, value in state.items()
        if (names := {rename(key, 'sequential')})
    }


LAYOUTS = {
    'torchvision': (resnet, dict),
    'sequential': (resnet, sequential),
    'timm vit': (vit, dict),
    'moco v3 vit': (vit, lambda state: with_prefix('base_encoder.', state)),
    'dinov2': (lambda: vit('vit_small_patch14_dinov2', patch_size=16), dict),
    'torchvision vit': (torchvision_vit, dict),
}


@pytest.mark.parametrize('name', LAYOUTS)
def test_features_equal_those_of_the_package(name, stored):
    make, layout = LAYOUTS[name]
    network = make()
    stored.update(layout(network.state_dict()))
    assert_same_features('a.pth', network)
    del stored[list(stored)[-2]]
    with raises_code('incomplete-network'):
        _ = read_backbone('a.pth').network


OTHERS = {
    'beit_base_patch16_224': dict(depth=1, embed_dim=64, num_heads=1),
    'vit_base_patch16_clip_224': dict(depth=1, embed_dim=64, num_heads=1),
    'vit_small_patch16_rope_224': dict(depth=1),
    'deit_tiny_distilled_patch16_224': dict(depth=1),
    'vit_small_patch14_reg4_dinov2': dict(depth=1, embed_dim=64, num_heads=1),
    'seresnet18': {},
    'resnet50d': {},
    'resnext50_32x4d': {},
    'convnext_atto': {},
}


@pytest.mark.parametrize('name', OTHERS)
def test_another_network_is_an_error_without_a_config(name, stored):
    stored.update(with_prefix('backbone.', timm.create_model(name, **OTHERS[name]).state_dict()))
    with pytest.raises(ValueError) as caught:
        _ = read_backbone('a.pth').network
    assert caught.value.code in ('other-network', 'incomplete-network', 'unknown-network')


@pytest.mark.parametrize('prefix', ['', 'backbone.', 'net.'])
def test_timm_file_fills_the_network_of_a_config(prefix, stored):
    cfg = Config(dict(model=dict(backbone=dict(type='TimmBackbone', name='convnext_atto'))))
    network = randomized(timm.create_model('convnext_atto'))
    stored.update(with_prefix(prefix, network.state_dict()))
    images = torch.randn(2, 3, 64, 64)
    ours = features(load_backbone(cfg, 'a.pth'), images)
    assert ours.shape == (2, 320)
    dropped = read_backbone('a.pth', network=tensors_of(cfg.model.backbone)).dropped
    assert dropped == [key for key in stored if f'{prefix}head.fc' in key]


WRONG = {
    'unknown-part': dict(part='neck'),
    'no-backbone': {},
}


@pytest.mark.parametrize('code', WRONG)
def test_wrong_requests_are_one_error(code, states, stored):
    stored.update(
        dict(w=torch.ones(2)) if code == 'no-backbone' else with_prefix('backbone.', states[0])
    )
    with raises_code(code):
        read_backbone('a.pth', **WRONG[code])


def test_images_are_described_by_the_training_run(states, tmp_path):
    images = dict(mean=[0.5], std=[0.2], size=96, channels=1, interpolation='bicubic')
    settings = {f'preprocessing.{key}': str(value) for key, value in images.items()}
    for meta, expected in (
        (dict(settings=settings), Input(**images, origin='the checkpoint')),
        (dict(settings=[]), Input()),
        ('text', Input()),
    ):
        torch.save(
            dict(meta=meta, state_dict=with_prefix('backbone.', states[0])), tmp_path / 'a.pth'
        )
        assert read_backbone(tmp_path / 'a.pth').input == expected


@pytest.mark.parametrize('others', [['momentum_backbone.'], []])
def test_stem_of_solo_learn_for_cifar_is_an_error(others, states, stored):
    small = {**states[0], 'conv1.weight': torch.ones(len(states[0]['conv1.weight']), 3, 3, 3)}
    for prefix in ('backbone.', *others):
        stored.update(with_prefix(prefix, small))
    if not others:
        stored['classifier.weight'] = torch.ones(2)
    with raises_code('solo-learn-stem'):
        read_backbone('a.pth')
    assert_equal(read_backbone('a.pth', prefix='backbone.').weights, small)
