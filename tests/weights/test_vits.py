"""ViTs of timm and of Hugging Face, in files that the packages write: the same features, in float32."""

import pytest
import timm
import torch
from torch import nn

from mmairl.errors import UserError
from mmairl.models.siamese import pooled
from mmairl.registry import MODELS
from mmairl.weights.formats import backbone_of
from mmairl.weights.load import require_same_keys
from mmairl.weights.read import read_backbone
from mmairl.weights.write import write_backbone

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
    network = MODELS.build(backbone_of(read.weights, read.path))
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


def test_a_vit_that_turns_queries_by_place_is_refused_in_a_sentence(tmp_path):
    how = dict(img_size=28, embed_dim=64, depth=1, num_heads=1)
    torch.save(timm.create_model('vit_small_patch16_dinov3', **how).state_dict(), tmp_path / 'a.pth')
    with pytest.raises(UserError, match="without a table of positions, such as DINOv3's"):
        ours_from(tmp_path / 'a.pth')


def test_dinov3_of_hugging_face_is_refused_in_a_sentence(tmp_path):
    transformers = pytest.importorskip('transformers')
    transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="without a table of positions, such as DINOv3's"):
        ours_from(tmp_path / 'model.safetensors')
