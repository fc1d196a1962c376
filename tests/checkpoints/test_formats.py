"""Third-party layouts: equal features or a clear error, for whole files and for files with one changed key."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
import timm
import torch
import torchvision
from mmengine.config import Config
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import Tensor, nn

import mmairl
from mmairl.checkpoints.layouts import rename
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import WRITERS
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone, tensors_of_config
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS

State = dict[str, Tensor]
SIDE = 32
IMAGES = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
SMALL = dict(img_size=SIDE, patch_size=16, embed_dim=64, depth=2, num_heads=1)


def randomized(network: nn.Module) -> nn.Module:
    """Add noise to every parameter and buffer of numbers, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand(tensor.shape, generator=generator) * 0.1)
    network.eval()
    return network


def resnet() -> tuple[nn.Module, Callable]:
    torch.manual_seed(0)
    network = randomized(torchvision.models.resnet18())
    network.fc = nn.Identity()
    return network, network


def vit(name: str = 'vit_small_patch16_224', **how) -> tuple[nn.Module, Callable]:
    torch.manual_seed(0)
    network = randomized(timm.create_model(name, **{**SMALL, **how}))
    return network, lambda images: network.forward_features(images)[:, 0]


def narrow_resnet() -> tuple[nn.Module, Callable]:
    torch.manual_seed(0)
    network = MODELS.build(dict(type='mmpretrain.ResNet', depth=18, stem_channels=4, base_channels=4))
    network.init_weights()
    randomized(network)
    network.eval()
    return network, lambda images: pooled(network(images))


def dinov3() -> tuple[nn.Module, Callable]:
    torch.manual_seed(0)
    how = dict(embed_dim=64, depth=2, num_heads=1, global_pool='token')
    network = randomized(timm.create_model('vit_small_patch16_dinov3', **how))
    return network, lambda images: network.forward_features(images)[:, 0]


def replaced(state: State, pairs: list[tuple[str, str]]) -> State:
    """Rename keys by regular expressions, each tried on every key in order."""

    def name(key: str) -> str:
        for old, new in pairs:
            key = re.sub(old, new, key)
        return key

    return {name(key): value for key, value in state.items()}


def hugging_face_resnet(state: State) -> State:
    """Return torchvision's tensors as Hugging Face's ResNetModel names them."""
    return replaced(
        state,
        [
            (r'^conv1\.', 'embedder.embedder.convolution.'),
            (r'^bn1\.', 'embedder.embedder.normalization.'),
            (r'^layer(\d)\.', lambda match: f'encoder.stages.{int(match[1]) - 1}.layers.'),
            (r'downsample\.0', 'shortcut.convolution'),
            (r'downsample\.1', 'shortcut.normalization'),
            (r'\.conv(\d)\.', lambda match: f'.layer.{int(match[1]) - 1}.convolution.'),
            (r'\.bn(\d)\.', lambda match: f'.layer.{int(match[1]) - 1}.normalization.'),
        ],
    )


def hugging_face_vit(state: State) -> State:
    """Return timm's tensors as Hugging Face's ViTModel names them, with query, key and value apart."""
    apart: State = {}
    for key, value in state.items():
        if 'qkv' not in key:
            apart[key] = value
            continue
        for name, part in zip(('query', 'key', 'value'), value.chunk(3)):
            apart[key.replace('attn.qkv', f'attention.attention.{name}')] = part.clone()
    names = [
        (r'^cls_token', 'embeddings.cls_token'),
        (r'^pos_embed', 'embeddings.position_embeddings'),
        (r'^patch_embed\.proj', 'embeddings.patch_embeddings.projection'),
        (r'^norm\.', 'layernorm.'),
        (r'^head\.', 'classifier.'),
        (r'^blocks\.', 'encoder.layer.'),
        (r'\.norm1\.', '.layernorm_before.'),
        (r'\.norm2\.', '.layernorm_after.'),
        (r'\.attn\.proj\.', '.attention.output.dense.'),
        (r'\.mlp\.fc1\.', '.intermediate.dense.'),
        (r'\.mlp\.fc2\.', '.output.dense.'),
    ]
    return replaced(apart, names)


