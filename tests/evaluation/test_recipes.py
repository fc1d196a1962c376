"""How the recipe of an evaluation is chosen, and combined with a network and data."""

import itertools
from pathlib import Path

import pytest
from harness.errors import raises_code
from mmengine.optim import build_optim_wrapper

from mmairl.config import load_config
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs'


def test_optimizer_of_pre_training_chooses_the_recipe():
    sgd, lars = (load_config(str(CONFIGS / f'{name}_r50_200e.py')) for name in ('mocov2plus', 'byol_lars'))
    assert recipe_of(sgd, 'linear').optim_wrapper.optimizer.lr == 30.0
    assert recipe_of(lars, 'linear').optim_wrapper.optimizer.to_dict() == dict(
        type='SGD', lr=0.8, momentum=0.9, weight_decay=0.0, nesterov=True
    )
    with raises_code('unknown-recipe'):
        recipe_of(sgd, 'linear', 'linear_adam')
    with raises_code('no-recipe'):
        recipe_of(sgd, 'linear', str(CONFIGS / 'demo/mocov2plus_shapes.py'))


def test_evaluation_configs_have_recipes_and_network():
    for path, protocol in itertools.product((CONFIGS / 'evaluation').glob('*.py'), ('linear', 'finetune')):
        recipe = recipe_of(cfg := load_config(str(path)), protocol)
        assert cfg.model.in_channels and recipe.model.type == 'Classifier' and recipe.train_view
        assert bool(recipe.model.get('frozen')) == (protocol == 'linear' or 'semi_1pct' in recipe.filename), path


def test_semi_supervised_recipe_has_a_backbone_rate(cfg, tmp_path):
    recipe = recipe_of(cfg, 'finetune', 'semi_10pct')
    recipe.total_batch_size = 20
    composed = compose(cfg, recipe, cfg.evaluation.train, cfg.evaluation.test, None, tmp_path / 'a', workers=0)
    model = MODELS.build(composed.model)
    groups = build_optim_wrapper(model, composed.optim_wrapper).optimizer.param_groups
    rates = {name: group['lr'] for group, (name, _) in zip(groups, model.named_parameters())}
    assert rates['backbone.conv1.weight'] == pytest.approx(2.5e-4) and rates['fc.weight'] == pytest.approx(0.25)
