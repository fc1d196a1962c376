"""`read_backbone` returns the right tensors, complete and unchanged, from the checkpoints of all supported projects."""

import pickle

import pytest
import torch
from harness.backbones import NARROW, State, assert_same_features, resnet, with_prefix
from harness.errors import raises_code
from test_layouts import detectron2
from torch import nn

from mmairl.checkpoints.hub_config import Input
from mmairl.checkpoints.load import not_finite, require_same_keys
from mmairl.checkpoints.read import input_of, read_backbone, read_tensors
from mmairl.registry import MODELS


@pytest.fixture(scope='module')
def states() -> list[State]:
    """Return the backbones of two narrow ResNet-18s with different statistics, under torchvision's names."""
    torch.manual_seed(0)
    networks = [MODELS.build(NARROW) for _ in 'ab']
    for network in networks:
        network.init_weights()
        network.train()
        network(torch.randn(4, 3, 64, 64))
    return [network.state_dict() for network in networks]


def assert_equal(state: State, expected: State, left_out: str = 'nothing') -> None:
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in expected if left_out not in key)


# For each project's training script: the key that holds the weights, and the key prefixes of
# student and teacher.
PROJECTS = {
    'ours': ('state_dict', 'backbone.', 'teacher.backbone.'),
    'release': ('model', 'module.online_encoder.', 'module.target_encoder.'),
    'moco v1 and v2': ('state_dict', 'module.encoder_q.', 'module.encoder_k.'),
    'moco v3': ('state_dict', 'module.base_encoder.', 'module.momentum_encoder.'),
    'mmselfsup moco': ('state_dict', 'encoder_q.0.', 'encoder_k.0.'),
    'mmselfsup byol': ('state_dict', 'online_net.0.', 'target_net.0.'),
    'mmpretrain moco': ('state_dict', 'backbone.', 'encoder_k.module.0.'),
    'mmpretrain byol': ('state_dict', 'backbone.', 'target_net.module.0.'),
}


@pytest.mark.parametrize('name', PROJECTS)
def test_student_and_teacher_of_every_project(name, states, tmp_path):
    envelope, *prefixes = PROJECTS[name]
    # If the prefix belongs to the backbone alone, the head has another prefix.
    pure = prefixes[0].endswith(('backbone.', '.0.'))
    head = 'projector.0.weight' if pure else f'{prefixes[0]}fc.0.weight'
    heads = {head: torch.randn(3), 'queue': torch.randn(4, 8)}
    both = [with_prefix(prefix, state) for prefix, state in zip(prefixes, states)]
    torch.save({'epoch': 200, envelope: {**both[0], **both[1], **heads}}, tmp_path / 'a.pth')
    for index, part in enumerate(('student', 'teacher')):
        backbone = read_backbone(tmp_path / 'a.pth', part)
        assert_equal(backbone.weights, states[index])
        assert set(backbone.dropped) == {key.removeprefix('module.') for key in {**both[1 - index], **heads}}


def vissl(state: State) -> dict:
    trunk = dict(trunk=with_prefix('_feature_blocks.', state), heads={'0.clf.weight': state['bn1.bias']})
    return dict(classy_state_dict=dict(base_model=dict(model=trunk)))


ALONE = {
    'torchvision': lambda state: state,
    'vissl': vissl,
    'simsiam': lambda state: dict(state_dict=with_prefix('module.encoder.', state)),
    'mmpretrain': lambda state: dict(state_dict=with_prefix('backbone.', state)),
    'compiled': lambda state: dict(model=with_prefix('_orig_mod.', state)),
    'wrapped and compiled': lambda state: with_prefix('module._orig_mod.', state),
    'compiled and wrapped': lambda state: with_prefix('_orig_mod.module.', state),
    'moco without its teacher': lambda state: dict(state_dict=with_prefix('encoder_q.', state)),
}


@pytest.mark.parametrize('name', ALONE)
def test_single_network_is_a_student_only(name, states, tmp_path):
    torch.save(ALONE[name](states[0]), tmp_path / 'a.pth')
    backbone = read_backbone(tmp_path / 'a.pth')
    assert_equal(backbone.weights, states[0])
    assert backbone.dropped == (['heads.0.clf.weight'] if name == 'vissl' else [])
    with raises_code('no-part'):
        read_backbone(tmp_path / 'a.pth', 'teacher')


@pytest.mark.parametrize('prefix, protocol', [('', 2), ('backbone.bottom_up.', 4)])
def test_detectron2_pickles_are_read(prefix, protocol, states, tmp_path):
    arrays = {key: value.numpy() for key, value in detectron2(states[0]).items()}
    content = dict(model=with_prefix(prefix, arrays), __author__='torchvision', matching_heuristics=True)
    (tmp_path / 'R-18.pkl').write_bytes(pickle.dumps(content, protocol))
    assert_equal(read_backbone(tmp_path / 'R-18.pkl').weights, states[0], 'num_batches')


@pytest.mark.parametrize('name', ['net', 'model', 'resnet', 'student', 'feature_extractor', 'backbone.net'])
def test_backbone_in_a_lightning_module_is_found(name, states, stored):
    stored.update(with_prefix(f'{name}.', states[0]), **{'projection_head.0.weight': torch.ones(2, 2)})
    assert_equal(read_backbone('a.ckpt').weights, states[0])


