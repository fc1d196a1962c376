"""All parts of a detector start from pre-trained weights. If some weights do not fit, an error is raised."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from mmengine.model import BaseModule
from torch import Tensor, nn


class Part(BaseModule):
    """A part of a C4 detector: the backbone without its last stage, or, with `stem=False`, the last stage."""

    def __init__(self, init_cfg: dict | None = None, stem: bool = True) -> None:
        super().__init__(init_cfg)
        self.conv1 = nn.Conv2d(3 if stem else 4, 4, 3)
        if stem:
            self.bn1 = nn.BatchNorm2d(4)


class Detector(BaseModule):
    def __init__(self, **init: object) -> None:
        super().__init__()
        init['type'] = 'mmairl.PretrainedBackbone'
        self.backbone, self.head = Part(init), BaseModule()
        self.head.layer4, self.head.box = Part(dict(init, prefix='layer4.'), stem=False), nn.Linear(4, 2)


@pytest.fixture
def weights() -> dict[str, Tensor]:
    """Return the weights of a pre-training checkpoint of mmairl, with student and teacher."""
    backbone = Part()
    backbone.layer4 = Part(stem=False)
    state = {'projector.w': torch.ones(3)}
    for whose in ('backbone.', 'teacher.backbone.'):
        state |= {f'{whose}{k}': 0.1 * torch.randn_like(v.float()) for k, v in backbone.state_dict().items()}
    return state


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[dict], str]:
    def save(weights: dict[str, Tensor]) -> str:
        torch.save(dict(meta=dict(epoch=1), state_dict=weights), tmp_path / 'pretrained.pth')
        return str(tmp_path / 'pretrained.pth')

    return save


@pytest.mark.parametrize('part, prefix', [('student', 'backbone.'), ('teacher', 'teacher.backbone.')])
def test_each_part_has_the_weights_of_its_stages(part, prefix, weights, saved):
    model = Detector(checkpoint=saved(weights), part=part)
    model.init_weights()
    assert torch.equal(model.backbone.bn1.running_var, weights[f'{prefix}bn1.running_var'])
    assert torch.equal(model.head.layer4.conv1.weight, weights[f'{prefix}layer4.conv1.weight'])


def test_weights_that_do_not_fit_are_errors(weights, saved):
    for key in ('bn1.running_mean', 'layer4.conv1.weight'):
        short = {name: value for name, value in weights.items() if name != f'backbone.{key}'}
        with raises_code('incomplete-network', match=f'{key.removeprefix("layer4.")} is missing[;)]'):
            Detector(checkpoint=saved(short)).init_weights()
    with raises_code('other-network'):
        Detector(checkpoint=saved({**weights, 'backbone.conv1.weight': torch.ones(4, 3, 5, 5)})).init_weights()
    student = {key: value for key, value in weights.items() if 'layer4' not in key}
    with raises_code('unknown-prefix'):
        Detector(checkpoint=saved(student)).init_weights()
    with raises_code('no-checkpoint'):
        Detector(checkpoint=None).init_weights()
