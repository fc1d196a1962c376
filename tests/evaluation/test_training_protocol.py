"""Linear evaluation and fine-tuning: what chooses hyperparameters, and how runs resume."""

from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from mmengine.hooks import CheckpointHook

from mmairl.errors import Diverged
from mmairl.evaluation import training_protocol
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.registry import DATASETS, MODELS, RUNNERS


@pytest.fixture
def linear(cfg, small_recipe, tmp_path, checkpoint):
    """Return a function that runs linear evaluation of the checkpoint with a short recipe."""
    recipe = small_recipe(epochs=3)

    def run(folder: str = 'a', **options):
        settings = settings_for('linear', recipe=recipe, work_dir=tmp_path / folder, **options)
        return evaluate(cfg, 'linear', checkpoint, settings=settings)

    return run


@pytest.fixture
def started(monkeypatch) -> list:
    """Record the config of each run."""
    kind, configs = RUNNERS.get('Runner'), []
    build = kind.from_cfg.__func__
    monkeypatch.setattr(
        kind, 'from_cfg', classmethod(lambda cls, cfg: configs.append(cfg) or build(cls, cfg))
    )
    return configs


def test_interrupted_run_resumes_to_the_same_scores(cfg, linear, started, monkeypatch):
    whole = linear('whole')
    assert whole.scores['linear, top-1'] > 60
    after = CheckpointHook.after_train_epoch

    def stop_after_the_second(hook, runner):
        after(hook, runner)
        if runner.epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(CheckpointHook, 'after_train_epoch', stop_after_the_second)
        linear('cut')
    assert linear('cut').scores == whole.scores and started[-1].resume
    runs = len(started)
    assert linear('cut').scores == whole.scores and len(started) == runs


def test_other_weights_train_in_another_folder(linear, checkpoint, started):
    linear()
    saved = torch.load(checkpoint)
    weights = {key: value + 0.1 for key, value in saved['state_dict'].items()}
    torch.save({**saved, 'state_dict': weights}, checkpoint)
    linear()
    first, second = (Path(config.work_dir).parent for config in started)
    assert first.parent == second.parent and first != second


def test_classifier_starts_from_the_checkpoint(cfg, linear, checkpoint, started):
    linear()
    [config] = started
    assert config.model.in_channels == 64, 'the width of the features is measured'
    start = torch.load(config.model.backbone.init_cfg.checkpoint, weights_only=True)
    weights = torch.load(checkpoint)['state_dict']
    start = start.get('state_dict', start)
    [key] = [key for key in start if key.endswith('conv1.weight') and 'layer' not in key]
    assert torch.equal(start[key], weights['backbone.conv1.weight'])


def test_sweep_chooses_on_held_out_images(cfg, small_recipe, tmp_path, started):
    recipe = small_recipe(epochs=3, sweep=dict(lr=[1e-6, 3.0], weight_decay=[0.0, 1e-4]))
    settings = settings_for('linear', recipe=recipe, sweep=True, work_dir=tmp_path / 'a')
    result = evaluate(cfg, 'linear', 'random', settings=settings)
    sweep, final = started
    assert sweep.model.heads == 4
    assert sweep.optim_wrapper.optimizer.rates == [1e-6, 1e-6, 3.0, 3.0]
    tested = sweep.test_dataloader.dataset.dataset
    assert tested.type == 'Part' and tested.held and tested.dataset == cfg.evaluation.train
    assert final.test_dataloader.dataset.dataset == cfg.evaluation.test
    assert final.optim_wrapper.optimizer.lr == 3.0
    assert result.details['chosen']['optim_wrapper.optimizer']['lr'] == 3.0
    assert len(result.details['held_out']) == 4


@pytest.mark.parametrize(
    'scores, chosen',
    [
        ([50, 60, 69, 80], 3),
        ([50, 70, 72, 80], 1),  # the standard error of 80 % of 16 images is 10 points
        ([79, 80, 71, 80], 1),
        ([100, 100, 100, 100], 0),
        ([0, 0, 0, 0], 0),
    ],
)
def test_sweep_prefers_the_smallest_rate_near_the_best(scores, chosen):
    points = [dict(lr=0.1), dict(lr=0.1, weight_decay=1e-4), dict(lr=1.0), dict(lr=10.0)]
    assert training_protocol.gentlest(points, scores, images=16) == chosen


def test_head_that_diverges_loses(cfg, small_recipe, tmp_path):
    recipe = small_recipe(epochs=3, sweep=dict(lr=[3.0], weight_decay=[1e30, 0.0]))
    settings = settings_for('linear', recipe=recipe, sweep=True, work_dir=tmp_path / 'a')
    result = evaluate(cfg, 'linear', 'random', settings=settings)
    assert result.details['chosen'] == {'optim_wrapper.optimizer': dict(lr=3.0, weight_decay=0.0)}
    diverged, other = (trial['score'] for trial in result.details['held_out'])
    assert diverged == 0 < other


