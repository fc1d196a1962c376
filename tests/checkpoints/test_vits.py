"""ViTs of timm and of Hugging Face, in files that the packages write: the same features, in float32."""

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file
from torch import nn

import mmairl
from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.errors import UserError
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS

SIZE = 70
SMALL = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=SIZE, patch_size=14)


def restless(network: nn.Module) -> nn.Module:
    """The network with weights that no tensor begins with, so that none can be left out without being seen."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return network.eval()


def ours_from(file) -> nn.Module:
    read = read_backbone(file)
    network = MODELS.build(read.network)
    require_same_keys(read.weights, network.state_dict(), read.path)
    network.load_state_dict(read.weights)
    network.eval()
    return network


def assert_same(file, theirs) -> None:
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, wanted = pooled(ours_from(file)(images)), theirs(images)
    assert (ours - wanted).abs().max() < 1e-4 and wanted.std() > 0.1


@pytest.mark.parametrize(
    'name, prefix',
    [
        ('vit_small_patch16_224', ''),  # DINO's and MAE's layout
        ('vit_small_patch14_dinov2', ''),
        ('vit_small_patch14_reg4_dinov2', ''),
        ('vit_small_patch14_dinov2', 'base_encoder.'),
    ],
)
def test_vits_of_timm_compute_the_same(name, prefix, tmp_path):
    how = dict(img_size=SIZE, patch_size=14, embed_dim=128, depth=2, num_heads=2)
    network = restless(timm.create_model(name, **how))
    torch.save({prefix + key: value for key, value in network.state_dict().items()}, tmp_path / 'a.pth')
    assert_same(tmp_path / 'a.pth', lambda images: network.forward_features(images)[:, 0])


@pytest.mark.parametrize(
    'kind, how',
    [
        (
            'ViT',
            dict(layer_norm_eps=1e-6, intermediate_size=256),
        ),  # DINO; Hugging Face's 1e-12 is not what DINO trained with
        ('Dinov2', {}),
        ('Dinov2', dict(use_swiglu_ffn=True)),  # the giant
        ('Dinov2WithRegisters', {}),
    ],
)
@pytest.mark.parametrize('wrapped', [False, True])
def test_vits_of_hugging_face_compute_the_same(kind, how, wrapped, tmp_path):
    transformers = pytest.importorskip('transformers')
    cfg = getattr(transformers, f'{kind}Config')(**SMALL, **how)
    whole = restless(getattr(transformers, f'{kind}ForImageClassification' if wrapped else f'{kind}Model')(cfg))
    whole.save_pretrained(tmp_path)
    network = getattr(whole, whole.base_model_prefix) if wrapped else whole
    assert_same(tmp_path / 'model.safetensors', lambda images: network(images).last_hidden_state[:, 0])


def test_registers_stay_when_our_own_file_is_read(tmp_path):
    how = dict(
        img_size=28, patch_size=14, embed_dim=64, depth=1, num_heads=1
    )  # 2 x 2 patches and 5 tokens are a square, too
    torch.save(timm.create_model('vit_small_patch14_reg4_dinov2', **how).state_dict(), tmp_path / 'a.pth')
    first = read_backbone(tmp_path / 'a.pth')
    write_backbone(first, tmp_path / 'b.pth')
    again = read_backbone(tmp_path / 'b.pth')
    assert first.weights['cls_token'].shape == (1, 5, 64) and first.weights['pos_embed'].shape == (1, 9, 64)
    assert all(torch.equal(value, again.weights[key]) for key, value in first.weights.items())


def test_registers_go_back_to_timm(tmp_path):
    how = dict(img_size=SIZE, patch_size=14, embed_dim=128, depth=2, num_heads=2, num_classes=0)
    network, again = (restless(timm.create_model('vit_small_patch14_reg4_dinov2', **how)) for _ in 'ab')
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'b.pth', to='timm')
    again.load_state_dict(torch.load(tmp_path / 'b.pth'))
    images = torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(again(images), network(images))


@pytest.fixture
def warned(monkeypatch) -> list[str]:
    said = []
    monkeypatch.setattr('mmairl.checkpoints.architecture.print_log', lambda text, **_: said.append(text))
    return said


@pytest.mark.parametrize(
    'width, heads, prefix', [(384, 12, 'module.base_encoder.'), (384, 6, ''), (1280, 16, ''), (96, 1, '')]
)
def test_heads_are_those_of_the_project_or_width(width, heads, prefix, tmp_path, warned):
    how = dict(img_size=SIZE, patch_size=14, embed_dim=width, depth=1, num_heads=heads, num_classes=0)
    network = restless(timm.create_model('vit_small_patch16_224', **how))
    torch.save({prefix + key: value for key, value in network.state_dict().items()}, tmp_path / 'a.pth')
    for to in ('mmairl', 'safetensors'):
        write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / f'a.{to}', to)
        write_backbone(read_backbone(tmp_path / f'a.{to}'), tmp_path / f'again.{to}', to)
        assert_same(tmp_path / f'again.{to}', network)
    assert [('1 heads of 96 dimensions' in text) for text in warned] == [True, True] * (width == 96)


def test_heads_by_settings_or_by_moco_v3s_table(tmp_path, warned):
    network = timm.create_model('vit_small_patch16_224', depth=1, num_classes=0)
    weights = {f'backbone.{key}': value for key, value in network.state_dict().items()}
    for settings, heads in (({'arch': 'deit-small'}, 6), ({'arch.num_heads': '8'}, 8), ({'arch': '?'}, 6)):
        meta = dict(settings={f'model.backbone.{key}': text for key, text in settings.items()})
        torch.save(dict(state_dict=weights, meta=meta), tmp_path / 'a.pth')
        assert read_backbone(tmp_path / 'a.pth').network['arch']['num_heads'] == heads
    assert not warned
    weights['backbone.pos_embed'][0, 1] = torch.tensor([0.0, 1.0]).repeat_interleave(96).repeat(2)
    torch.save(weights, tmp_path / 'a.pth')
    assert read_backbone(tmp_path / 'a.pth').network['arch']['num_heads'] == 12
    assert '12 heads of 32 dimensions' in warned[0]


def test_heads_of_config_json_are_kept(tmp_path, run_tool, warned):
    network = timm.create_model('vit_small_patch16_224', depth=1, num_classes=0)
    (folder := tmp_path / 'released').mkdir()
    torch.save(network.state_dict(), folder / 'pytorch_model.bin')
    (folder / 'config.json').write_text('{"num_attention_heads": 8}')
    run_tool('tools/normrescale.py', folder / 'pytorch_model.bin', tmp_path / 'a.pth', '--constant', 0.5)
    for path in (folder / 'pytorch_model.bin', tmp_path / 'a.pth'):
        assert read_backbone(path).network['arch']['num_heads'] == 8
    assert not warned


def test_vit_is_written_for_torchvision_or_refused(tmp_path):
    network = torchvision.models.VisionTransformer(SIZE, 14, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=512)
    network = restless(network)
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    network.heads = nn.Identity()
    assert_same(tmp_path / 'a.pth', network)
    for to in ('safetensors', 'mmairl', 'torchvision'):
        write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / f'a.{to}', to)
        write_backbone(read_backbone(tmp_path / f'a.{to}'), tmp_path / 'b.pth', 'torchvision')
        again = torch.load(tmp_path / 'b.pth')
        assert again.keys() == network.state_dict().keys()
        assert all(torch.equal(value, again[key]) for key, value in network.state_dict().items())
    timms = timm.create_model(
        'vit_small_patch16_224', img_size=SIZE, patch_size=14, embed_dim=128, depth=2, num_heads=2, num_classes=0
    )
    timms.load_state_dict(load_file(tmp_path / 'a.safetensors'))
    for name in ('vit_small_patch14_dinov2', 'vit_small_patch14_reg4_dinov2', 'vit_small_patch16_dinov3'):
        torch.save(timm.create_model(name, depth=1, num_classes=0).state_dict(), tmp_path / 'c.pth')
        with pytest.raises(UserError) as error:
            write_backbone(read_backbone(tmp_path / 'c.pth'), tmp_path / 'd.pth', 'torchvision')
        assert error.value.code == 'unwritable-network'
        assert not (tmp_path / 'd.pth').exists()


DINOV3 = ['small', 'small_plus', 'small_plus_qkvb']  # the second's MLP is gated


def restless_dinov3(kind):
    size, bias, _ = kind.partition('_qkvb')
    name = f'vit_{size}_patch16_dinov3{bias}'
    return restless(timm.create_model(name, embed_dim=128, depth=2, num_heads=2, num_classes=0, global_pool='token'))


@pytest.mark.parametrize('kind', DINOV3)
def test_dinov3_of_timm_is_equal_and_goes_back(kind, tmp_path):
    network = restless_dinov3(kind)
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    assert_same(tmp_path / 'a.pth', lambda images: network(images[:, :, :64, :64]))
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'b.pth', to='timm')
    network.load_state_dict(torch.load(tmp_path / 'b.pth'))
    write_backbone(read_backbone(tmp_path / 'a.pth'), tmp_path / 'c.pth')
    assert_same(tmp_path / 'c.pth', lambda images: network(images[:, :, :64, :64]))


def test_patches_of_dinov3_are_those_of_timm(tmp_path):
    network = restless_dinov3('small')
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    pixels = np.random.default_rng(0).integers(0, 256, (1, 64, 64), np.uint8)  # grey, which is shown as RGB
    how = dict(size=56, patches=True, out=tmp_path / 'p.npy')  # resized to 64, of which the middle 48 are whole patches
    found, _, places = mmairl.embed(tmp_path / 'a.pth', list(pixels), **how)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    image = (torch.from_numpy(pixels[:, 4:52, 4:52, None]) / 255 - mean) / std
    with torch.no_grad():
        wanted = network.forward_features(image.permute(0, 3, 1, 2))[:, 5:]
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)
    assert len(places) == 9


@pytest.mark.parametrize('gated', [False, True])
def test_dinov3_of_hugging_face_computes_the_same(gated, tmp_path):
    transformers = pytest.importorskip('transformers')
    how = dict(SMALL, patch_size=16, num_register_tokens=4, intermediate_size=256)
    how |= dict(use_gated_mlp=gated, hidden_act='silu' if gated else 'gelu')  # as the released ones
    network = restless(transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**how)))
    network.save_pretrained(tmp_path)
    assert_same(tmp_path / 'model.safetensors', lambda images: network(images).last_hidden_state[:, 0])


def test_vit_without_positions_or_registers_raises(tmp_path):
    weights = restless_dinov3('small').state_dict()
    del weights['reg_token']
    torch.save(weights, tmp_path / 'a.pth')
    with pytest.raises(UserError) as caught:
        ours_from(tmp_path / 'a.pth')
    assert caught.value.code == 'unknown-network'
