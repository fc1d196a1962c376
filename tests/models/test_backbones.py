"""mmpretrain's other backbones through the same key."""

from pathlib import Path

import pytest
import torch

from mmairl.configs import load_config
from mmairl.engine import launch
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs'
BACKBONES = {
    'ConvNeXt': (dict(type='mmpretrain.ConvNeXt', arch='atto', gap_before_final_norm=False), 320, 32),
    'Swin': (dict(type='mmpretrain.SwinTransformer', arch='tiny', img_size=64, window_size=2), 768, 64),
}


@pytest.mark.parametrize('name', ['ConvNeXt', pytest.param('Swin', marks=pytest.mark.slow)])
def test_other_backbones_train_through_the_same_key(toy_config, name):
    backbone, width, size = BACKBONES[name]
    cfg = toy_config(steps=2)
    cfg.train_dataloader.dataset.size = size
    cfg.model.backbone, cfg.model.projector.in_channels = backbone, width
    cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=1e-4)
    model = launch.train(cfg).model
    assert model(torch.randn(2, 3, size, size)).shape == (2, width)
    moved = [not torch.equal(p, model.get_parameter(n)) for n, p in model.teacher.named_parameters()]
    assert any(moved), 'the teacher lags behind the student'


def test_resnet_200_has_its_66_blocks():
    backbone = MODELS.build(dict(type='ResNet', depth=200, stem_channels=4, base_channels=4))
    assert [len(getattr(backbone, f'layer{i}')) for i in (1, 2, 3, 4)] == [3, 24, 36, 3]


def test_the_vit_example_takes_a_step():
    cfg = load_config(str(CONFIGS / 'vit/mocov2plus_vit_s16_300e.py'))
    cfg.model.backbone.arch = dict(embed_dims=384, num_layers=1, num_heads=6, feedforward_channels=64)
    model = MODELS.build(cfg.model)
    loss = model([torch.randn(2, 3, 224, 224) for _ in range(2)], mode='loss')['loss']
    loss.backward()
    assert torch.isfinite(loss) and model.backbone.cls_token.grad.abs().sum() > 0
