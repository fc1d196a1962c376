"""Checkpoints of every project, read by one function: the right tensors, whole, unchanged."""

import pickle

import numpy as np
import pytest
import timm
import torch
import torchvision

import mmairl.models  # noqa: F401  registers mmpretrain's backbones
from mmairl.checkpoints.architecture import resnet_of
from mmairl.checkpoints.hub_config import Input
from mmairl.checkpoints.layouts import rename
from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import input_of, read_backbone, read_tensors
from mmairl.checkpoints.write import WRITERS, write_backbone
from mmairl.errors import UserError
from mmairl.registry import MODELS

State = dict[str, torch.Tensor]


@pytest.fixture(scope='module')
def states() -> list[State]:
    """The backbones of two narrow ResNet-18s with statistics of their own; the names are torchvision's."""
    torch.manual_seed(0)
    networks = [MODELS.build(dict(type='mmpretrain.ResNet', depth=18, stem_channels=4, base_channels=4)) for _ in 'ab']
    for network in networks:
        network.init_weights()
        network.train()  # mmpretrain's returns nothing
        network(torch.randn(4, 3, 64, 64))
    return [network.state_dict() for network in networks]


def with_prefix(prefix: str, state: dict) -> dict:
    return {prefix + key: value for key, value in state.items()}


def detectron2(state: State) -> dict[str, np.ndarray]:
    return {rename(key, 'detectron2'): value.numpy() for key, value in state.items() if 'num_batches' not in key}


def assert_equal(found: State, wanted: State, left_out: str = 'nothing') -> None:
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted if left_out not in key)


# How each project's own training script nests and names things: envelope, student's prefix, teacher's prefix.
LAYOUTS = {
    'ours': (lambda s: dict(meta={}, state_dict=s), 'backbone.', 'teacher.backbone.'),
    'release': (lambda s: dict(start_epoch=200, model=s), 'module.online_encoder.', 'module.target_encoder.'),
    'moco v1 and v2': (lambda s: dict(epoch=200, state_dict=s), 'module.encoder_q.', 'module.encoder_k.'),
    'moco v3': (lambda s: dict(state_dict=s), 'module.base_encoder.', 'module.momentum_encoder.'),
    'mmselfsup moco': (lambda s: dict(state_dict=s), 'encoder_q.0.', 'encoder_k.0.'),
    'mmselfsup byol': (lambda s: dict(state_dict=s), 'online_net.0.', 'target_net.0.'),
    'mmpretrain moco': (lambda s: dict(state_dict=s), 'backbone.', 'encoder_k.module.0.'),
    'mmpretrain byol': (lambda s: dict(state_dict=s), 'backbone.', 'target_net.module.0.'),
}


@pytest.mark.parametrize('name', LAYOUTS)
def test_student_and_teacher_of_every_project(name, states, tmp_path):
    envelope, *prefixes = LAYOUTS[name]
    beside = prefixes[0].endswith(('backbone.', '.0.'))  # nothing but the backbone is below the prefix
    head = 'projector.0.weight' if beside else f'{prefixes[0]}fc.0.weight'
    heads = {head: torch.randn(3), 'queue': torch.randn(4, 8)}
    both = [with_prefix(prefix, state) for prefix, state in zip(prefixes, states)]
    torch.save(envelope({**both[0], **both[1], **heads}), tmp_path / 'a.pth')
    for place, part in enumerate(('student', 'teacher')):
        found = read_backbone(tmp_path / 'a.pth', part)
        assert_equal(found.weights, states[place])
        assert set(found.dropped) == {key.removeprefix('module.') for key in {**both[1 - place], **heads}}


ALONE = {
    'torchvision': lambda s: s,
    'vissl': lambda s: dict(
        classy_state_dict=dict(
            base_model=dict(model=dict(trunk=with_prefix('_feature_blocks.', s), heads={'0.clf.weight': s['bn1.bias']}))
        )
    ),
    'simsiam': lambda s: dict(state_dict=with_prefix('module.encoder.', s)),
    'mmpretrain': lambda s: dict(state_dict=with_prefix('backbone.', s)),
    'compiled': lambda s: dict(model=with_prefix('_orig_mod.', s)),
    'moco, its teacher cut away': lambda s: dict(state_dict=with_prefix('encoder_q.', s)),
}