def hugging_face_dinov3(state: State) -> State:
    apart: State = {}
    for key, value in state.items():
        if 'qkv' not in key:
            apart[key] = value
            continue
        for name, part in zip('qkv', value.chunk(3)):
            apart[key.replace('attn.qkv', f'attention.{name}_proj')] = part.clone()
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
    return replaced(apart, names)


def detectron2(state: State) -> State:
    return {rename(key, 'detectron2'): value for key, value in state.items() if 'num_batches' not in key}


def sequential(state: State) -> State:
    names = [(r'^conv1', '0'), (r'^bn1', '1'), (r'^layer(\d)', lambda match: str(int(match[1]) + 3))]
    return replaced(state, names)


def headless(state: State) -> State:
    return {key: value for key, value in state.items() if not key.startswith(('fc.', 'head.'))}


def torchvision_vit() -> tuple[nn.Module, Callable]:
    network = torchvision.models.VisionTransformer(SIDE, 16, num_layers=2, num_heads=1, hidden_dim=64, mlp_dim=128)
    network = randomized(network)
    network.heads = nn.Identity()
    return network, network


# Each known layout: the network, and how a file stores it.
LAYOUTS: dict[str, tuple[Callable, Callable[[State], State]]] = {
    'torchvision': (resnet, headless),
    'detectron2': (resnet, detectron2),
    'sequential': (resnet, sequential),
    'hugging face resnet': (resnet, hugging_face_resnet),
    'moco': (resnet, lambda state: {f'encoder_q.{key}': value for key, value in state.items()}),
    'ours': (resnet, lambda state: {f'backbone.{key}': value for key, value in state.items()}),
    'timm vit': (vit, lambda state: state),
    'timm dinov2': (lambda: vit('vit_small_patch14_reg4_dinov2', patch_size=16), lambda state: state),
    'timm dinov3': (dinov3, lambda state: state),
    'torchvision vit': (torchvision_vit, lambda state: state),
    'hugging face vit': (vit, hugging_face_vit),
    'hugging face vit with a head': (
        vit,
        lambda state: {
            f'vit.{key}' if 'classifier' not in key else key: x for key, x in hugging_face_vit(state).items()
        },
    ),
    'hugging face dinov3': (dinov3, hugging_face_dinov3),
}


def features(path, **how) -> Tensor:
    read = read_backbone(path, **how)
    network = MODELS.build(read.network)
    network.load_state_dict(read.weights)
    network.eval()
    with torch.no_grad():
        return pooled(network(IMAGES))


def assert_equal(path, network: Callable, **how) -> None:
    with torch.no_grad():
        wanted = network(IMAGES)
    assert (features(path, **how) - wanted).abs().max() <= 1e-5 * wanted.abs().max() and wanted.std() > 0.01


@pytest.mark.parametrize('name', LAYOUTS)
def test_layout_has_the_features_of_its_package(name, tmp_path):
    make, layout = LAYOUTS[name]
    module, network = make()
    torch.save(layout(module.state_dict()), tmp_path / 'a.pth')
    assert_equal(tmp_path / 'a.pth', network)


def changed(state: State, stride: int) -> Iterator[tuple[str, State]]:
    """Yield the tensors of a file with one key of each `stride` deleted, renamed or added."""
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
def test_a_changed_key_is_equal_or_an_error(name, stride, tmp_path, monkeypatch):
    make, layout = LAYOUTS[name]
    module, network = narrow_resnet() if make is resnet else make()
    file: State = {}
    monkeypatch.setattr('mmairl.checkpoints.read.load_checkpoint', lambda path: dict(state_dict=dict(file)))
    monkeypatch.setattr('mmairl.checkpoints.read.print_log', lambda *_, **__: None)
    whole = layout(module.state_dict())
    with torch.no_grad():
        wanted = network(IMAGES)
    equal = 0
    for change, state in changed(whole, stride):
        file.clear()
        file.update(state)
        try:
            found = features(tmp_path / 'a.pth')
        except UserError as error:
            assert error.code, change
            continue
        equal += 1
        if change == 'without reg_token' and name == 'timm dinov2':
            continue  # DeiT III, whose tensors these are
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max(), change
    assert equal < 3 * len(whole)


