"""Each part of a detector starts from the weights of its stages, and weights that do not fit are errors."""

import pytest
import torch
from harness.backbones import with_prefix
from harness.errors import raises_code
from mmengine.model import BaseModule
from torch import nn

from mmairl.checkpoints.init import PretrainedBackbone, fitted


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
        self.backbone = Part(init)
        self.head = BaseModule()
        self.head.layer4 = Part(dict(init, prefix='layer4.'), stem=False)


@pytest.fixture
def weights():
    """Return the weights of a pre-training checkpoint of mmairl, with student and teacher."""
    backbone = Part()
    backbone.layer4 = Part(stem=False)
    state = {'projector.w': torch.ones(3)}
    for prefix in ('backbone.', 'teacher.backbone.'):
        state |= with_prefix(
            prefix, {k: 0.1 * torch.randn_like(v.float()) for k, v in backbone.state_dict().items()}
        )
    return state


@pytest.fixture
def saved(tmp_path):
    def save(weights):
        torch.save(dict(meta=dict(epoch=1), state_dict=weights), tmp_path / 'pretrained.pth')
        return str(tmp_path / 'pretrained.pth')

    return save


@pytest.mark.parametrize(
    'part, prefix', [('student', 'backbone.'), ('teacher', 'teacher.backbone.')]
)
def test_each_part_has_the_weights_of_its_stages(part, prefix, weights, saved):
    model = Detector(checkpoint=saved(weights), part=part)
    model.init_weights()
    assert torch.equal(model.backbone.bn1.running_var, weights[f'{prefix}bn1.running_var'])
    assert torch.equal(model.head.layer4.conv1.weight, weights[f'{prefix}layer4.conv1.weight'])


def without(word):
    return lambda weights: {key: value for key, value in weights.items() if word not in key}


WRONG = [
    ('incomplete-network', without('bn1.running_mean')),
    ('incomplete-network', without('layer4')),
    ('other-network', lambda weights: {**weights, 'backbone.conv1.weight': torch.ones(4, 3, 5, 5)}),
]


@pytest.mark.parametrize('code, change', WRONG)
def test_weights_that_do_not_fit_are_errors(code, change, weights, saved):
    with raises_code(code):
        Detector(checkpoint=saved(change(weights))).init_weights()


def test_missing_checkpoint_is_an_error():
    with raises_code('no-checkpoint'):
        PretrainedBackbone(None)


@pytest.mark.parametrize('channels', [1, 2, 5])
def test_rgb_kernels_keep_the_response_to_gray(channels):
    kernels = dict(w=torch.rand(4, 3, 3, 3))
    new = fitted(kernels, dict(w=torch.empty(4, channels, 3, 3)), 'a.pth')['w']
    assert new.shape == (4, channels, 3, 3)
    if channels == 1:
        torch.testing.assert_close(new.sum(1), kernels['w'].sum(1))
    else:
        turns = [channel % 3 for channel in range(channels)]
        torch.testing.assert_close(new, kernels['w'][:, turns] * 3 / channels)
    others = dict(w=torch.ones(4, 5, 3, 3))
    assert fitted(others, kernels, 'a.pth') is others
