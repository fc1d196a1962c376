"""Fine-tuning by iterations, as BYOL's 20 000 steps: with workers, over many epochs of a small data set."""

from pathlib import Path

import pytest
from mmengine import Config

from mmairl.configs import load_config
from mmairl.data.sampler import ResumableSampler
from mmairl.engine.launch import train
from mmairl.engine.loops import sampler_of
from mmairl.evaluation.training import compose

CONFIGS = Path(__file__).parents[2] / 'configs'


@pytest.mark.timeout(600)
@pytest.mark.parametrize('count, an_epoch', [(47, 2), (15, 1)])  # more and fewer images than a batch
def test_the_recipe_by_iterations_trains_them_all_with_workers(cfg: Config, tmp_path, count, an_epoch):
    recipe = load_config(str(CONFIGS / '_base_/recipes/finetune_20k.py'))
    recipe.total_batch_size, recipe.train_cfg.max_iters, recipe.param_scheduler[0].end = 20, 5, 5
    recipe.visualizer.vis_backends = [dict(type='LocalVisBackend')]
    recipe.default_hooks.pop('progress')
    recipe.default_hooks.logger.interval = 1
    cfg.model.in_channels = 64
    cfg.evaluation.train = dict(type='Noise', count=count)
    made = compose(cfg, recipe, cfg.evaluation.train, cfg.evaluation.test, None, tmp_path / 'a', workers=2)
    made.train_dataloader.dataset.pop('views')  # it makes none
    made.experiment_name = tmp_path.name
    runner = train(made)
    assert runner.iter == 5 and len(runner.message_hub.get_scalar('train/loss').data[0]) == 5
    assert isinstance(sampler_of(runner.train_dataloader), ResumableSampler)
    assert len(runner.train_dataloader) == an_epoch, 'what the decay of batch norm is set by'