UNSUPPORTED = {
    'beit': ('beit_base_patch16_224', dict(depth=1, embed_dim=64, num_heads=1)),
    'parallel blocks': ('vit_small_patch16_18x2_224', dict(depth=1, embed_dim=64, num_heads=1)),
    'xp': ('vit_base_patch16_xp_224', dict(depth=1, embed_dim=64, num_heads=1)),
    'skresnet': ('skresnet18', {}),
    'mci': ('vit_base_mci_224', dict(depth=1)),
    'distilled': ('deit_tiny_distilled_patch16_224', dict(depth=1)),
    'clip': ('vit_base_patch16_clip_224', dict(depth=1, embed_dim=64, num_heads=1)),
    'average': ('vit_base_patch16_224', dict(depth=1, embed_dim=64, num_heads=1, global_pool='avg')),
    'rope': ('vit_small_patch16_rope_224', dict(depth=1)),
    'mixed rope': ('vit_small_patch16_rope_mixed_224', dict(depth=1)),
    'eva': ('eva02_tiny_patch14_224', dict(depth=1)),
    'seresnet': ('seresnet18', {}),
    'resnet50d': ('resnet50d', {}),
    'resnext': ('resnext50_32x4d', {}),
    'swin': ('swin_tiny_patch4_window7_224', {}),
    'convnext': ('convnext_atto', {}),
}


@pytest.mark.parametrize('name', UNSUPPORTED)
@pytest.mark.parametrize('prefix', ['', 'backbone.', 'net.'])
def test_another_network_is_an_error(name, prefix, tmp_path):
    timm_name, how = UNSUPPORTED[name]
    state = timm.create_model(timm_name, **how).state_dict()
    torch.save({prefix + key: value for key, value in state.items()}, tmp_path / 'a.pth')
    with pytest.raises(UserError) as caught:
        features(tmp_path / 'a.pth')
    assert caught.value.code


@pytest.mark.parametrize('q_bias', [True, False])
def test_beit_of_hugging_face_is_an_error(q_bias, tmp_path):
    state = hugging_face_vit(vit()[0].state_dict())
    state = {key: value for key, value in state.items() if '.key.bias' not in key}
    state['encoder.relative_position_bias.relative_position_bias_table'] = torch.zeros(9, 1)
    if not q_bias:
        state = {key: value for key, value in state.items() if '.query.bias' not in key}
    torch.save(state, tmp_path / 'a.pth')
    with pytest.raises(UserError) as caught:
        read_backbone(tmp_path / 'a.pth')
    assert caught.value.code == 'other-network'


@pytest.mark.parametrize('name', ['resnet18', 'resnetaa50', 'resnetblur50', 'vit_tiny_patch16_224'])
def test_timm_architecture_is_checked(name, tmp_path):
    network = randomized(timm.create_model(name))
    save_for_hf(network, tmp_path, safe_serialization=True)
    if 'aa' in name or 'blur' in name:
        with pytest.raises(UserError) as caught:
            features(tmp_path / 'model.safetensors')
        assert caught.value.code == 'other-network'
    else:
        _ = read_backbone(tmp_path / 'model.safetensors').network


HUGGING_FACE = {
    'resnet': (resnet, hugging_face_resnet, dict(hidden_act='relu', layer_type='basic', depths=[2, 2, 2, 2])),
    'vit': (vit, hugging_face_vit, dict(hidden_act='gelu', layer_norm_eps=1e-6, qkv_bias=True, num_attention_heads=1)),
    'dinov3_vit': (dinov3, hugging_face_dinov3, dict(hidden_act='gelu', layer_norm_eps=1e-5, rope_theta=100.0)),
}
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


