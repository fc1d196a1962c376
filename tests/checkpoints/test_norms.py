"""Norms of weights, and the warning that LARS training has made them grow."""

import pytest
import torch
import torchvision

from mmairl.checkpoints import init
from mmairl.checkpoints.norms import convolution_norms, looks_lars_trained, typical_growth


def test_norms_cover_the_3x3_convolutions_in_order():
    state = torchvision.models.resnet18().state_dict()
    norms = convolution_norms(state)
    assert [*norms] == [key for key, value in state.items() if value.shape[2:] == (3, 3)]
    key = 'layer1.0.conv1.weight'
    assert len(norms) == 16 and norms[key] == pytest.approx(state[key].norm().item(), rel=1e-6)


def test_growth_is_one_at_kaiming_initialization():
    for channels in (64, 512):
        weight = torch.empty(128, channels, 3, 3)
        torch.nn.init.kaiming_normal_(weight, mode='fan_out', nonlinearity='relu')
        assert typical_growth({'w': weight}) == pytest.approx(1, abs=0.02)


def test_warning_only_for_trainable_grown_backbone(tmp_path, monkeypatch):
    lines, path = [], tmp_path / 'a.pth'
    monkeypatch.setattr(init, 'warn', lines.append)
    for scale, frozen, warned in ((3, False, True), (3, True, False), (1, False, False)):
        network = torchvision.models.resnet18(num_classes=1)
        network.fc = torch.nn.Identity()
        torch.save(
            {k: scale * v if v.ndim == 4 else v for k, v in network.state_dict().items()}, path
        )
        lines.clear()
        init.PretrainedBackbone(path)(network.requires_grad_(not frozen))
        assert (
            any('looks LARS-trained' in text and 'normrescale.py' in text for text in lines)
            == warned
        )
        assert typical_growth(network.state_dict()) == pytest.approx(scale, abs=0.05)
    assert not looks_lars_trained({'w': torch.ones(3)}), (
        'weights without 3x3 convolutions look LARS-trained'
    )
