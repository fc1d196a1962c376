"""NormRescale gives each tensor the norm of the same tensor in an anchor checkpoint, and keeps the directions."""

import pytest
import torch
from harness.backbones import narrow_resnet, with_prefix
from harness.errors import raises_code
from mmengine.model import initialize

from mmairl.checkpoints.hub_export import write_hub
from mmairl.checkpoints.normrescale import left_alone, normrescale, rescale_checkpoint
from mmairl.checkpoints.norms import is_statistic
from mmairl.checkpoints.read import read_backbone
from mmairl.registry import MODELS

NARROW = dict(type='mmpretrain.ResNet', depth=18, base_channels=4, stem_channels=4)


def weights(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Return the tensors of a narrow ResNet-18. All floating-point tensors are random, including biases and statistics."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key: scale * torch.rand(value.shape, generator=generator).sub(0.3)
        if value.ndim
        else value + seed
        for key, value in narrow_resnet().state_dict().items()
    }


def assert_rescaled(new: dict, source: dict, anchor: dict) -> None:
    for key, value in new.items():
        if is_statistic(key):
            assert torch.equal(value, source[key]), key
            continue
        expected = source[key] / source[key].norm() * anchor[key].norm()
        torch.testing.assert_close(value, expected, msg=key)
        assert not torch.equal(value, source[key])


def save(path, source):
    """Save a training checkpoint whose teacher has twice the student's weights."""
    state = with_prefix('backbone.', source)
    state |= with_prefix('teacher.backbone.', {key: value * 2 for key, value in source.items()})
    state |= {'queue.keys': torch.randn(8, 4)}
    torch.save(
        dict(meta=dict(epoch=3), state_dict=state, optimizer=dict(state={0: torch.ones(2)})), path
    )
    return str(path)


def test_norms_match_the_anchor_and_directions_stay():
    source, anchor = weights(1, scale=9), weights(2)
    new, rows = normrescale(source, anchor)
    assert_rescaled(new, source, anchor)
    assert not left_alone(rows) and len(rows) == sum(not is_statistic(key) for key in source)


def test_skipped_tensors_are_named_with_a_reason():
    source = dict(
        a=torch.ones(3), b=torch.ones(2), c=torch.zeros(2), d=torch.ones(2), e=torch.ones(2)
    )
    source |= dict(f=torch.tensor([torch.nan]), g=torch.tensor([168, 2]))
    anchor = dict(
        b=torch.ones(3), c=torch.ones(2), d=torch.zeros(2), e=torch.full((2,), 2.0), f=torch.ones(1)
    )
    new, rows = normrescale(source, anchor)
    assert all(torch.equal(new[key], source[key]) for key in 'abcdg') and new['e'].tolist() == [
        2,
        2,
    ]
    assert [row.name for row in rows if row.why] == list('abcdf')
    assert left_alone(rows).startswith(
        '5 of 6'
    ) and 'a: not in the anchor with this shape' in left_alone(rows)
    assert torch.equal(normrescale(source, constant=0.1)[0]['g'], source['g'])


def test_command_writes_the_rescaled_backbone(tmp_path, run_tool):
    source, anchor = weights(1, scale=9), weights(2)
    lars = save(tmp_path / 'lars.pth', source)
    torch.save(dict(model=with_prefix('module.online_encoder.', anchor)), tmp_path / 'sgd.pth')
    run_tool('tools/normrescale.py', lars, tmp_path / 'out.pth', '--anchor', tmp_path / 'sgd.pth')
    after = torch.load(tmp_path / 'out.pth')
    assert after['state_dict'].keys() == {f'backbone.{key}' for key in source}
    assert_rescaled(read_backbone(tmp_path / 'out.pth').weights, source, anchor)
    assert 'sgd.pth' in after['meta']['mmairl_origin']['normrescale']


def test_teacher_is_multiplied_by_a_constant(tmp_path):
    source = weights(1)
    lars = save(tmp_path / 'lars.pth', source)
    rescale_checkpoint(lars, tmp_path / 'out.pth', constant=0.1, part='teacher')
    assert torch.load(tmp_path / 'out.pth')['state_dict'].keys() == {
        f'backbone.{key}' for key in source
    }
    for key, value in read_backbone(tmp_path / 'out.pth').weights.items():
        teacher = source[key] * 2
        assert torch.equal(
            value, teacher if is_statistic(key) else (teacher.double() * 0.1).float()
        ), key
    with raises_code('output-is-input'):
        rescale_checkpoint(lars, lars, constant=0.1)


def test_weights_of_zero_are_an_error(tmp_path):
    torch.save(
        {key: torch.zeros_like(value) for key, value in weights(1).items()}, tmp_path / 'zero.pth'
    )
    with raises_code('nothing-rescaled'):
        rescale_checkpoint(str(tmp_path / 'zero.pth'), tmp_path / 'out.pth', constant=0.1)


def test_init_cfg_rescales_the_backbone(tmp_path):
    source, anchor = weights(1), weights(2)
    lars = save(tmp_path / 'lars.pth', source)
    torch.save(anchor, tmp_path / 'anchor.pth')
    init = dict(type='mmairl.NormRescaled', checkpoint=lars, anchor=str(tmp_path / 'anchor.pth'))
    backbone = MODELS.build(dict(**NARROW, zero_init_residual=True, init_cfg=init))
    backbone.init_weights()
    assert_rescaled(backbone.state_dict(), source, anchor)
    torch.save({**anchor, 'conv1.weight': torch.ones(3, 3)}, tmp_path / 'anchor.pth')
    with raises_code('other-anchor'):
        initialize(backbone, init)


def test_networks_without_a_known_layout_are_rescaled(tmp_path):
    network = dict(type='mmpretrain.SwinTransformer', arch='tiny', img_size=32)
    for name in ('lars', 'anchor'):
        torch.save(MODELS.build(network).state_dict(), tmp_path / f'{name}.pth')
    files = {name: str(tmp_path / f'{name}.pth') for name in ('lars', 'anchor')}
    init = dict(type='mmairl.NormRescaled', checkpoint=files['lars'], anchor=files['anchor'])
    backbone = MODELS.build(dict(**network, init_cfg=init))
    backbone.init_weights()
    key = 'patch_embed.projection.weight'
    torch.testing.assert_close(
        backbone.state_dict()[key].norm(), torch.load(files['anchor'])[key].norm()
    )


def test_anchor_may_have_the_names_of_timm(tmp_path):
    arch = dict(embed_dims=64, num_layers=1, num_heads=1, feedforward_channels=96)
    kind = dict(type='mmpretrain.VisionTransformer', arch=arch, img_size=32, patch_size=8)
    state = {key: torch.randn_like(value) for key, value in MODELS.build(kind).state_dict().items()}
    torch.save(dict(state_dict=with_prefix('backbone.', state)), tmp_path / 'lars.pth')
    write_hub(read_backbone(tmp_path / 'lars.pth'), tmp_path / 'anchor')
    files = [str(tmp_path / name) for name in ('lars.pth', 'a.pth', 'anchor')]
    assert left_alone(rescale_checkpoint(*files)) == ''


@pytest.mark.parametrize('options', [{}, dict(anchor={}, constant=0.1)])
def test_anchor_and_constant_exclude_each_other(options):
    with raises_code('no-anchor'):
        normrescale(dict(a=torch.ones(2)), **options)
