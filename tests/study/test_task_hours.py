import pytest

from mmairl.engine.launch import register
from mmairl.study.plan import cost
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row
from mmairl.study.task_hours import task_hours


def hours(scale: str, *tasks: str) -> tuple[dict, float]:
    register()
    scale = read_scale(scale)
    cfg = resolve(Row('', 'mocov2plus_r50_200e.py'), scale)
    return task_hours(cfg, tasks, scale), cost(cfg, scale).hours


def test_a_linear_classifier_costs_a_forward_pass_an_image_and_epoch():
    tasks, training = hours('in100', 'knn', 'logreg', 'linear')
    assert tasks['linear'] == pytest.approx(100 * tasks['knn'])
    assert tasks['logreg'] == 0  # takes the features of k-NN
    assert tasks['linear'] / training == pytest.approx(100 / (200 * 8), rel=0.02)  # a step has eight passes


def test_what_only_the_data_tell_is_not_guessed():
    tasks, _ = hours('in100', 'knn', 'svm@voc2007_r50', 'voc0712')
    assert tasks['knn'] and tasks['svm@voc2007_r50'] is None and tasks['voc0712'] is None


def test_tasks_of_the_demo_take_no_longer_than_its_training():
    tasks, training = hours('demo', 'linear', 'finetune')
    assert max(tasks.values()) < training  # BYOL's fine-tuning on a grid takes 73 hours