@pytest.mark.parametrize('name', ALONE)
def test_one_network_is_a_student_and_no_teacher(name, states, tmp_path):
    torch.save(ALONE[name](states[0]), tmp_path / 'a.pth')
    found = read_backbone(tmp_path / 'a.pth')
    assert_equal(found.weights, states[0])
    assert found.dropped == (['heads.0.clf.weight'] if name == 'vissl' else [])
    with pytest.raises(UserError, match='holds no teacher'):
        read_backbone(tmp_path / 'a.pth', 'teacher')


@pytest.mark.parametrize('prefix, protocol', [('', 2), ('backbone.bottom_up.', 4)])
def test_detectron2_pickles_are_read(prefix, protocol, states, tmp_path):
    with (tmp_path / 'R-18.pkl').open('wb') as file:
        model = with_prefix(prefix, detectron2(states[0]))
        pickle.dump(dict(model=model, __author__='torchvision', matching_heuristics=True), file, protocol)
    assert_equal(read_backbone(tmp_path / 'R-18.pkl').weights, states[0], 'num_batches')


@pytest.mark.parametrize('to', WRITERS)
def test_round_trip_is_exact_and_a_cut_is_noticed(to, states, tmp_path):
    torch.save(dict(state_dict=with_prefix('encoder_q.', states[0])), tmp_path / 'moco.pth')
    out = tmp_path / f'out{dict(detectron2=".pkl", safetensors=".safetensors").get(to, ".pth")}'
    write_backbone(read_backbone(tmp_path / 'moco.pth'), out, to)
    back = read_backbone(out)
    assert_equal(back.weights, states[0], 'num_batches' if to == 'detectron2' else 'nothing')  # it stores no counters
    assert {value.dtype for value in back.weights.values()} == {torch.float32, torch.int64}
    assert back.origin['file'] == 'moco.pth' and back.origin['source_format'] == 'MoCo v1 or v2'
    whole = out.read_bytes()
    for left in (0, 0.5, 0.99):
        out.write_bytes(whole[: int(left * len(whole))])
        with pytest.raises(UserError, match='truncated|empty|damaged|not a') as caught:
            read_backbone(out)
        assert '\n' not in str(caught.value)


def test_converted_resnet_has_equal_features(tmp_path):
    torch.manual_seed(0)
    images, network = torch.randn(2, 3, 64, 64), torchvision.models.resnet18()
    network.train()(torch.randn(4, 3, 64, 64))
    network.eval().fc = torch.nn.Identity()
    torch.save(dict(model=with_prefix('online_encoder.', network.state_dict())), tmp_path / 'a.pth')
    found = read_backbone(tmp_path / 'a.pth')
    for to in ('torchvision', 'timm'):
        write_backbone(found, tmp_path / f'{to}.pth', to)
    plain = torchvision.models.resnet18()
    plain.fc = torch.nn.Identity()
    plain.load_state_dict(torch.load(tmp_path / 'torchvision.pth'))
    of_timm = timm.create_model('resnet18', num_classes=0)
    of_timm.load_state_dict(torch.load(tmp_path / 'timm.pth'))
    ours = MODELS.build(resnet_of(found.weights))
    ours.load_state_dict(found.weights)
    ours.eval()  # mmpretrain's returns nothing
    with torch.no_grad():
        wanted = network(images)
        assert torch.allclose(plain.eval()(images), wanted, atol=1e-6)
        assert torch.allclose(of_timm.eval()(images), wanted, atol=1e-6)
        assert torch.allclose(ours(images)[-1].mean(dim=(2, 3)), wanted, atol=1e-6)


