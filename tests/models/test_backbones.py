"""mmpretrain's other backbones through the same key."""

import torch

from mmairl.engine import launch
from mmairl.registry import MODELS


def test_other_backbones_train_through_the_same_key(toy_config):
    cfg = toy_config(steps=2)
    cfg.model.backbone = dict(type='mmpretrain.ConvNeXt', arch='atto', gap_before_final_norm=False)
    cfg.model.projector.in_channels = 320
    cfg.optim_wrapper.optimizer = dict(type='AdamW', lr=1e-4)
    model = launch.train(cfg).model
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 320)
    assert any(not torch.equal(p, model.get_parameter(n)) for n, p in model.teacher.named_parameters())


def test_resnet_200_has_its_66_blocks():
    backbone = MODELS.build(dict(type='ResNet', depth=200, stem_channels=4, base_channels=4))
    assert [len(getattr(backbone, f'layer{i}')) for i in (1, 2, 3, 4)] == [3, 24, 36, 3]
