"""The C4 shared head beside torchvision's layer4 and a batch norm, put together by hand."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from torch import nn
from torchvision import models
from toy import CONFIGS

from mmairl.transfer.c4_head import Res5Head

WIDTH = {18: 512, 50: 2048, 101: 2048}


def by_hand(depth: int) -> nn.Sequential:
    layer4 = getattr(models, f'resnet{depth}')(weights=None).layer4
    assembly = nn.Sequential(layer4, nn.BatchNorm2d(WIDTH[depth]))
    for value in assembly.state_dict().values():
        if value.is_floating_point() and value.ndim == 1:
            value.uniform_(0.5, 1.5)
    return assembly


def copied(head: Res5Head, assembly: nn.Sequential) -> None:
    head.layer4.load_state_dict(assembly[0].state_dict())
    head.norm.load_state_dict(assembly[1].state_dict())


@pytest.mark.parametrize('depth', [18, 50, 101])
def test_weights_have_the_names_and_number_of_layer4_and_one_norm(depth: int) -> None:
    head, assembly = Res5Head(depth), by_hand(depth)
    theirs = {f'layer4.{key}' for key in assembly[0].state_dict()} | {f'norm.{key}' for key in assembly[1].state_dict()}
    assert set(head.state_dict()) == theirs
    assert sum(p.numel() for p in head.parameters()) == sum(p.numel() for p in assembly.parameters())
    assert all(p.requires_grad for p in head.parameters())


@pytest.mark.parametrize('depth', [18, 50])
@pytest.mark.parametrize('training', [True, False])
def test_output_and_gradients_are_those_of_the_assembly(depth: int, training: bool) -> None:
    head, assembly = Res5Head(depth).double(), by_hand(depth).double().train(training)
    head.train(training)
    copied(head, assembly)
    regions = torch.randn(3, WIDTH[depth] // 2, 14, 14, dtype=torch.float64)
    ours, theirs = head(regions), assembly(regions)
    assert ours.shape == (3, WIDTH[depth], 7, 7)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    assert ours.min() < 0, 'a ReLU follows the norm'
    upstream = torch.randn_like(ours)
    (ours * upstream).sum().backward()
    (theirs * upstream).sum().backward()
    torch.testing.assert_close(head.layer4[0].conv1.weight.grad, assembly[0][0].conv1.weight.grad)
    torch.testing.assert_close(head.norm.weight.grad, assembly[1].weight.grad)


def test_norms_learn_their_statistics_in_training() -> None:
    head = Res5Head(18)
    head.train()
    norms = [layer for layer in head.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 6
    before = [norm.running_mean.clone() for norm in norms]
    head(torch.randn(2, 256, 14, 14))
    assert all(norm.training and not torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before))


def test_layer4_comes_from_the_checkpoint_and_the_norm_is_new(tmp_path: Path) -> None:
    weights = {f'backbone.{key}': torch.randn_like(value) for key, value in resnet18_weights().items()}
    torch.save(dict(state_dict=weights), tmp_path / 'pretrained.pth')
    init = dict(type='Pretrained', checkpoint=str(tmp_path / 'pretrained.pth'), prefix='backbone.layer4.')
    head = Res5Head(18, init_cfg=init)
    head.init_weights()
    for key, value in head.layer4.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(value, weights[f'backbone.layer4.{key}']), key
    assert torch.equal(head.norm.weight, torch.ones(512))
    assert torch.equal(head.norm.running_var, torch.ones(512))


def resnet18_weights() -> dict[str, torch.Tensor]:
    return {key: value.float() for key, value in models.resnet18(weights=None).state_dict().items()}


def test_backbone_and_head_take_all_of_layers_1_to_4() -> None:
    from mmdet.registry import MODELS

    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIGS / 'transfer' / 'voc07_c4_r50_9k.py')
    model = MODELS.build(cfg.model)
    taken = set(model.backbone.state_dict()) | {
        f'layer4.{key}' for key in model.roi_head.shared_head.layer4.state_dict()
    }
    whole = {key for key in models.resnet50(weights=None).state_dict() if not key.startswith('fc.')}
    assert taken == whole
    assert all(parameter.requires_grad for parameter in model.parameters())