def test_vit_to_timm_and_back_has_equal_features(tmp_path):
    torch.manual_seed(0)
    arch = dict(embed_dims=48, num_layers=2, num_heads=3, feedforward_channels=96)
    ours = MODELS.build(
        dict(type='mmpretrain.VisionTransformer', arch=arch, img_size=32, patch_size=16, out_type='cls_token')
    )
    ours.eval()
    torch.save(dict(state_dict=with_prefix('backbone.', ours.state_dict())), tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'timm.pth', 'timm')
    theirs = timm.models.VisionTransformer(
        img_size=32, patch_size=16, embed_dim=48, depth=2, num_heads=3, mlp_ratio=2, num_classes=0
    ).eval()
    theirs.load_state_dict(torch.load(tmp_path / 'timm.pth'))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(theirs(images), ours(images)[-1], atol=1e-5)
    assert_equal(read_backbone(tmp_path / 'timm.pth').weights, ours.state_dict())


def test_the_architecture_is_read_off_the_weights():
    for depth in (18, 34, 50, 101):
        with torch.device('meta'):
            network = getattr(torchvision.models, f'resnet{depth}')()
        assert resnet_of(network.state_dict())['depth'] == depth


KINDS = {
    'int8': lambda w: w.to(torch.int8),
    'int64': lambda w: w.long(),
    'complex64': lambda w: w.to(torch.complex64),
    'bool': lambda w: w > 0,
    'float8_e4m3fn': lambda w: w.to(torch.float8_e4m3fn),
    'text': lambda w: 'text',
    'NoneType': lambda w: None,
    '>f4': lambda w: w.numpy().astype('>f4'),
}


@pytest.mark.parametrize('kind', KINDS)
def test_weights_of_another_kind_are_an_error(kind, states, tmp_path):
    other = {**states[0], 'layer1.0.conv1.weight': KINDS[kind](states[0]['layer1.0.conv1.weight'])}
    for content in (other, dict(state_dict=with_prefix('backbone.', other))):
        torch.save(content, tmp_path / 'a.pth')
        with pytest.raises(UserError, match=rf'layer1.0.conv1.weight are {kind}; give a file whose weights are floats'):
            read_backbone(tmp_path / 'a.pth')
    if kind != '>f4':
        with pytest.raises(UserError, match=f'layer1.0.conv1.weight is {kind} there'):
            require_same_keys(other, states[0], 'a.pth')


def test_weights_that_are_not_finite_are_warned_of(states, tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr('mmairl.checkpoints.read.print_log', lambda text, **_: said.append(text))
    for value, heard in ((torch.nan, 1), (torch.inf, 1), (1.0, 0)):
        torch.save({**states[0], 'bn1.bias': torch.full((4,), value)}, tmp_path / 'a\nforged.pth')
        read_backbone(tmp_path / 'a\nforged.pth')
        assert len(said) == heard and all(
            'hold NaN or infinity, such as bn1.bias' in text and '\n' not in text for text in said
        )
        said.clear()


def test_wrappers_are_taken_off_in_any_order(states, tmp_path):
    for number, wrappers in enumerate(('module._orig_mod.', '_orig_mod.module.')):
        torch.save(with_prefix(wrappers, states[0]), tmp_path / f'{number}.pth')
        assert_equal(read_backbone(tmp_path / f'{number}.pth').weights, states[0])


def test_file_without_a_backbone_is_an_error(tmp_path):
    torch.save(dict(w=torch.zeros(2)), tmp_path / 'a.pth')
    with pytest.raises(UserError, match=r"keys look like \['w'\]"):
        read_backbone(tmp_path / 'a.pth')
    assert list(read_tensors(tmp_path / 'a.pth')[0]) == ['w']


@pytest.mark.parametrize('text', ['3', '[1, [2]]', '{', '(' * 500, 'None', 7, None])
def test_settings_of_another_type_are_ignored(text):
    settings = {'model.data_preprocessor.mean': text, 'train_dataloader.dataset.views': text}
    assert input_of(settings) == Input(origin='its training run')
