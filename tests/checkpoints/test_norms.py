"""Norms of weights, and the warning that LARS training has made them grow."""

import pytest
import torch
import torchvision

from mmairl.checkpoints import init
from mmairl.checkpoints.norms import (
    growth,
    looks_lars_trained,
    typical_gain,
    typical_growth,
    weight_norms,
)


def test_norms_cover_learned_tensors_in_order():
    state = torchvision.models.resnet18().state_dict()
    rows = weight_norms(state)
    assert [row.name for row in rows] == [
        k for k in state if 'running' not in k and 'num_batches' not in k
    ]
    assert rows[0].norm == pytest.approx(state['conv1.weight'].norm().item(), rel=1e-6)
    threes = weight_norms(state, kernel=3)
    assert len(threes) == 16 and all(state[row.name].shape[2:] == (3, 3) for row in threes)


def test_growth_is_one_at_kaiming_initialization():
    for shape in ((128, 64, 3, 3), (256, 512, 1, 1)):
        weight = torch.empty(shape)
        torch.nn.init.kaiming_normal_(weight, mode='fan_out', nonlinearity='relu')
        assert growth(weight) == pytest.approx(1, abs=0.02)


def test_warning_only_for_trainable_grown_backbone(tmp_path, monkeypatch):
    lines, path = [], tmp_path / 'a.pth'
    monkeypatch.setattr(init, 'print_log', lambda text, *_, **__: lines.append(text))
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


def test_typical_gain_is_the_median_over_batch_norms():
    state = torchvision.models.resnet18().state_dict()
    doubled = {
        key: 2 * value if value.ndim == 1 and key.endswith('weight') else value
        for key, value in state.items()
    }
    assert typical_gain(state) == 1 and typical_gain(doubled) == 2
