"""Linear evaluation and fine-tuning: which images choose hyperparameters, how runs resume, and which input is an error."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from mmengine import Config
from mmengine.hooks import CheckpointHook

from mmairl.data.decode import UnreadableImage
from mmairl.errors import Diverged
from mmairl.evaluation import training_protocol
from mmairl.evaluation.identity import is_verified
from mmairl.evaluation.linear import LinearEvaluation
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.recipes import compose, recipe_of
from mmairl.registry import DATASETS
from mmairl.report.evaluation_page import results_table, write_evaluation_page

CONFIGS = Path(__file__).parents[2] / 'configs'
Noise = DATASETS.get('Noise')  # The conftest of this folder registers the data set


@pytest.fixture
def recipe(small_recipe) -> Config:
    recipe = small_recipe(epochs=3, randomness=dict(seed=0))
    recipe.default_hooks.checkpoint = dict(type='ExactCheckpointHook', interval=1, max_keep_ckpts=1)
    return recipe


@pytest.fixture
def settings(small_recipe, tmp_path) -> LinearEvaluation:
    """Return settings of a run of one epoch."""
    small_recipe(randomness=dict(seed=0))
    return LinearEvaluation(recipe=str(tmp_path / 'recipe.py'), work_dir=tmp_path / 'a')


def run(cfg, recipe, folder, sweep=False):
    return LinearEvaluation(work_dir=folder, sweep=sweep)._train_and_test(cfg, recipe, None)


def test_interrupted_run_resumes_to_the_same_scores(cfg, recipe, tmp_path, monkeypatch):
    whole, _ = run(cfg, recipe, tmp_path / 'whole')
    assert whole['top-1'] > 60 and json.loads((tmp_path / 'whole/scores.json').read_text()) == whole
    after = CheckpointHook.after_train_epoch

    def stop_after_the_second(hook, runner):
        after(hook, runner)
        if runner.epoch == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointHook, 'after_train_epoch', stop_after_the_second)
        with pytest.raises(KeyboardInterrupt):
            run(cfg, recipe, tmp_path / 'cut')
    assert not (tmp_path / 'cut/scores.json').exists()
    started, train = [], training_protocol.train

    def watched(cfg, launcher):
        runner = train(cfg, launcher)
        started.append(runner._resume)
        return runner

    monkeypatch.setattr(training_protocol, 'train', watched)
    for _ in range(2):
        assert run(cfg, recipe, tmp_path / 'cut')[0] == whole
    assert started == [True]


# One data set has more images than a batch. The other one has fewer.
@pytest.mark.parametrize('count, an_epoch', [(47, 2), (15, 1)])
def test_fine_tuning_starts_from_the_checkpoint(cfg, tmp_path, small_recipe, checkpoint, count, an_epoch):
    recipe = small_recipe('finetune_20k', epochs=5, randomness=dict(seed=0))
    recipe.train_cfg.max_iters = recipe.train_cfg.pop('max_epochs')
    recipe.default_hooks.logger.interval = 1
    data, start = dict(type='Noise', count=count), dict(type='PretrainedBackbone', checkpoint=str(checkpoint))
    composed = compose(cfg, recipe, data, cfg.evaluation.test, {**start, 'part': 'teacher'}, tmp_path / 'a', workers=2)
    runner = training_protocol.train(composed)
    assert runner.iter == 5 and len(runner.message_hub.get_scalar('train/loss').data[0]) == 5
    assert len(runner.train_dataloader) == an_epoch, (
        'the loader is not as long as an epoch, although its length determines the decay of batch norm'
    )
    teacher = torch.load(checkpoint)['state_dict']['teacher.backbone.conv1.weight']
    moved = (runner.model.backbone.conv1.weight - teacher).norm() / teacher.norm()
    assert 0 < moved < 0.5


@pytest.mark.slow
def test_folder_belongs_to_one_evaluation(cfg, settings, tmp_path, checkpoint, monkeypatch):
    """A killed run does not resume from other weights, and stored scores are reused for the same evaluation only."""
    folder = tmp_path / 'a'
    saved = torch.load(checkpoint)
    other = {**saved, 'state_dict': {k: v + 1 for k, v in saved['state_dict'].items()}}

    def refused(differs: str) -> None:
        before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.suffix != '.log'}
        with raises_code('other-result', match=f'differs in {differs}'):
            evaluate(cfg, 'linear', checkpoint, settings=settings)
        assert before == {path: path.read_bytes() for path in before}

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training_protocol, 'train', killed)
        evaluate(cfg, 'linear', checkpoint, settings=settings)
    torch.save(other, checkpoint)
    refused(r'weights \(\w{16} vs. \w{16}\)')
    torch.save(saved, checkpoint)
    scores = evaluate(cfg, 'linear', checkpoint, settings=settings).scores
    monkeypatch.setattr(training_protocol, 'train', lambda *_: pytest.fail('the network was trained again'))
    monkeypatch.chdir(tmp_path)
    again = LinearEvaluation(recipe='./recipe.py', workers=1, work_dir=folder)
    assert evaluate(cfg, 'linear', './epoch_3.pth', settings=again).scores == scores
    cfg.evaluation.test.count = 33
    refused(r'data.test.settings.count \(30 vs. 33\)')


def test_finished_run_is_replaced_by_remeasure(cfg, settings, tmp_path, checkpoint, monkeypatch):
    scores = evaluate(cfg, 'linear', checkpoint, settings=settings).scores
    old_scores = json.dumps({'top-1': -1.0})
    (tmp_path / 'a/scores.json').write_text(old_scores)
    identity = json.loads((tmp_path / 'a/identity.json').read_text())
    (tmp_path / 'a/identity.json').write_text(json.dumps({k: v for k, v in identity.items() if k != 'sources'}))
    result = evaluate(cfg, 'linear', checkpoint, settings=settings)
    assert result.scores == {'linear, top-1': -1.0} and not is_verified(result.identity), (
        'a result of an earlier version is not read, or not marked as unverified'
    )
    monkeypatch.setattr(training_protocol, 'train', lambda *_: pytest.fail('the network was trained again'))
    other = {**identity, 'sources': {**identity['sources'], 'protocol': '0123'}}
    (tmp_path / 'a/identity.json').write_text(json.dumps(other))
    with raises_code('other-result', match=r'sources.protocol \(0123 vs.'):
        evaluate(cfg, 'linear', checkpoint, settings=settings)
    monkeypatch.undo()
    again = evaluate(cfg, 'linear', checkpoint, settings=dataclasses.replace(settings, remeasure=True))
    assert again.scores == scores and is_verified(again.identity)


def test_sweep_chooses_on_held_out_images(cfg, recipe, tmp_path, monkeypatch):
    run_one, configs = training_protocol.run_recipe, []
    monkeypatch.setattr(
        training_protocol, 'run_recipe', lambda cfg, launcher: configs.append(cfg) or run_one(cfg, launcher)
    )
    recipe.sweep = dict(lr=[1e-6, 3.0], weight_decay=[0.0, 1e-4])
    scores, chosen = run(cfg, recipe, tmp_path / 'a', sweep=True)
    sweep, final = configs
    assert sweep.model.heads == 4 and sweep.optim_wrapper.optimizer.rates == [1e-6, 1e-6, 3.0, 3.0]
    assert sweep.test_dataloader.dataset.dataset.type == 'Part' and sweep.test_dataloader.dataset.dataset.held
    assert final.test_dataloader.dataset.dataset.to_dict() == dict(type='Noise', count=30, seed=1)
    assert final.optim_wrapper.optimizer.lr == chosen['lr'] == 3.0
    assert len(chosen['held_out']) == 4 and scores['top-1'] > 60


@pytest.mark.parametrize('protocol', ['knn', 'linear'])
def test_left_out_images_are_counted_on_the_page(cfg, settings, tmp_path, monkeypatch, capsys, protocol):
    raw = Noise.raw

    def some(self: Noise, index: int) -> torch.Tensor:
        if len(self) == 30 and index % 3 == 2:
            raise UnreadableImage('is empty')
        return raw(self, index)

    monkeypatch.setattr(Noise, 'raw', some)
    cfg.evaluation.train.count, cfg.evaluation.precision = 2, 'bfloat16'
    counts = {'classes without a training image': 1, 'unreadable test images': 10}
    if protocol == 'knn':
        settings = settings_for('knn', ks=(1,))
        counts['classes without a test image'] = 1
    result = evaluate(cfg, protocol, 'random', settings=settings)
    assert result.left_out == counts and not any('unreadable' in score for score in result.scores)
    record = dict(protocol=protocol, config='a.py', **dataclasses.asdict(result))
    (tmp_path / 'x.json').write_text(json.dumps(record, default=str))
    for text in (write_evaluation_page(tmp_path).read_text(), results_table([result]).text()):
        assert 'left out' in text and '10 unreadable test images' in text


@pytest.mark.parametrize('option, sweeps', [(None, True), (False, False), (True, True)])
def test_option_overrides_the_sweep_of_the_config(cfg, option, sweeps):
    cfg.evaluation.sweep = True
    assert settings_for('linear', sweep=option).sweeps(cfg) == sweeps
    assert not settings_for('finetune').sweeps(cfg)


def test_sweep_requires_a_recipe_with_rates(cfg):
    with raises_code('no-sweep'):
        settings_for('linear', sweep=True, recipe='finetune_20k').identity(cfg, 'random')


def test_byol_grid_scales_decay_and_schedule(cfg):
    decays, epochs = (recipe_of(cfg, 'finetune', name) for name in ('finetune_20k', 'semi_byol'))
    assert len(decays.trials) == 56 and len(epochs.trials) == 10
    decays.merge_from_dict(dict(decays.trials[15]))
    assert decays.optim_wrapper.optimizer.weight_decay == pytest.approx(10**-3 / 10**-3.5)
    epochs.merge_from_dict(dict(epochs.trials[1]))
    assert epochs.train_cfg.max_epochs == epochs.param_scheduler[0].end == 50


def test_trials_choose_on_held_out_images(cfg, recipe, monkeypatch, tmp_path):
    recipe.trials, seen = [{}, {'optim_wrapper.optimizer.lr': 9.0}, {'optim_wrapper.optimizer.lr': 5.0}], []

    def measured(cfg: Config, launcher: str) -> dict[str, float]:
        rate, data = cfg.optim_wrapper.optimizer.lr, cfg.test_dataloader.dataset.dataset
        seen.append((Path(cfg.work_dir).name, rate, data.type))
        if rate == 9.0:
            raise Diverged('the loss is not finite')
        halves = {'half 0': 8 * rate, 'half 1': 12 * rate} if cfg.test_evaluator.get('halves') else {}
        return {'top-1': 10 * rate, **halves}

    monkeypatch.setattr(training_protocol, 'run_recipe', measured)
    scores, chosen = run(cfg, recipe, tmp_path)
    base_rate = recipe.optim_wrapper.optimizer.lr
    assert seen == [
        ('trial_0', base_rate, 'Part'),
        ('trial_1', 9.0, 'Part'),
        ('trial_2', 5.0, 'Part'),
        ('test', 5.0, 'Noise'),
    ]
    assert scores == {'top-1': 50.0} and chosen['chosen'] == 'trial_2'
    assert chosen['held_out'] == {'trial_0': 10 * base_rate, 'trial_1': 0.0, 'trial_2': 50.0}
    assert chosen['halves'] == {
        'trial_0': [8 * base_rate, 12 * base_rate],
        'trial_1': [0.0, 0.0],
        'trial_2': [40.0, 60.0],
    }


def test_unsuitable_network_or_data_are_errors(cfg, recipe, tmp_path, checkpoint):
    cfg.model.backbone.base_channels = 16
    with raises_code('incomplete-network'):
        settings = LinearEvaluation(recipe='linear_shapes_20e', work_dir=tmp_path / 'b')
        evaluate(cfg, 'linear', checkpoint, settings=settings)
    cfg.evaluation.train = dict(type='Noise', count=4)
    with raises_code('class-of-one'):
        run(cfg, recipe, tmp_path / 'c', sweep=True)


@pytest.mark.parametrize('scale, recipe', [(1, 'linear_sgd_100e'), (4, 'linear_lars_80e')])
def test_weights_choose_the_recipe_if_config_does_not(cfg, tmp_path, checkpoint, monkeypatch, scale, recipe):
    saved = torch.load(checkpoint)
    saved['state_dict'] = {k: scale * v if v.ndim == 4 else v for k, v in saved['state_dict'].items()}
    torch.save(saved, checkpoint)
    recipes = []

    def measured(_, cfg: Config, recipe: Config, start: dict) -> tuple[dict, dict]:
        recipes.append(recipe)
        return {'top-1': 1.0}, {}

    monkeypatch.setattr(LinearEvaluation, '_train_and_test', measured)
    cfg._filename = str(CONFIGS / 'evaluation/shapes_r18.py')
    result = evaluate(cfg, 'linear', checkpoint, settings=LinearEvaluation(work_dir=tmp_path / 'a'))
    assert result.details['recipe'] == recipe == Path(recipes[0].filename).stem
    assert recipes[0].randomness.seed == 0 == result.identity['protocol']['recipe']['randomness']['seed']


@pytest.mark.parametrize('choice', [dict(sweep=True), dict(trials=[{}, {'optim_wrapper.optimizer.lr': 1.0}])])
def test_choice_on_test_images_is_an_error(cfg, recipe, tmp_path, choice):
    cfg.evaluation.val = dict(type='Noise', count=12, seed=1)
    cfg.evaluation.test = dict(type='Mixture', sets=dict(a=dict(type='Noise', count=30, seed=2)))
    recipe.trials = choice.get('trials', ())
    sweep = choice.get('sweep', False)
    run(cfg, recipe, tmp_path / 'apart', sweep=sweep)
    cfg.evaluation.test.sets.b = dict(type='Noise', count=12, seed=1)
    cfg.evaluation.val = dict(type='Part', dataset=dict(type='Noise', count=12, seed=1), held=True)
    with raises_code('val-in-test'):
        run(cfg, recipe, tmp_path / 'leak', sweep=sweep)
    assert not (tmp_path / 'leak').exists()