@pytest.fixture
def hugging_face(tmp_path) -> Callable:
    """Write a folder of Hugging Face's with these changes of config.json."""

    def write(kind: str, **changes) -> tuple:
        make, layout, fields = HUGGING_FACE[kind]
        module, network = make()
        save_file(
            {key: x.contiguous() for key, x in layout(module.state_dict()).items()}, tmp_path / 'model.safetensors'
        )
        (tmp_path / 'config.json').write_text(
            json.dumps(dict(model_type=kind, architectures=['X'], **{**fields, **changes}))
        )
        return tmp_path / 'model.safetensors', network

    return write


@pytest.mark.parametrize('kind', HUGGING_FACE)
def test_hugging_face_folder_is_read_by_its_config(kind, hugging_face):
    path, network = hugging_face(kind)
    assert_equal(path.parent, network)
    assert_equal(path, network)


@pytest.mark.parametrize('kind, field, value', OTHERS)
def test_hugging_face_field_of_another_network(kind, field, value, hugging_face):
    path, _ = hugging_face(kind)
    config = json.loads(path.with_name('config.json').read_text())
    path.with_name('config.json').write_text(json.dumps({**config, field: value}))
    with pytest.raises(UserError):
        features(path)


def test_epsilon_of_layer_norm_is_that_of_config(hugging_face, tmp_path):
    path, _ = hugging_face('vit', layer_norm_eps=0.1)
    module, _ = vit()
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.eps = 0.1
    assert_equal(path, lambda images: module.forward_features(images)[:, 0])


def test_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(UserError) as caught:
        read_backbone(tmp_path)
    assert caught.value.code == 'no-weights-in-folder'


@pytest.mark.parametrize('name', ['net', 'model', 'resnet', 'student', 'feature_extractor', 'backbone.net'])
def test_backbone_of_a_lightning_module_is_found(name, tmp_path):
    network, _ = resnet()
    state = {f'{name}.{key}': value for key, value in network.state_dict().items()}
    torch.save(dict(state_dict={**state, 'projection_head.0.weight': torch.ones(2, 2)}), tmp_path / 'a.ckpt')
    assert_equal(tmp_path / 'a.ckpt', network)


def test_prefix_chooses_between_two_backbones(tmp_path):
    first, second = resnet()[0], resnet()[0]
    with torch.no_grad():
        second.conv1.weight.mul_(-1)
    parts = {'one': first, 'other': second}
    state = {f'{name}.{key}': x for name, network in parts.items() for key, x in network.state_dict().items()}
    torch.save(state, tmp_path / 'a.pth')
    with pytest.raises(UserError) as caught:
        read_backbone(tmp_path / 'a.pth')
    assert caught.value.code == 'several-backbones'
    for name, network in parts.items():
        assert_equal(tmp_path / 'a.pth', network, prefix=f'{name}.')
    with pytest.raises(UserError) as caught:
        read_backbone(tmp_path / 'a.pth', prefix='none.')
    assert caught.value.code == 'unknown-prefix'


@pytest.mark.parametrize('prefix', ['', 'backbone.', 'net.', 'backbone.timm_model.'])
def test_timm_file_fills_the_network_of_a_config(prefix, tmp_path):
    cfg = Config(dict(model=dict(backbone=dict(type='mmpretrain.TIMMBackbone', model_name='tf_efficientnet_lite0'))))
    network = randomized(timm.create_model('tf_efficientnet_lite0'))
    torch.save({prefix + key: value for key, value in network.state_dict().items()}, tmp_path / 'a.pth')
    ours = load_backbone(cfg, tmp_path / 'a.pth')
    with torch.no_grad():
        found, wanted = ours(IMAGES)[-1], network.forward_features(IMAGES)
    assert torch.allclose(found, wanted, atol=1e-5)
    dropped = read_backbone(tmp_path / 'a.pth', network=tensors_of_config(cfg)).dropped
    assert dropped == [f'{prefix}classifier.weight', f'{prefix}classifier.bias']


