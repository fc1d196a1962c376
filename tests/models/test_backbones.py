"""mmpretrain's other backbones through the same key, and the supervised baseline."""

from pathlib import Path

import pytest
import torch

from mmairl.engine import launch
from mmairl.errors import UserError
from mmairl.models import Classifier
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs'
BACKBONES = {
    'ViT': (
        dict(type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=32, patch_size=8, out_type='cls_token'),
        192,
    ),
    'ConvNeXt': (dict(type='mmpretrain.ConvNeXt', arch='atto', gap_before_final_norm=False), 320),
    'Swin': (dict(type='mmpretrain.SwinTransformer', arch='tiny', img_size=64, window_size=2), 768),
}


@pytest.mark.parametrize('name', BACKBONES)
def test_other_backbones_train_through_the_same_key(toy_config, name):
    backbone, width = BACKBONES[name]
    cfg = toy_config(steps=2)
    if name == 'Swin':
        cfg.train_dataloader.dataset.size = 64
    cfg.model.backbone = backbone
    cfg.model.projector.in_channels = width
    cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=1e-4)
    runner = launch.train(cfg)
    assert runner.model(torch.randn(2, 3, 64 if name == 'Swin' else 32, 64 if name == 'Swin' else 32)).shape == (
        2,
        width,
    )
    moved = [not torch.equal(p, runner.model.get_parameter(n)) for n, p in runner.model.teacher.named_parameters()]
    assert any(moved), 'the teacher lags behind the student'


def test_resnet_200_has_its_66_blocks():
    backbone = MODELS.build(dict(type='ResNet', depth=200, stem_channels=4, base_channels=4))
    assert [len(getattr(backbone, f'layer{i}')) for i in (1, 2, 3, 4)] == [3, 24, 36, 3]


def test_the_supervised_baseline_is_cross_entropy_on_pooled_features():
    backbone = dict(type='mmpretrain.ResNet', depth=18, stem_channels=8, base_channels=8)
    model = Classifier(backbone, in_channels=64, classes=5)
    images, labels = torch.randn(6, 3, 32, 32), torch.tensor([0, 1, 2, 3, 4, 0])
    found = model([images], dict(label=labels), mode='loss')
    scores = model(images) @ model.fc.weight.T + model.fc.bias
    expected = -(scores.log_softmax(1)[range(6), labels]).mean()
    torch.testing.assert_close(found['loss'], expected)
    with pytest.raises(UserError, match='wants labels'):
        model([images], None, mode='loss')


@pytest.mark.parametrize('name', ['mocov2plus', 'byol'])
def test_the_vit_examples_take_a_step(name):
    cfg = launch.load_config(str(CONFIGS / f'vit/{name}_vit_s16_300e.py'))
    cfg.model.backbone.arch = dict(embed_dims=384, num_layers=1, num_heads=6, feedforward_channels=64)
    model = MODELS.build(cfg.model)
    loss = model([torch.randn(2, 3, 224, 224) for _ in range(2)], mode='loss')['loss']
    loss.backward()
    assert torch.isfinite(loss) and model.backbone.cls_token.grad.abs().sum() > 0
