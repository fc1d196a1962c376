"""The stages into which the parameters of a backbone are divided."""

from torch import nn

from mmairl.models.backbones import parameters_by_stage, stages
from mmairl.registry import MODELS


def test_vision_transformer_has_quarters_as_stages():
    vit = dict(type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=32, patch_size=16, out_type='cls_token')
    backbone = MODELS.build(vit)
    parts = parameters_by_stage(nn.ModuleDict(dict(backbone=backbone)))
    assert list(parts) == ['stem', 'layers_0-2', 'layers_3-5', 'layers_6-8', 'layers_9-11', 'top']
    assert sum(map(len, parts.values())) == len(list(backbone.parameters()))
    assert {id(p) for p in parts['layers_3-5']} == {id(p) for p in backbone.layers[3:6].parameters()}
    five = nn.ModuleList(nn.Linear(1, 1) for _ in range(5))
    assert list(stages(nn.ModuleDict(dict(layers=five)))) == ['layers_0-1', 'layers_2', 'layers_3', 'layers_4']