C4 = {
    'detectron2': (detectron2, 'roi_heads.', 'res5.'),
    'mmdet': (headless, 'roi_head.shared_head.', 'layer4.'),
}


@pytest.mark.parametrize('kind', C4)
def test_c4_detector_keeps_its_last_stage(kind, tmp_path, run_tool, capsys):
    layout, head, stage = C4[kind]
    network, _ = resnet()
    state = layout(network.state_dict())
    state = {(head if key.startswith(stage) else 'backbone.') + key: value for key, value in state.items()}
    torch.save(state, tmp_path / 'a.pth')
    assert_equal(tmp_path / 'a.pth', network)
    torn = {key: value for key, value in state.items() if not key.startswith(head)}
    torch.save(torn, tmp_path / 'torn.pth')
    with pytest.raises(UserError) as caught:
        read_backbone(tmp_path / 'torn.pth')
    assert caught.value.code == 'incomplete-network'
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/convert.py', tmp_path / 'torn.pth', tmp_path / 'out.pth', '--to', 'torchvision')
    assert not (tmp_path / 'out.pth').exists()


def test_small_stem_pads_two_in_solo_learn(tmp_path):
    network, _ = resnet()
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=2, bias=False), nn.Identity()
    both = {f'{name}.{key}': x for name in ('backbone', 'momentum_backbone') for key, x in network.state_dict().items()}
    torch.save(both, tmp_path / 'a.ckpt')
    assert_equal(tmp_path / 'a.ckpt', network)


