"""The sample of images, and patch pictures of real networks."""

import numpy as np
import pytest
import torch
from mmengine import Config

from mmairl.analysis.geometry import numbers_of
from mmairl.analysis.patch_pictures import class_attention, component_colors, patch_picture
from mmairl.analysis.subjects import Images
from mmairl.config import load_config
from mmairl.evaluation.backbone import load_backbone
from mmairl.models.backbones import pooled


@pytest.fixture
def cfg() -> Config:
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    for part in ('train', 'test'):
        cfg.evaluation[part].count = 60
    cfg.train_dataloader.dataset.count = 60
    return cfg


def test_sample_is_random_but_fixed(cfg):
    first, second = (Images(cfg, 24, batch_size=10) for _ in range(2))
    assert torch.equal(torch.cat(list(first)), torch.cat(list(second)))
    rows = first.dataset.indices
    assert len(first) == 24 and len(first.dataset.dataset.labels[rows].unique()) > 6
    picture = first.dataset.dataset.raw(rows[0])
    assert torch.allclose(first.first(1)[0], picture / 255)


@pytest.mark.parametrize('count', [1, 2])
def test_views_are_those_of_training(cfg, count):
    crop = dict(type='RandomResizedCrop', size=16)
    images = {**cfg.train_dataloader.dataset, 'views': [[crop]] * count}
    cfg.train_dataloader.dataset = dict(type='Subset', dataset=images)
    cfg.model.data_preprocessor.update(views=None, single_view=count == 1)
    [views] = Images(cfg, 8).views()
    assert [tuple(view.shape) for view in views] == [(8, 3, 16, 16)] * count
    measures = numbers_of(torch.rand(8, 4), [view.flatten(1) for view in views])
    assert ('alignment' in measures) == (count == 2)


def test_checkpoint_network_equals_the_trained_one(cfg, tmp_path):
    network = load_backbone(cfg, seed=3)
    state = {f'backbone.{key}': value for key, value in network.state_dict().items()}
    torch.save({'state_dict': state}, tmp_path / 'a.pth')
    images = Images(cfg, 8)
    loaded = images.network(str(tmp_path / 'a.pth'))
    [batch] = images
    expected = pooled(network(batch))
    assert torch.allclose(images.embed(loaded, images.first(8)), expected, atol=1e-5)


def test_colors_separate_an_object_from_its_background():
    torch.manual_seed(0)
    features = 0.05 * torch.randn(8, 12, 12)
    features[0] += 3
    features[:, 4:8, 4:8] = 0.3 * torch.randn(8, 4, 4)
    [colors] = component_colors(features[None])
    inside = torch.zeros(12, 12, dtype=torch.bool)
    inside[4:8, 4:8] = True
    assert colors[:, ~inside].max() == 0 and (colors[:, inside].amax(0) > 0).float().mean() > 0.9


@pytest.fixture
def vit() -> torch.nn.Module:
    arch = dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64)
    described = dict(type='mmpretrain.VisionTransformer', arch=arch, patch_size=16, img_size=64)
    return load_backbone(Config(dict(model=dict(backbone=described))))


def test_attention_equals_a_plain_softmax(vit):
    images = torch.randn(1, 3, 64, 64)
    inputs = []
    with (
        vit.layers[-1].attn.register_forward_hook(lambda m, args, out: inputs.append(args[0])),
        torch.no_grad(),
    ):
        vit(images)
        found = class_attention(vit, images, (4, 4))
        q, k, _ = vit.layers[-1].attn.qkv(inputs[0])[0].view(17, 3, 4, 8).unbind(1)
    rows = []
    for head in range(4):
        scores = (k[:, head] @ q[0, head]) / 8**0.5
        rows.append(scores.softmax(0)[1:])
    expected = torch.stack(rows).mean(0)
    assert torch.allclose(found.flatten(), expected / expected.max(), atol=1e-5)


def test_picture_has_a_row_for_each_image(cfg, vit):
    images = torch.rand(3, 3, 64, 64)
    picture = patch_picture({'cnn': load_backbone(cfg), 'vit': vit}, images, cfg)
    assert picture.size == (4 * 68 + 4, 3 * 68 + 4)
    shown = np.asarray(picture)[4:68, 4:68] / 255
    np.testing.assert_allclose(shown, images[0].permute(1, 2, 0), atol=1 / 255)
