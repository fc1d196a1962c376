"""Checkpoints of every project, read by one function: the right tensors, whole, unchanged, and no code run."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
import timm
import torch
import torchvision

from mmairl.errors import UserError
from mmairl.models.platform import import_mmpretrain
from mmairl.registry import MODELS
from mmairl.weights.formats import DETECTRON2, TIMM, rename, resnet_of
from mmairl.weights.read import read_backbone, read_tensors
from mmairl.weights.write import WRITERS, write_backbone


@pytest.fixture(scope='module')
def networks():
    """Two ResNet-18s with statistics of their own."""
    torch.manual_seed(0)
    made = []
    for _ in range(2):
        network = torchvision.models.resnet18()
        network.train()(torch.randn(4, 3, 64, 64))
        made.append(network.eval())
    return made


def backbone_of(network) -> dict[str, torch.Tensor]:
    return {key: value for key, value in network.state_dict().items() if not key.startswith('fc.')}


def with_prefix(prefix: str, state: dict) -> dict:
    return {prefix + key: value for key, value in state.items()}


def detectron2(state: dict) -> dict[str, np.ndarray]:
    return {rename(key, DETECTRON2): value.numpy() for key, value in state.items() if 'num_batches' not in key}


# How each project's own training script nests and names things: envelope, student's prefix, teacher's prefix.
LAYOUTS = {
    'ours': (lambda s: dict(meta={}, state_dict=s), 'backbone.', 'teacher.backbone.'),
    'release': (lambda s: dict(start_epoch=200, model=s), 'module.online_encoder.', 'module.target_encoder.'),
    'moco v1 and v2': (
        lambda s: dict(epoch=200, arch='resnet50', state_dict=s),
        'module.encoder_q.',
        'module.encoder_k.',
    ),
    'moco v3': (lambda s: dict(state_dict=s), 'module.base_encoder.', 'module.momentum_encoder.'),
    'mmselfsup moco': (lambda s: dict(state_dict=s), 'encoder_q.0.', 'encoder_k.0.'),
    'mmselfsup byol': (lambda s: dict(state_dict=s), 'online_net.0.', 'target_net.0.'),
    'mmpretrain moco': (lambda s: dict(state_dict=s), 'backbone.', 'encoder_k.module.0.'),
    'mmpretrain byol': (lambda s: dict(state_dict=s), 'backbone.', 'target_net.module.0.'),
}


@pytest.mark.parametrize('part', ['student', 'teacher'])
@pytest.mark.parametrize('name', LAYOUTS)
def test_student_and_teacher_are_told_apart_in_every_project(name, part, networks, tmp_path):
    envelope, *prefixes = LAYOUTS[name]
    student, teacher = map(backbone_of, networks)
    beside = prefixes[0].endswith(('backbone.', '.0.'))  # nothing but the backbone is below the prefix
    head = 'projector.0.weight' if beside else f'{prefixes[0]}fc.0.weight'
    heads = {head: torch.randn(3), 'queue': torch.randn(4, 8)}
    torch.save(
        envelope({**with_prefix(prefixes[0], student), **with_prefix(prefixes[1], teacher), **heads}),
        tmp_path / 'a.pth',
    )
    found = read_backbone(tmp_path / 'a.pth', part)
    wanted = student if part == 'student' else teacher
    assert found.weights.keys() == wanted.keys()
    assert all(torch.equal(found.weights[key], wanted[key]) for key in wanted)
    other = [prefixes[1 if part == 'student' else 0].removeprefix('module.') + key for key in wanted]
    assert set(found.dropped) == {*other, *(key.removeprefix('module.') for key in heads)}


@pytest.mark.parametrize(
    'make',
    [
        lambda s: s,
        lambda s: dict(
            classy_state_dict=dict(
                base_model=dict(
                    model=dict(trunk=with_prefix('_feature_blocks.', s), heads={'0.clf.weight': s['bn1.bias']})
                )
            )
        ),
        lambda s: dict(state_dict=with_prefix('module.encoder.', s)),
        lambda s: dict(state_dict=with_prefix('backbone.', s)),
        lambda s: dict(model=with_prefix('_orig_mod.', s)),
    ],
    ids=['torchvision', 'vissl', 'simsiam', 'mmpretrain', 'compiled'],
)
def test_projects_with_one_network_have_a_student_and_no_teacher(make, networks, tmp_path):
    state = backbone_of(networks[0])
    torch.save(make(state), tmp_path / 'a.pth')
    found = read_backbone(tmp_path / 'a.pth')
    assert found.weights.keys() == state.keys()
    assert all(torch.equal(found.weights[key], state[key]) for key in state)
    with pytest.raises(UserError, match='holds no teacher'):
        read_backbone(tmp_path / 'a.pth', 'teacher')


def test_vissl_heads_are_named_as_left_behind(networks, tmp_path):
    state = backbone_of(networks[0])
    inner = dict(trunk=with_prefix('_feature_blocks.', state), heads={'0.clf.weight': torch.randn(2)})
    torch.save(dict(classy_state_dict=dict(base_model=dict(model=inner))), tmp_path / 'a.torch')
    assert read_backbone(tmp_path / 'a.torch').dropped == ['heads.0.clf.weight']


def test_a_student_whose_teacher_was_cut_away_is_read(networks, tmp_path):
    torch.save(dict(state_dict=with_prefix('encoder_q.', backbone_of(networks[0]))), tmp_path / 'a.pth')
    assert read_backbone(tmp_path / 'a.pth').source == 'MoCo v1 or v2'
    with pytest.raises(UserError, match="no key starts with 'encoder_k.'"):
        read_backbone(tmp_path / 'a.pth', 'teacher')


@pytest.mark.parametrize('protocol', [2, 4])
@pytest.mark.parametrize('prefix', ['', 'backbone.bottom_up.'])
def test_detectron2_pickles_are_read(prefix, protocol, networks, tmp_path):
    state = backbone_of(networks[0])
    with (tmp_path / 'R-18.pkl').open('wb') as file:
        model = with_prefix(prefix, detectron2(state))
        pickle.dump(dict(model=model, __author__='torchvision', matching_heuristics=True), file, protocol)
    found = read_backbone(tmp_path / 'R-18.pkl')
    assert found.weights.keys() == state.keys()
    assert all(torch.equal(found.weights[key], state[key]) for key in state if 'num_batches' not in key)


@pytest.mark.parametrize('to', WRITERS)
def test_round_trips_are_bit_exact_and_name_their_origin(to, networks, tmp_path):
    state = backbone_of(networks[0])
    torch.save(dict(state_dict=with_prefix('encoder_q.', state)), tmp_path / 'moco.pth')
    suffix = dict(detectron2='.pkl', safetensors='.safetensors').get(to, '.pth')
    out = tmp_path / f'out{suffix}'
    write_backbone(read_backbone(tmp_path / 'moco.pth'), out, to)
    back = read_backbone(out)
    assert back.weights.keys() == state.keys()
    for key, value in state.items():
        if to == 'detectron2' and 'num_batches' in key:  # it stores no counters
            continue
        assert torch.equal(back.weights[key], value) and back.weights[key].dtype == value.dtype, key
    assert back.origin['file'] == 'moco.pth' and back.origin['format'] == 'MoCo v1 or v2'


def test_torchvision_and_timm_and_mmpretrain_compute_the_same_from_converted_weights(networks, tmp_path):
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        wanted = torch.nn.Sequential(*list(networks[0].children())[:-1])(images).flatten(1)
    torch.save(dict(model=with_prefix('online_encoder.', backbone_of(networks[0]))), tmp_path / 'a.pth')
    found = read_backbone(tmp_path / 'a.pth')
    for to in ('torchvision', 'timm'):
        write_backbone(found, tmp_path / f'{to}.pth', to)
    plain = torchvision.models.resnet18()
    plain.fc = torch.nn.Identity()
    plain.load_state_dict(torch.load(tmp_path / 'torchvision.pth'))
    of_timm = timm.create_model('resnet18', num_classes=0)
    of_timm.load_state_dict(torch.load(tmp_path / 'timm.pth'))
    import_mmpretrain()
    ours = MODELS.build(resnet_of(found.weights))
    ours.load_state_dict(found.weights)
    ours.eval()  # mmpretrain's returns nothing
    with torch.no_grad():
        assert torch.allclose(plain.eval()(images), wanted, atol=1e-6)
        assert torch.allclose(of_timm.eval()(images), wanted, atol=1e-6)
        assert torch.allclose(ours(images)[-1].mean(dim=(2, 3)), wanted, atol=1e-6)


def test_a_vit_goes_to_timm_and_back_and_computes_the_same(tmp_path):
    import_mmpretrain()
    torch.manual_seed(0)
    settings = dict(type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=32, patch_size=16)
    ours = MODELS.build(dict(**settings, out_type='cls_token'))
    ours.eval()
    torch.save(dict(state_dict=with_prefix('backbone.', ours.state_dict())), tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'timm.pth', 'timm')
    theirs = timm.create_model('vit_tiny_patch16_224', img_size=32, num_classes=0).eval()
    theirs.load_state_dict(torch.load(tmp_path / 'timm.pth'))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(theirs(images), ours(images)[-1], atol=1e-5)
    back = read_backbone(tmp_path / 'timm.pth').weights
    assert back.keys() == ours.state_dict().keys()
    assert all(torch.equal(back[key], value) for key, value in ours.state_dict().items())


def test_renaming_to_timm_undoes_itself():
    key = 'layers.3.ffn.layers.0.0.weight'
    assert rename(key, TIMM) == 'blocks.3.mlp.fc1.weight'


@pytest.mark.parametrize('depth', [18, 34, 50, 101])
def test_the_architecture_is_read_off_the_weights(depth):
    with torch.device('meta'):
        network = getattr(torchvision.models, f'resnet{depth}')()
    assert resnet_of(network.state_dict())['depth'] == depth


class Evil:
    def __reduce__(self):
        import os

        return os.mkdir, (Evil.target,)


@pytest.mark.parametrize('name', ['evil.pkl', 'evil.pth'])
def test_a_file_that_would_run_code_is_refused_and_runs_nothing(name, tmp_path):
    Evil.target = str(tmp_path / 'ran')
    loaded = {'model': {'stem.conv1.weight': Evil()}}
    if name == 'evil.pkl':
        (tmp_path / name).write_bytes(pickle.dumps(loaded))
    else:
        torch.save(loaded, tmp_path / name)
    with pytest.raises(UserError, match='asks to run .*mkdir.*refused'):
        read_backbone(tmp_path / name)
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('name', ['a.pkl', 'a.pth', 'a.safetensors'])
@pytest.mark.parametrize('left', [0, 0.5, 0.99])
def test_truncated_and_empty_files_are_one_sentence(name, left, networks, tmp_path):
    path = tmp_path / name
    to = {'a.pkl': 'detectron2', 'a.pth': 'mmairl', 'a.safetensors': 'safetensors'}[name]
    torch.save(backbone_of(networks[0]), tmp_path / 'src.pth')
    write_backbone(read_backbone(tmp_path / 'src.pth'), path, to)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))])
    with pytest.raises(UserError, match='truncated|empty|damaged|not a') as caught:
        read_backbone(path)
    assert '\n' not in str(caught.value)


def test_what_holds_no_backbone_is_named_by_its_keys(tmp_path):
    torch.save(OrderedDict(w=torch.zeros(2)), tmp_path / 'a.pth')
    with pytest.raises(UserError, match=r"keys look like \['w'\]"):
        read_backbone(tmp_path / 'a.pth')
    assert list(read_tensors(tmp_path / 'a.pth')[0]) == ['w']
