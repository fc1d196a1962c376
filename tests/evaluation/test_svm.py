"""The SVM protocol equals direct calls of scikit-learn on handwritten digits."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.svm import LinearSVC

from mmairl.evaluation import svm as module
from mmairl.evaluation.features import Features
from mmairl.evaluation.metrics import ap11, mean_ap
from mmairl.evaluation.svm import COSTS, classifier, draw_shots, low_shot_map, svm

GRID = (0.01, 1.0, 0.1)
pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture(scope='module')
def digits(digits) -> tuple[Features, Features]:
    """Return small training and test sets of handwritten digits."""
    return tuple(Features(digits[0].x[some], digits[0].y[some]) for some in (slice(300), slice(600, 800)))


@pytest.fixture(scope='module')
def kinds(digits) -> tuple[Features, Features]:
    """Return digits with three overlapping classes (even, below five, divisible by three).

    Some images are 'difficult' for a class.
    """
    return tuple(Features(data.x, multi_labels(data.y, seed)) for seed, data in enumerate(digits))


@pytest.fixture
def logged(monkeypatch) -> list[str]:
    lines = []
    monkeypatch.setattr(module, 'print_log', lambda text, **_: lines.append(text))
    return lines


def multi_labels(y: torch.Tensor, seed: int) -> torch.Tensor:
    labels = torch.stack([y % 2 == 0, y < 5, y % 3 == 0], dim=1).long()
    labels[torch.rand(labels.shape, generator=torch.Generator().manual_seed(seed)) < 0.1] = -1
    return labels


def plain(train: Features, test: Features, label: int, costs=GRID, seed: int = 0) -> tuple[float, float, np.ndarray]:
    """Compute average precision, chosen cost and decision values of one class step by step."""
    x, x_test = (data.x.double().numpy() for data in (train, test))
    x, x_test = x / np.linalg.norm(x, axis=1)[:, None], x_test / np.linalg.norm(x_test, axis=1)[:, None]
    rows, rows_test = (np.flatnonzero(data.y[:, label] >= 0) for data in (train, test))
    x, y = x[rows], 2 * train.y[rows, label].numpy() - 1
    folds, held_out = StratifiedKFold(3, shuffle=True, random_state=seed), {}
    for cost in sorted(costs):
        machine = LinearSVC(C=cost, class_weight={1: 2, -1: 1}, max_iter=2000, dual='auto', random_state=seed)
        held_out[cost] = cross_val_score(machine, x, y, scoring='average_precision', cv=folds).mean()
    best = max(held_out, key=held_out.get)
    decisions = machine.set_params(C=best).fit(x, y).decision_function(x_test)
    return 100 * average_precision_score(test.y[rows_test, label] == 1, decisions[rows_test]), best, decisions


def test_scores_equal_scikit_learn_without_difficult(kinds):
    train, test = kinds
    result = svm(train, test, GRID)
    expected = [plain(train, test, label) for label in range(3)]
    assert result.cost == {label: cost for label, (_, cost, _) in enumerate(expected)}
    assert result.per_class == pytest.approx({label: ap for label, (ap, _, _) in enumerate(expected)}, abs=1e-9)
    assert result.map == pytest.approx(np.mean([ap for ap, _, _ in expected]), abs=1e-9)
    decisions = torch.tensor(np.stack([values for _, _, values in expected], axis=1))
    assert result.map11 == pytest.approx(100 * mean_ap(decisions, test.y, ap11), abs=1e-9)
    assert result.accuracy is None

    counted = svm(Features(train.x, train.y.clamp(min=0)), test, GRID)
    assert counted.map != result.map, 'difficult images are negatives in training'


def test_single_labels_become_one_versus_rest(digits, logged):
    train, test = digits[0], Features(digits[1].x[digits[1].y != 9], digits[1].y[digits[1].y != 9])
    result = svm(train, test, costs=[0.1])
    whole = [Features(data.x, torch.nn.functional.one_hot(data.y, 10)) for data in (train, test)]
    expected = [plain(*whole, label, costs=[0.1]) for label in range(10)]
    assert result.map == pytest.approx(np.mean([ap for ap, _, _ in expected[:9]]), abs=1e-9)
    predicted = np.argmax([values for _, _, values in expected], axis=0)
    assert result.accuracy == pytest.approx(100 * np.mean(predicted == test.y.numpy()), abs=1e-9)
    assert logged == ['classes [9] have no test image and are left out of the mean']


def test_grid_of_costs_is_the_published_grid():
    assert len(COSTS) == 26 and list(COSTS) == sorted(COSTS)
    assert {1e-7, 100.0, 2**-19, 2**-4} <= set(COSTS)


def test_low_shot_equals_fits_on_the_drawn_images(kinds):
    train, test = kinds
    result = low_shot_map(train, test, shots=(2, 8), samples=2, cost=0.3, seed=5)
    x, x_test = (torch.nn.functional.normalize(data.x.double()).numpy() for data in kinds)
    aps = np.zeros((2, 2, 3))
    for at, sample, label in np.ndindex(*aps.shape):
        rows = draw_shots(train.y[:, label], (2, 8), 2, (5, sample, label))[at]
        machine = classifier(0.3, seed=5).fit(x[rows], np.where(train.y[rows, label] == 1, 1, -1))
        counted = test.y[:, label].numpy() >= 0
        values = machine.decision_function(x_test[counted])
        aps[at, sample, label] = 100 * average_precision_score(test.y[counted, label], values)
    maps = aps.mean(axis=2)
    assert list(result['mean'].values()) == pytest.approx(maps.mean(axis=1), abs=1e-9)
    assert list(result['std'].values()) == pytest.approx(maps.std(axis=1), abs=1e-9)


def test_draw_has_k_positives_and_19_k_negatives():
    labels = torch.tensor([1] * 10 + [0] * 100 + [-1] * 50)
    rows = draw_shots(labels, (1, 2, 4, 8), 19, (0, 0, 0))
    counts = [((labels[some] == 1).sum().item(), (labels[some] == 0).sum().item()) for some in rows]
    assert counts == [(1, 19), (2, 38), (4, 76), (8, 100)], 'a sample has wrong numbers of images'
    for small, large in pairwise(rows):
        assert set(small) < set(large) and len(set(large)) == len(large)
    assert not np.array_equal(rows[0], draw_shots(labels, (1,), 19, (0, 1, 0))[0])


def test_impossible_shots_are_left_out(digits, logged):
    train, test = digits
    rows = torch.cat([(train.y != 7).nonzero().flatten(), (train.y == 7).nonzero().flatten()[:5]])
    train = Features(train.x[rows], train.y[rows])
    assert list(low_shot_map(train, test, shots=(2, 5, 6, 96), samples=1)['mean']) == [2, 5]
    assert logged == [
        'low-shot SVMs with [6, 96] positives per class are left out, because class 7 has 5 positive training images'
    ]
    with raises_code('few-images'):
        low_shot_map(train, test, shots=(6,))


def test_small_classes_and_unknown_labels_are_errors(digits, kinds):
    train, test = kinds
    for value, kind in ((1, 'of'), (0, 'not of')):
        labels = train.y.clone()
        labels[(labels[:, 2] == value).nonzero().flatten()[2:], 2] = 1 - value
        with raises_code('few-images', match=f'2 training images are {kind} class 2'):
            svm(Features(train.x, labels), test, GRID)
    column = digits[0].y == 0
    groups = np.where(column.numpy(), 'one', [f'p{number % 5}' for number in range(len(column))])
    with raises_code('one-group'):
        svm(dataclasses.replace(digits[0], groups=groups), digits[1], GRID)
    with raises_code('few-groups', match='only 2 groups'):
        svm(dataclasses.replace(digits[0], groups=np.arange(len(column)) % 2), digits[1], GRID)
    with raises_code('label-out-of-range'):
        svm(digits[0], Features(digits[1].x, digits[1].y + 1))
