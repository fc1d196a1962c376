"""Linear evaluation on several layers of a ViT, as in the recipes of DINO and DINOv2."""

from itertools import product

import pytest
import torch

from mmairl.config import load_config
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.training_protocol import _many_heads
from mmairl.registry import MODELS

ARCH = dict(embed_dims=16, num_layers=3, num_heads=2, feedforward_channels=32)
BACKBONE = dict(type='mmpretrain.VisionTransformer', arch=ARCH, img_size=32, patch_size=8)


def classifier(**options):
    settings = dict(type='Classifier', backbone=BACKBONE, in_channels=16, classes=3, frozen=True)
    return MODELS.build(dict(settings, **options)).eval()


@pytest.mark.parametrize('layers, pooling, width', [(2, 'cls', 32), (1, 'mean', 16), (2, 'both', 48)])
def test_features_join_tokens_and_the_mean_patch(layers, pooling, width):
    model = classifier(layers=layers, pooling=pooling)
    images = torch.rand(2, 3, 32, 32)
    features = model([images])
    assert features.shape == (2, width)
    assert model.fc.in_features == width
    if pooling != 'mean':
        # The backbone returns raw tokens after its final norm.
        last = model.backbone(images)[-1]
        torch.testing.assert_close(features[:, 16 * (layers - 1) : 16 * layers], last[:, 0])


def test_head_sees_only_its_blocks():
    model = classifier(layers=2, pooling='both', heads=2, blocks=[[0, 1, 0], [1, 1, 1]])
    images = torch.rand(4, 3, 32, 32)
    samples = dict(label=torch.tensor([0, 1, 2, 0]))
    model([images], samples, mode='loss')['loss'].backward()
    first, second = model.fc.weight.grad.unflatten(0, (2, 3)).unflatten(2, (3, 16)).abs().sum((1, 3))
    assert (first > 0).tolist() == [False, True, False]
    assert (second > 0).all()
    features = model([images])
    alone = features[:, 16:32] @ model.fc.weight[:3, 16:32].T
    torch.testing.assert_close(model([images], samples, mode='predict')[0]['scores'][:, 0], alone)


def test_dinov2_grid_has_52_heads():
    recipe = load_config('mmairl::_base_/recipes/linear_dinov2_10e.py')
    grid = product((1, 4), ('cls', 'both'))
    points = [dict(lr=0.1, weight_decay=0.0, layers=layers, pooling=pooling) for layers, pooling in grid]
    many = _many_heads(recipe, points)
    assert many.model.blocks == [[0, 0, 0, 1, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert len(recipe.sweep.lr) * len(recipe.sweep.layers) * len(recipe.sweep.pooling) == 52


def test_heads_take_settings_outside_the_sweep_from_the_recipe():
    recipe = load_config('mmairl::_base_/recipes/linear_dinov2_10e.py')
    recipe.model.layers = 2
    recipe.sweep = dict(pooling=['cls', 'mean'])
    many = _many_heads(recipe, [dict(pooling=pooling) for pooling in recipe.sweep['pooling']])
    assert many.model.blocks == [[1, 1, 0], [0, 0, 1]]
    optimizer = recipe.optim_wrapper.optimizer
    assert many.optim_wrapper.optimizer.rates == [optimizer.lr] * 2
    assert many.optim_wrapper.optimizer.decays == [optimizer.get('weight_decay', 0.0)] * 2


def test_sweep_over_layers_tests_the_best_point(cfg, tmp_path, small_recipe):
    cfg.model.backbone = BACKBONE
    cfg.model.in_channels = 16
    grid = dict(lr=[1e-4, 0.5], weight_decay=[0.0], layers=[1, 2], pooling=['cls', 'both'])
    small_recipe('linear_dinov2_10e', epochs=2, sweep=grid)
    settings = settings_for('linear', recipe=str(tmp_path / 'recipe.py'), sweep=True, work_dir=tmp_path / 'run')
    result = evaluate(cfg, 'linear', 'random', settings=settings)
    assert len(result.details['held_out']) == 8
    best = max(result.details['held_out'], key=lambda point: point['score'])
    assert all(result.details[name] == best[name] for name in ('lr', 'layers', 'pooling'))
    assert 0 <= result.scores['linear, top-1'] <= 100
