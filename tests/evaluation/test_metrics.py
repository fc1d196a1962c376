"""Metrics equal direct calculations."""

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from mmengine.evaluator import Evaluator
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, confusion_matrix

from mmairl.evaluation.metrics import (
    ap11,
    chance,
    confusion,
    higher_is_better,
    interval,
    mean_ap,
    scores_of,
)


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.randn(40, 7, generator=torch.Generator().manual_seed(0))


def test_top1_top5_and_class_means(scores):
    y = torch.arange(40) % 3
    right = scores.argmax(1) == y
    found = scores_of('top-1', scores, y)
    five = (scores.argsort(1, descending=True)[:, :5] == y[:, None]).any(1)
    assert found == {'top-1': 100 * right.double().mean(), 'top-5': 100 * five.double().mean()}
    each = [right[y == label].double().mean() for label in range(3)]
    assert scores_of('mean per class', scores, y)['mean per class'] == pytest.approx(
        100 * np.mean(each)
    )


def test_map_ignores_difficult_and_absent_classes(scores):
    y = (scores + torch.randn(scores.shape) > 0.5).long()
    y[::4, 1], y[:, 6] = -1, 0
    rows = y[:, 1] >= 0
    each = [average_precision_score(y[:, label], scores[:, label]) for label in (0, 2, 3, 4, 5)]
    each.append(average_precision_score(y[rows, 1], scores[rows, 1]))
    assert mean_ap(scores, y) == pytest.approx(np.mean(each))


def test_ap11_by_hand():
    # The positives have ranks 1 and 3, with precisions 1 and 2/3.
    found = ap11(np.array([1, 0, 1, 0]), np.array([4.0, 3.0, 2.0, 1.0]))
    assert found == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)


def test_interval_is_wilsons():
    low, high = interval(45.0, 80)
    expected = binomtest(36, 80).proportion_ci(method='wilson')
    assert (low, high) == pytest.approx((100 * expected.low, 100 * expected.high), abs=0.01)


def test_chance_needs_no_image():
    y = torch.tensor([0, 0, 0, 1])
    assert chance('top-1', y) == 75 and chance('mean per class', y) == 50
    assert chance('mAP', torch.tensor([[1, 0], [0, -1]])) == 50


@pytest.mark.parametrize(
    'name, higher', [('linear, top-1', True), ('depth_probe, RMSE (m)', False)]
)
def test_direction_of_a_score(name, higher):
    assert higher_is_better(name) == higher


def test_confusion_is_exact():
    predicted, y = torch.tensor([0, 1, 1, 2, 2]), torch.tensor([0, 0, 1, 2, 1])
    matrix = confusion(predicted, y, 'abc')['counts']
    assert matrix == confusion_matrix(y, predicted).tolist()


def test_heads_and_unreadable_images_are_separate(scores):
    y = torch.arange(40) % 7
    evaluator = Evaluator(dict(type='mmairl.HeadAccuracy'))
    samples = dict(readable=torch.arange(40) >= 10)
    outputs = [dict(scores=torch.stack([scores, -scores], 1), label=y)]
    evaluator.process(outputs, dict(data_samples=samples))
    found = {name.strip('/'): value for name, value in evaluator.evaluate(40).items()}
    for head, sign in ((0, 1), (1, -1)):
        expected = scores_of('top-1', sign * scores[10:], y[10:])['top-1']
        assert found[f'top-1@{head}'] == expected
    assert found['unreadable test images'] == 10


def test_unknown_metric_is_an_error(scores):
    with raises_code('unknown-metric'):
        scores_of('f1', scores, torch.zeros(40, dtype=torch.long))


def test_scores_that_are_not_finite_are_errors(scores):
    scores[3, 2] = torch.nan
    with raises_code('scores-not-finite'):
        scores_of('top-1', scores, torch.zeros(40, dtype=torch.long))