def test_single_head_that_diverges_is_an_error(cfg, small_recipe, tmp_path):
    recipe = small_recipe(epochs=2, optim_wrapper=dict(optimizer=dict(type='SGD', lr=1e38)))
    with pytest.raises(Diverged):
        settings = settings_for('linear', recipe=recipe, work_dir=tmp_path / 'a')
        evaluate(cfg, 'linear', 'random', settings=settings)


def test_trials_choose_on_held_out_images(cfg, small_recipe, monkeypatch, tmp_path):
    seen = []

    def measured(cfg, launcher):
        rate = cfg.optim_wrapper.optimizer.lr
        seen.append((Path(cfg.work_dir).name, rate, cfg.test_dataloader.dataset.dataset.type))
        if rate == 9.0:
            raise Diverged('the loss is not finite')
        return {'top-1': 10 * rate}

    monkeypatch.setattr(training_protocol, 'run_recipe', measured)
    trials = [{'optim_wrapper.optimizer.lr': rate} for rate in (3.0, 9.0, 5.0)]
    options = dict(recipe=small_recipe(trials=trials), work_dir=tmp_path)
    result = evaluate(cfg, 'linear', 'random', settings=settings_for('linear', **options))
    assert [rate for _, rate, _ in seen] == [3.0, 9.0, 5.0, 5.0]
    assert [kind for *_, kind in seen] == ['Part', 'Part', 'Part', 'Noise']
    assert result.scores == {'linear, top-1': 50.0}
    assert [trial['score'] for trial in result.details['held_out']] == [30.0, 0.0, 50.0]


@pytest.mark.parametrize(
    'optimizer, recipe',
    [
        ('SGD', 'linear_sgd_100e'),
        ('LARS', 'linear_lars_80e'),
        ('mmairl.LARS', 'linear_lars_80e'),
        ('mmairl.engine.optim.lars.LARS', 'linear_lars_80e'),
        (None, 'linear_sgd_100e'),
    ],
)
def test_lars_selects_its_recipe_by_class(cfg, optimizer, recipe):
    if optimizer:
        cfg.optim_wrapper = dict(optimizer=dict(type=optimizer))
    assert Path(recipe_of(cfg, 'linear').filename).stem == recipe


def test_byol_grid_scales_decay_and_schedule(cfg):
    decays, epochs = (recipe_of(cfg, 'finetune', name) for name in ('finetune_20k', 'semi_byol'))
    assert len(decays.trials) == 56 and len(epochs.trials) == 10
    decays.merge_from_dict(dict(decays.trials[15]))
    optimizer = decays.optim_wrapper.optimizer
    assert optimizer.weight_decay == pytest.approx(10**-3 / 10**-3.5)
    epochs.merge_from_dict(dict(epochs.trials[1]))
    assert epochs.train_cfg.max_epochs == epochs.param_scheduler[0].end == 50


def test_norm_layers_of_a_recipe_replace_those_of_the_config(cfg, tmp_path):
    cfg.model.backbone.norm_cfg = dict(type='SplitBN', replicas=2)
    recipe = recipe_of(cfg, 'finetune')
    sets = cfg.evaluation.train, cfg.evaluation.test
    model = compose(cfg, recipe, *sets, None, tmp_path).model
    assert model.backbone.norm_cfg == recipe.model.backbone.norm_cfg
    MODELS.build(model)


def test_own_view_of_a_protocol_is_used(cfg, small_recipe, tmp_path, started):
    cfg.evaluation.views = dict(linear=[dict(type='Resize', size=20)])
    settings = settings_for('linear', recipe=small_recipe(), work_dir=tmp_path / 'a')
    result = evaluate(cfg, 'linear', 'random', settings=settings)
    image = DATASETS.build(started[0].test_dataloader.dataset)[0]['inputs'][0]
    assert list(image.shape[1:]) == result.details['image_size'] == [20, 20]


def test_recipe_without_views_is_an_error(cfg, tmp_path):
    (tmp_path / 'recipe.py').write_text('model = dict(type="Classifier")')
    with raises_code('no-recipe'):
        evaluate(
            cfg,
            'finetune',
            'random',
            settings=settings_for('finetune', recipe=str(tmp_path / 'recipe.py')),
        )


def test_fine_tuning_moves_the_backbone(cfg, small_recipe, checkpoint, tmp_path, started):
    recipe = small_recipe('finetune_shapes', epochs=1)
    settings = settings_for('finetune', recipe=recipe, work_dir=tmp_path / 'a', seed=3)
    result = evaluate(cfg, 'finetune', checkpoint, settings=settings)
    [config] = started
    assert config.randomness.seed == 3 and result.details['test_images'] == 30
    last = Path(config.work_dir, 'last_checkpoint').read_text()
    after = torch.load(last, weights_only=True)['state_dict']['backbone.conv1.weight']
    before = torch.load(checkpoint)['state_dict']['backbone.conv1.weight']
    assert not torch.equal(after, before)
