"""How backbones fall into stages."""

import pytest
from torch import nn

from mmairl.models.stages import parameters_by_stage, stages
from mmairl.registry import MODELS


def test_a_vision_transformer_falls_into_stem_quarters_and_top():
    vit = dict(type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=32, patch_size=16, out_type='cls_token')
    backbone = MODELS.build(vit)
    parts = parameters_by_stage(nn.ModuleDict(dict(backbone=backbone)))
    assert list(parts) == ['stem', 'layers_0-2', 'layers_3-5', 'layers_6-8', 'layers_9-11', 'top']
    assert sum(map(len, parts.values())) == len(list(backbone.parameters()))
    assert {id(p) for p in parts['layers_3-5']} == {id(p) for p in backbone.layers[3:6].parameters()}


@pytest.mark.parametrize('count', [4, 5, 7])
def test_quarters_hold_every_block_once_and_in_order(count):
    layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(count))
    found = stages(nn.ModuleDict(dict(layers=layers)))
    assert [block for part in found.values() for block in part] == list(layers)
    assert len(found) == 4 and max(map(len, found.values())) - min(map(len, found.values())) <= 1