def test_prefix_chooses_between_two_backbones(states, stored):
    stored.update({**with_prefix('one.', states[0]), **with_prefix('other.', states[1])})
    with raises_code('several-backbones'):
        read_backbone('a.pth')
    for prefix, state in zip(('one.', 'other.'), states):
        assert_equal(read_backbone('a.pth', prefix=prefix).weights, state)
    with raises_code('unknown-prefix'):
        read_backbone('a.pth', prefix='none.')


C4 = {
    'detectron2': (detectron2, 'roi_heads.', 'res5.'),
    'mmdet': (dict, 'roi_head.shared_head.', 'layer4.'),
}


@pytest.mark.parametrize('kind', C4)
def test_last_stage_is_read_from_a_c4_detector(kind, states, stored):
    layout, head, stage = C4[kind]
    state = layout(states[0])
    stored.update({(head if key.startswith(stage) else 'backbone.') + key: value for key, value in state.items()})
    assert_equal(read_backbone('a.pth').weights, states[0], 'num_batches')
    for key in [key for key in stored if key.startswith(head)]:
        del stored[key]
    with raises_code('incomplete-network'):
        read_backbone('a.pth')


def with_small_stem(padding: int) -> nn.Module:
    network = resnet()
    network.conv1 = nn.Conv2d(3, 64, 3, padding=padding, bias=False)
    network.maxpool = nn.Identity()
    return network


def test_small_stem_of_solo_learn_is_padded_by_two(stored):
    network = with_small_stem(padding=2)
    for prefix in ('backbone.', 'momentum_backbone.'):
        stored.update(with_prefix(prefix, network.state_dict()))
    assert_same_features('a.ckpt', network)


def test_unknown_padding_of_a_small_stem_warns(stored, warnings):
    network = with_small_stem(padding=1)
    stored.update(network.state_dict())
    assert_same_features('a.pth', network)
    assert len(warnings) == 1 and 'padding' in warnings[0]


KINDS = {
    'int8': lambda weight: weight.to(torch.int8),
    'int64': lambda weight: weight.long(),
    'complex64': lambda weight: weight.to(torch.complex64),
    'bool': lambda weight: weight > 0,
    'float8_e4m3fn': lambda weight: weight.to(torch.float8_e4m3fn),
    'text': lambda weight: 'text',
    'NoneType': lambda weight: None,
    '>f4': lambda weight: weight.numpy().astype('>f4'),
}


@pytest.mark.parametrize('kind', KINDS)
def test_weights_of_another_kind_are_an_error(kind, states, tmp_path):
    other = {**states[0], 'layer1.0.conv1.weight': KINDS[kind](states[0]['layer1.0.conv1.weight'])}
    for content in (other, dict(state_dict=with_prefix('backbone.', other))):
        torch.save(content, tmp_path / 'a.pth')
        with raises_code('no-floats', match=f'layer1.0.conv1.weight are {kind};'):
            read_backbone(tmp_path / 'a.pth')
    if kind != '>f4':
        with raises_code('other-network', match=f'layer1.0.conv1.weight is {kind}[;)]'):
            require_same_keys(other, states[0], 'a.pth')


@pytest.mark.parametrize('value, count', [(torch.nan, 1), (torch.inf, 1), (1.0, 0)])
def test_nonfinite_weights_warn(value, count, states, tmp_path, warnings):
    torch.save({**states[0], 'bn1.bias': torch.full((4,), value)}, tmp_path / 'a\nforged.pth')
    read_backbone(tmp_path / 'a\nforged.pth')
    assert len(warnings) == count
    assert all('NaN or infinity, such as bn1.bias' in text and '\n' not in text for text in warnings)


def test_floats_of_eight_bits_are_checked_for_nan():
    weights = {'a': torch.tensor([1.0, torch.nan]), 'b': torch.tensor([1.0]), 'c': torch.ones(1, dtype=torch.int64)}
    assert not_finite({name: value.to(torch.float8_e4m3fn) for name, value in weights.items()}) == ['a']
    assert not_finite(weights) == ['a']


def test_settings_without_a_name_are_ignored(states, tmp_path):
    torch.save(dict(meta=dict(settings={3: 4, 'a.views': '[]'}), state_dict=states[0]), tmp_path / 'a.pth')
    backbone = read_backbone(tmp_path / 'a.pth')
    assert backbone.settings == {'a.views': '[]'} and backbone.input.origin


def test_control_characters_in_a_name_are_escaped(states, tmp_path):
    torch.save(states[0], tmp_path / 'a\x1b[31m\nforged.pth')
    assert '\\x1b[31m\\nforged.pth' in str(read_backbone(tmp_path / 'a\x1b[31m\nforged.pth'))


def test_file_without_a_backbone_is_an_error(tmp_path):
    torch.save(dict(w=torch.zeros(2)), tmp_path / 'a.pth')
    with raises_code('no-backbone', match=r"keys look like \['w'\]"):
        read_backbone(tmp_path / 'a.pth')
    assert list(read_tensors(tmp_path / 'a.pth')[0]) == ['w']


@pytest.mark.parametrize('text', ['3', '[1, [2]]', '{', '(' * 500, 'None', 7, None])
def test_settings_of_another_type_are_ignored(text):
    settings = {'model.data_preprocessor.mean': text, 'train_dataloader.dataset.views': text}
    assert input_of(settings) == Input(origin='its training run')
