"""The hours of evaluation and transfer tasks in the plan of a study."""

import pytest
import yaml
from mmengine.config import Config

from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.study import cost as cost_module
from mmairl.study import task_hours as module
from mmairl.study.commands import missing_images, prepare_study, show_plan
from mmairl.study.cost import cost
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row, Study
from mmairl.study.task_hours import hours_of_tasks, task_hours, transfer_hours


def hours(scale: str, *tasks: str) -> tuple[dict, float]:
    register()
    scale = read_scale(scale)
    cfg = resolve(Row('', 'mocov2plus_r50_200e.py'), scale)
    return task_hours(cfg, tasks, scale), cost(cfg, scale).hours


def test_linear_task_costs_forward_passes():
    tasks, training = hours('in100', 'knn', 'logreg', 'linear')
    assert tasks['linear'] == pytest.approx(100 * tasks['knn'])
    assert tasks['logreg'] == 0  # This task reuses the features of k-NN
    # A training step costs about as much as eight forward passes.
    assert tasks['linear'] / training == pytest.approx(100 / (200 * 8), rel=0.05)


def test_hours_of_unknown_data_are_unknown():
    """Only the data set of the scale has a known size. Other data sets have none, and neither have parts of data sets.

    The training speed on Cityscapes is unknown, too.
    """
    unknown = ('svm@voc2007_r50', 'cityscapes', 'finetune@imagenet_1pct_r50', 'knn@digits_r18')
    tasks, _ = hours('in100', 'knn', *unknown)
    assert tasks['knn'] and not any(tasks[task] for task in unknown)
    # The plan recognizes the scale's data set by its folder. Neither Digits nor Shapes has a
    # folder, so the hours are unknown.
    tasks, _ = hours('demo', 'knn@digits_r18')
    assert tasks == {'knn@digits_r18': None}


def test_transfer_task_costs_its_steps():
    tasks, _ = hours('in1k', 'voc07', 'coco_c4', 'cityscapes')
    assert tasks['voc07'] == pytest.approx(9000 * 8 * 0.537 / 3600)
    assert tasks['coco_c4'] == pytest.approx(90_000 * 8 * 0.584 / 3600)
    assert tasks['cityscapes'] is None  # The scale states no `step_seconds` for this task


def test_second_process_reads_no_transfer_config(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(cost_module, 'COUNTS', {})
    first = transfer_hours(Config(), 'voc07', read_scale('in1k'))
    monkeypatch.setattr(cost_module, 'COUNTS', {})
    monkeypatch.setattr(module, 'recipe', lambda *_: pytest.fail('the config was read again'))
    assert transfer_hours(Config(), 'voc07', read_scale('in1k')) == first
    # This scale states no `step_seconds`.
    assert transfer_hours(Config(), 'voc07', read_scale('demo')) is None


def test_measured_rate_replaces_the_stated_one(tmp_path):
    plans = [prepare_study('configs/studies/lars_inside.yaml', rate=rate, out=tmp_path) for rate in (None, 168)]
    (slow, fast) = ([cost(cfg, plan.scale).hours for cfg in plan.configs.values()] for plan in plans)
    assert fast == pytest.approx([hours / 2 for hours in slow])
    slow, fast = (plan.scale.step_seconds['voc07'] for plan in plans)
    assert fast == pytest.approx(slow / 2)


def test_external_and_tuned_tasks_are_counted():
    register()
    scale = read_scale('demo')
    cfg = load_config('mmairl::evaluation/shapes_r18.py')  # This config has no data set to train on
    (plain,), (tuned,) = (task_hours(cfg, ['finetune'], scale, trials).values() for trials in ({}, {'finetune': 6}))
    assert tuned == pytest.approx(7 * plain)
    rows = (Row('a', ''), Row('b', '', untrained='pixels'), Row('c', '', untrained='random'))
    study = Study(title='', rows=rows, tune={})
    configs, runs = dict(a=cfg, c=cfg), dict(a=3, b=1, c=1)
    hours_by_task, unknown = hours_of_tasks(study, configs, ['finetune', 'voc0712'], scale, runs)
    assert hours_by_task == {'finetune': pytest.approx(4 * plain)} and unknown == {'voc0712'}
    scale = read_scale('in1k')
    (plain,), (tuned,) = (task_hours(cfg, ['voc07'], scale, trials).values() for trials in ({}, {'voc07': 6}))
    assert tuned == pytest.approx(7 * plain)
    # Transfer tasks do not measure untrained rows.
    assert hours_of_tasks(study, configs, ['voc07'], scale, runs)[0] == {'voc07': pytest.approx(3 * plain)}


def test_external_study_without_training_has_a_plan(tmp_path, capsys):
    config = 'mmairl::evaluation/shapes_r18.py'
    rows = [dict(name=name, config=config, weights={0: f'{name}.pth'}) for name in 'ab']
    (tmp_path / 'study.yaml').write_text(yaml.safe_dump(dict(title='External', tasks=dict(demo=['knn']), rows=rows)))
    register()
    show_plan(prepare_study(tmp_path / 'study.yaml', 'demo', out=tmp_path), devices=1)
    assert 'random initialisation' in capsys.readouterr().out


def test_plan_lists_missing_data_of_all_tasks(tmp_path):
    prepared = prepare_study('configs/studies/byol_r50.yaml', out=tmp_path)
    assert {'data/imagenet/train', 'data/food101', 'data/sun397'} <= set(missing_images(prepared))
    prepared = prepare_study('configs/studies/taxonomies.yaml', out=tmp_path)
    assert 'data/imagenet/wordnet.is_a.txt' in missing_images(prepared)
