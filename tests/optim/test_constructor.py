"""The grouping by module type, over real backbones, and the constructor a config reaches it by."""

import pytest
import torch
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DefaultScope
from mmpretrain.models import ResNet, VisionTransformer
from torch import nn

from mmairl.errors import UserError
from mmairl.optim import LARS, AutocastOptimWrapper, LARSOptimWrapper, adapted_and_excluded


class Student(nn.Module):
    """A backbone and a projector, beside a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ResNet(depth=18, base_channels=8, stem_channels=8)
        self.mlp = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
        self.teacher = nn.Linear(64, 32).requires_grad_(False)


@pytest.fixture
def scope():
    """What ``default_scope='mmairl'`` in a config does."""
    with DefaultScope.overwrite_default_scope('mmairl'):
        yield


def names(model: nn.Module) -> tuple[set[str], set[str]]:
    """The names in the adapted and in the excluded group."""
    name_of = {param: name for name, param in model.named_parameters()}
    adapted, excluded = adapted_and_excluded(model)
    assert (adapted['adapt'], excluded['adapt']) == (True, False)
    assert len(adapted['params']) + len(excluded['params']) == len({*adapted['params'], *excluded['params']})
    return {name_of[p] for p in adapted['params']}, {name_of[p] for p in excluded['params']}


def test_every_norm_and_bias_is_excluded_and_every_weight_adapted():
    adapted, excluded = names(Student())
    assert len(adapted) == 20 + 2, '20 convolutions and two linear layers'
    assert len(excluded) == 20 * 2 + 2 + 2, "20 norms' and the projector norm's weights and biases, two biases"
    assert {'mlp.1.weight', 'mlp.1.bias', 'mlp.0.bias', 'backbone.bn1.weight'} <= excluded
    assert {'mlp.3.weight', 'mlp.0.weight', 'backbone.conv1.weight'} <= adapted
    assert not any(name.startswith('teacher') for name in adapted | excluded)


@pytest.mark.parametrize(
    'norm',
    [
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.GroupNorm(2, 4),
        nn.LayerNorm((4, 5, 5)),
        nn.RMSNorm((4, 5)),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_norm_layers_are_known_by_type_whatever_their_shape(norm):
    adapted, excluded = names(nn.Sequential(norm))
    assert not adapted and '0.weight' in excluded


def test_a_shared_parameter_is_listed_once():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    adapted, excluded = names(nn.Sequential(first, second))
    assert len(adapted) == 1 and len(excluded) == 2


def test_a_vits_tokens_count_as_weights_and_its_gains_do_not():
    arch = {'embed_dims': 16, 'num_layers': 1, 'num_heads': 2, 'feedforward_channels': 32}
    adapted, excluded = names(VisionTransformer(arch=arch, img_size=32, patch_size=16, layer_scale_init_value=0.1))
    assert {'cls_token', 'pos_embed', 'layers.0.attn.qkv.weight'} <= adapted
    assert {'ln1.weight', 'layers.0.ln1.bias', 'layers.0.attn.qkv.bias', 'layers.0.attn.gamma1.weight'} <= excluded


@pytest.mark.parametrize(
    'wrapper,kind', [('LARSOptimWrapper', LARSOptimWrapper), ('AutocastOptimWrapper', AutocastOptimWrapper)]
)
def test_a_config_that_says_lars_gets_two_groups(scope, wrapper, kind):
    cfg = {
        'type': wrapper,
        'constructor': 'LARSOptimWrapperConstructor',
        'optimizer': {'type': 'LARS', 'lr': 0.3, 'momentum': 0.9, 'weight_decay': 1e-6},
    }
    built = build_optim_wrapper(Student(), cfg)
    assert type(built) is kind and isinstance(built.optimizer, LARS)
    assert [(len(g['params']), g['adapt']) for g in built.optimizer.param_groups] == [(22, True), (44, False)]
    assert cfg['optimizer'] == {'type': 'LARS', 'lr': 0.3, 'momentum': 0.9, 'weight_decay': 1e-6}


def test_the_constructor_can_be_named_and_the_optimizer_given_as_a_class():
    cfg = {
        'type': LARSOptimWrapper,
        'constructor': 'mmairl.LARSOptimWrapperConstructor',
        'optimizer': {'type': LARS, 'lr': 0.3},
    }
    assert len(build_optim_wrapper(Student(), cfg).optimizer.param_groups) == 2


def test_other_optimizers_are_built_as_mmengine_builds_them(scope):
    ours = {'constructor': 'LARSOptimWrapperConstructor'}
    built = build_optim_wrapper(Student(), {**ours, 'optimizer': {'type': 'SGD', 'lr': 0.03}})
    assert type(built) is AutocastOptimWrapper and type(built.optimizer) is torch.optim.SGD
    assert len(built.optimizer.param_groups) == 1
    theirs = build_optim_wrapper(Student(), {**ours, 'optimizer': {'type': 'mmpretrain.LARS', 'lr': 0.3}})
    assert not isinstance(theirs.optimizer, LARS)


def test_lars_without_its_constructor_is_refused_and_mmengines_wrapper_is_not_taken_over(scope):
    with pytest.raises(UserError, match="set optim_wrapper.constructor='LARSOptimWrapperConstructor'"):
        build_optim_wrapper(Student(), {'type': 'AutocastOptimWrapper', 'optimizer': {'type': 'LARS', 'lr': 0.3}})
    theirs = build_optim_wrapper(Student(), {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD', 'lr': 0.3}})
    assert type(theirs) is OptimWrapper


def test_a_paramwise_cfg_beside_lars_is_refused(scope):
    cfg = {
        'type': 'LARSOptimWrapper',
        'constructor': 'LARSOptimWrapperConstructor',
        'optimizer': {'type': 'LARS', 'lr': 0.3},
        'paramwise_cfg': {'flat_decay_mult': 0.0},
    }
    with pytest.raises(UserError, match='remove paramwise_cfg'):
        build_optim_wrapper(Student(), cfg)
