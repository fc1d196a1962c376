import pytest
import torch
from harness.errors import raises_code

from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.backbone import load_backbone, refresh_statistics


@pytest.mark.parametrize('part, seed', [('student', 1), ('teacher', 2)])
def test_requested_part_is_loaded_in_eval_mode(cfg, checkpoint, part, seed):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    loaded, expected = (
        load_backbone(cfg, checkpoint, part),
        load_backbone(cfg, seed=seed).state_dict(),
    )
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    assert not any(module.training for module in loaded.modules())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(loaded.conv1.weight, load_backbone(cfg, seed=3).conv1.weight)


def test_weights_of_another_network_are_an_error(cfg, checkpoint):
    saved = torch.load(checkpoint)
    saved['state_dict']['backbone.neck.weight'] = saved['state_dict'].pop('backbone.conv1.weight')
    torch.save(saved, checkpoint)
    with raises_code('other-network', match='conv1.weight is missing; neck.weight is unexpected'):
        load_backbone(cfg, checkpoint)
    load_backbone(cfg, checkpoint, 'teacher')


def test_refreshed_statistics_match_the_images():
    backbone = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.9)
    ).eval()
    backbone[0].weight.data *= 50
    images = torch.randn(4, 6, 3, 8, 8) * 2 + 1
    refresh_statistics(backbone, images)
    out = torch.cat([backbone(batch) for batch in images])
    assert out.mean((0, 2, 3)).abs().max() < 1e-4 and (out.std((0, 2, 3)) - 1).abs().max() < 0.05
    assert backbone[1].momentum == 0.1 and not any(module.training for module in backbone.modules())


def test_layers_around_the_backbone_of_a_run_are_an_error(cfg, checkpoint):
    saved = torch.load(checkpoint)
    saved['meta']['settings'] = {'model.backbone.type': 'mmpretrain.ResNet'}
    torch.save(saved, checkpoint)
    load_backbone(cfg, checkpoint)
    state = {
        key.replace('backbone.', 'backbone.inner.'): value
        for key, value in saved['state_dict'].items()
    }
    state['backbone.extra.weight'] = torch.zeros(4, 4)
    torch.save({**saved, 'state_dict': state}, checkpoint)
    with raises_code('other-network'):
        load_backbone(cfg, checkpoint)
    load_backbone(cfg, read_backbone(checkpoint, prefix='backbone.inner.'))