def test_padding_of_another_small_stem_is_warned_of(tmp_path, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr('mmairl.checkpoints.read.print_log', lambda text, **_: lines.append(text))
    network, _ = resnet()
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    assert_equal(tmp_path / 'a.pth', network)
    assert len(lines) == 1 and 'padding' in lines[0]


# Every network and every format of the command. Pairs that have no such network are errors.
NETWORKS = {'resnet': resnet, 'vit': vit, 'registers': LAYOUTS['timm dinov2'][0], 'dinov3': dinov3}
WITHOUT = {
    ('vit', 'detectron2'),
    ('registers', 'detectron2'),
    ('dinov3', 'detectron2'),
    ('registers', 'torchvision'),
    ('dinov3', 'torchvision'),
}


@pytest.mark.parametrize('name', NETWORKS)
@pytest.mark.parametrize('to', WRITERS)
def test_every_network_converts_to_every_format(to, name, tmp_path, run_tool):
    module, network = NETWORKS[name]()
    torch.save(module.state_dict(), tmp_path / 'a.pth')
    out = tmp_path / f'out{dict(detectron2=".pkl", safetensors=".safetensors").get(to, ".pth")}'
    command = ('tools/convert.py', tmp_path / 'a.pth', out, '--to', to)
    if (name, to) in WITHOUT:
        with pytest.raises(SystemExit, match='2'):
            run_tool(*command)
        assert not out.exists()
        return
    run_tool(*command)
    assert_equal(out, network)
    assert (tmp_path / 'README.md').exists() == (to in ('timm', 'safetensors'))


def test_safetensors_state_the_format_of_the_hub(tmp_path, run_tool):
    from safetensors import safe_open

    torch.save(resnet()[0].state_dict(), tmp_path / 'a.pth')
    run_tool('tools/convert.py', tmp_path / 'a.pth', tmp_path / 'a.safetensors', '--to', 'safetensors')
    with safe_open(tmp_path / 'a.safetensors', framework='pt') as file:
        metadata = file.metadata()
    assert metadata['format'] == 'pt' and metadata['source_format'].startswith('plain')


def test_source_format_of_old_files_is_read(tmp_path):
    state = {key: x.contiguous() for key, x in resnet()[0].state_dict().items()}
    save_file(state, tmp_path / 'a.safetensors', metadata=dict(file='b.pth', format='MoCo v1 or v2'))
    assert read_backbone(tmp_path / 'a.safetensors').origin == dict(file='b.pth', source_format='MoCo v1 or v2')


HALF = dict(mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5])
PREPROCESSOR = dict(image_mean=HALF['mean'], image_std=HALF['std'], size=dict(height=SIDE, width=SIDE), resample=3)
STATED = {
    'timm': ('config.json', dict(architecture='resnet18', pretrained_cfg=dict(**HALF, input_size=[3, SIDE, SIDE]))),
    'hugging face': ('preprocessor_config.json', PREPROCESSOR),
    'without normalizing': (
        'preprocessor_config.json',
        {**PREPROCESSOR, 'do_normalize': True, 'rescale_factor': 1 / 255, 'crop_size': dict(height=SIDE, width=SIDE)},
    ),
}
PIXELS = torch.randint(0, 256, (2, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize('name', STATED)
def test_embed_normalizes_as_files_next_to_it_state(name, tmp_path, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr('mmairl.checkpoints.read.print_log', lambda text, **_: lines.append(text))
    torch.save(resnet()[0].state_dict(), tmp_path / 'a.pth')
    assumed, _ = mmairl.embed(tmp_path / 'a.pth', PIXELS, size=SIDE)
    assert len(lines) == 1 and '0.485' in lines[0] and 'mean= and std=' in lines[0]
    wanted, _ = mmairl.embed(tmp_path / 'a.pth', PIXELS, size=SIDE, **HALF)
    file, content = STATED[name]
    (tmp_path / file).write_text(json.dumps(content))
    read = read_backbone(tmp_path / 'a.pth').input
    assert (list(read.mean), list(read.std), read.size) == (*HALF.values(), SIDE)
    assert read.interpolation == ('bilinear' if file == 'config.json' else 'bicubic')
    monkeypatch.setattr('mmairl.checkpoints.hub_config.PILLOW_INTERPOLATIONS', {})
    found, _ = mmairl.embed(tmp_path / 'a.pth', PIXELS)
    assert abs(found - wanted).max() == 0 < abs(found - assumed).max()
    assert len(lines) == 1


BAD = {
    'a mean of text': dict(image_mean='half', image_std=0.5),
    'no mean': dict(do_normalize=True),
    'a deviation of 0': dict(image_mean=0.5, image_std=0),
    'a size of text': dict(image_mean=0.5, image_std=0.5, size='large'),
    'an enormous size': dict(image_mean=0.5, image_std=0.5, size=10**9),
    'a list': [1],
}


@pytest.mark.parametrize('name', BAD)
def test_bad_preprocessor_config_is_an_error(name, tmp_path):
    torch.save(resnet()[0].state_dict(), tmp_path / 'a.pth')
    (tmp_path / 'preprocessor_config.json').write_text(json.dumps(BAD[name]))
    with pytest.raises(UserError):
        mmairl.embed(tmp_path / 'a.pth', PIXELS)


def test_statistics_stay_with_converted_files(tmp_path, run_tool):
    (released := tmp_path / 'released').mkdir()
    torch.save(vit()[0].state_dict(), released / 'a.pth')
    (released / 'preprocessor_config.json').write_text(json.dumps(PREPROCESSOR))
    for to in ('safetensors', 'mmairl'):
        run_tool('tools/convert.py', released / 'a.pth', tmp_path / to / f'a.{to}', '--to', to)
        read = read_backbone(tmp_path / to / f'a.{to}').input
        assert (list(read.mean), list(read.std), read.size) == (*HALF.values(), SIDE)
    assert '- mean: 0.5, 0.5, 0.5\n' in (tmp_path / 'safetensors' / 'README.md').read_text()
    (tmp_path / 'given').mkdir()
    flags = ('--mean', 0.1, 0.2, 0.3, '--std', 1, 1, 1)
    run_tool('tools/convert.py', released / 'a.pth', tmp_path / 'given' / 'a.pth', '--to', 'timm', *flags)
    assert '- mean: 0.1, 0.2, 0.3\n' in (tmp_path / 'given' / 'README.md').read_text()
