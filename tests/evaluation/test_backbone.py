import pytest
import torch

from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone, refresh_statistics


def edit(checkpoint, change) -> None:
    saved = torch.load(checkpoint)
    change(saved['state_dict'])
    torch.save(saved, checkpoint)


@pytest.mark.parametrize('part, seed', [('student', 1), ('teacher', 2)])
def test_loads_the_part_that_was_asked_for_in_eval_mode(cfg, checkpoint, part, seed):
    loaded, expected = load_backbone(cfg, checkpoint, part), load_backbone(cfg, seed=seed).state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    assert not any(module.training for module in loaded.modules())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_random_start_follows_its_seed_and_leaves_the_global_generator_alone(cfg):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, same, other = (load_backbone(cfg, seed=seed).conv1.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(before, torch.get_rng_state())


def test_missing_and_unexpected_keys_are_named(cfg, checkpoint):
    def change(weights):
        weights['backbone.neck.weight'] = weights.pop('backbone.conv1.weight')

    edit(checkpoint, change)
    with pytest.raises(UserError, match=r'epoch_3.*lacks conv1.weight; it has neck.weight beyond the config'):
        load_backbone(cfg, checkpoint)
    load_backbone(cfg, checkpoint, 'teacher')


def test_another_width_names_both_shapes(cfg, checkpoint):
    cfg.model.backbone.update(base_channels=16)
    with pytest.raises(UserError, match=r'is \(8, 8, 3, 3\) there and \(16, 8, 3, 3\) in the config \(and \d+ more\)'):
        load_backbone(cfg, checkpoint)


def test_another_depth_is_refused(cfg, checkpoint):
    cfg.model.backbone.update(depth=34)
    with pytest.raises(UserError, match=r'another architecture: it lacks layer1.2.conv1.weight, '):
        load_backbone(cfg, checkpoint)


def test_refreshed_statistics_are_those_of_the_images():
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.9)).eval()
    backbone[0].weight.data *= 50
    images = torch.randn(4, 6, 3, 8, 8) * 2 + 1
    refresh_statistics(backbone, images)
    out = torch.cat([backbone(batch) for batch in images])
    assert out.mean((0, 2, 3)).abs().max() < 1e-4 and (out.std((0, 2, 3)) - 1).abs().max() < 0.05
    assert backbone[1].momentum == 0.1 and not any(module.training for module in backbone.modules())
