import pytest

from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.study.cost import cost
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row, Study
from mmairl.study.task_hours import hours_of_tasks, task_hours


def hours(scale: str, *tasks: str) -> tuple[dict, float]:
    register()
    scale = read_scale(scale)
    cfg = resolve(Row('', 'mocov2plus_r50_200e.py'), scale)
    return task_hours(cfg, tasks, scale), cost(cfg, scale).hours


def test_linear_task_costs_forward_passes():
    tasks, training = hours('in100', 'knn', 'logreg', 'linear')
    assert tasks['linear'] == pytest.approx(100 * tasks['knn'])
    assert tasks['logreg'] == 0  # takes the features of k-NN
    assert tasks['linear'] / training == pytest.approx(100 / (200 * 8), rel=0.05)  # a step has about eight passes' work


def test_what_only_the_data_tell_is_not_guessed():
    unknown = (
        'svm@voc2007_r50',
        'voc0712',
        'finetune@imagenet_1pct_r50',
        'knn@digits_r18',
    )  # other sets, and a part of one
    tasks, _ = hours('in100', 'knn', *unknown)
    assert tasks['knn'] and not any(tasks[task] for task in unknown)
    tasks, _ = hours('demo', 'knn@digits_r18')  # which has no root, as Shapes has none
    assert tasks == {'knn@digits_r18': None}


def test_external_and_tuned_tasks_are_counted():
    register()
    scale = read_scale('demo')
    cfg = load_config('mmairl::evaluation/shapes_r18.py')  # without a data set to train on
    (plain,), (tuned,) = (task_hours(cfg, ['finetune'], scale, trials).values() for trials in ({}, {'finetune': 6}))
    assert tuned == pytest.approx(7 * plain)
    study = Study(title='', rows=(Row('a', ''), Row('b', '', untrained='pixels')), tune={})
    found, unknown = hours_of_tasks(study, {'a': cfg}, ['finetune', 'voc0712'], scale, {'a': 3, 'b': 1})
    assert found == {'finetune': pytest.approx(3 * plain)} and unknown == {'voc0712'}


def test_demo_tasks_take_less_than_training():
    tasks, training = hours('demo', 'linear', 'finetune')
    assert max(tasks.values()) < training  # BYOL's fine-tuning over its grid takes 73 hours
