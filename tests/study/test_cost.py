"""FLOPs of training steps, counted without data, also of unmodified models of mmpretrain."""

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from torch import nn

from mmairl.config import load_config
from mmairl.registry import MODELS
from mmairl.study.cost import count_flops, flops_per_image, run_flops, view_sizes

RESNET = dict(type='mmpretrain.ResNet', depth=18)
BARLOW = dict(
    type='mmpretrain.BarlowTwins',
    data_preprocessor=dict(type='ViewPreprocessor', mean=[0.5] * 3, std=[0.2] * 3),
    backbone=RESNET,
    neck=dict(
        type='mmpretrain.NonLinearNeck',
        in_channels=512,
        hid_channels=64,
        out_channels=64,
        num_layers=3,
        with_avg_pool=True,
    ),
    head=dict(
        type='mmpretrain.LatentCrossCorrelationHead',
        in_channels=64,
        loss=dict(type='mmpretrain.CrossCorrelationLoss'),
    ),
)

VIT = dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64)
MAE = dict(
    type='mmpretrain.MAE',
    data_preprocessor=dict(type='ViewPreprocessor', mean=[0.5] * 3, std=[0.2] * 3, single_view=True),
    backbone=dict(type='mmpretrain.MAEViT', arch=VIT, img_size=32, patch_size=8),
    neck=dict(
        type='mmpretrain.MAEPretrainDecoder',
        num_patches=16,
        patch_size=8,
        embed_dim=32,
        decoder_embed_dim=32,
        decoder_depth=1,
        decoder_num_heads=2,
    ),
    head=dict(
        type='mmpretrain.MAEPretrainHead',
        patch_size=8,
        loss=dict(type='mmpretrain.PixelReconstructionLoss', criterion='L2'),
    ),
)


@MODELS.register_module(force=True)
class OneLayer(BaseModel):
    """A linear layer on 8 x 8 pixels. With `reads`, the loss reads the value of a tensor."""

    def __init__(self, reads=False, data_preprocessor=None):
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 4, bias=False))
        self.reads = reads

    def forward(self, inputs, data_samples, mode):
        views = [inputs] if torch.is_tensor(inputs) else inputs
        loss = sum(self.backbone(view).sum() for view in views)
        return dict(loss=loss * float(loss) if self.reads else loss)


def config(model, views=2, **train):
    crop = [dict(type='RandomResizedCrop', size=8)]
    dataset = dict(type='Shapes', views=[crop] * views)
    return Config(
        dict(
            model=model,
            train_dataloader=dict(dataset=dataset),
            total_batch_size=4,
            train_cfg=train or dict(max_epochs=3),
        )
    )


def test_flops_of_a_linear_layer():
    """The forward pass and the gradient of the weights have two FLOPs for each weight."""
    assert count_flops(config(dict(type='OneLayer'))) == 2 * (2 + 2) * 192 * 4
    assert count_flops(config(dict(type='OneLayer'), views=1)) == (2 + 2) * 192 * 4


def test_uncountable_model_is_unknown():
    cfg = config(dict(type='OneLayer', reads=True))
    assert count_flops(cfg) is None and run_flops(cfg) is None


@pytest.mark.parametrize('model', [BARLOW, MAE], ids=lambda model: model['type'])
def test_unmodified_mmpretrain_model_is_counted(model):
    cfg = config(model)
    cfg.train_dataloader.dataset.views = [[dict(type='RandomResizedCrop', size=32)]] * 2
    assert count_flops(cfg) > 1e6


def test_counts_are_stored(tmp_path, monkeypatch):
    monkeypatch.setattr('mmairl.study.cost.hardware.cache', lambda: tmp_path)
    flops = flops_per_image(config(dict(type='OneLayer')))
    monkeypatch.setattr('mmairl.study.cost.count_flops', None)
    assert flops_per_image(config(dict(type='OneLayer'))) == flops


def test_length_counts():
    longer = config(dict(type='OneLayer'), max_epochs=6)
    assert run_flops(longer) == 2 * run_flops(config(dict(type='OneLayer')))


def test_sizes_come_from_the_last_crop():
    cfg = load_config('configs/mocov2plus_r50_200e.py')
    assert view_sizes(cfg) == [224, 224]
