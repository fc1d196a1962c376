"""The SVM protocol equals direct calls of scikit-learn."""

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.svm import LinearSVC

from mmairl.evaluation.features import Features
from mmairl.evaluation.svm import LinearSVM

GRID = [0.01, 0.1, 1.0]
pytestmark = pytest.mark.filterwarnings('ignore')


def plain(train: Features, test: Features, label: int) -> tuple[float, np.ndarray]:
    x, x_test = (data.x.double().numpy() for data in (train, test))
    x, x_test = (rows / np.linalg.norm(rows, axis=1)[:, None] for rows in (x, x_test))
    rows = np.flatnonzero(train.y[:, label] >= 0)
    x, y = x[rows], 2 * train.y[rows, label].numpy() - 1
    folds, held_out = StratifiedKFold(3, shuffle=True, random_state=0), {}
    for cost in GRID:
        model = LinearSVC(
            C=cost, class_weight={1: 2, -1: 1}, max_iter=2000, dual='auto', random_state=0
        )
        scores = cross_val_score(model, x, y, scoring='average_precision', cv=folds)
        held_out[cost] = scores.mean()
    best = max(held_out, key=held_out.get)
    return best, model.set_params(C=best).fit(x, y).decision_function(x_test)


def test_svm_equals_scikit_learn_without_difficult(digits, monkeypatch):
    train, test = (Features(data.x[:200], data.y[:200]) for data in digits)
    sets = []
    for number, data in enumerate((train, test)):
        labels = torch.stack([data.y % 2 == 0, data.y < 5], 1).long()
        labels[number::9, 0] = -1
        sets.append(Features(data.x, labels))
    monkeypatch.setattr('mmairl.evaluation.svm.COSTS', GRID)
    decisions, costs = LinearSVM().decisions(*sets)
    for label in range(2):
        cost, expected = plain(*sets, label)
        assert costs[label] == cost
        assert np.allclose(decisions[:, label], expected, atol=1e-9)


def test_class_with_two_images_is_an_error(digits):
    few = Features(digits[0].x[:13], torch.tensor([0] * 11 + [1] * 2))
    with raises_code('few-images'):
        LinearSVM().decisions(few, few)
