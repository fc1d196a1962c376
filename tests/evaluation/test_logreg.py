"""Logistic regression agrees with scikit-learn, and strengths are chosen without test images."""

import numpy as np
import pytest
import scipy
import torch
from sklearn.linear_model import LogisticRegression

from mmairl.evaluation import logreg
from mmairl.evaluation.feature_protocol import Split
from mmairl.evaluation.features import Features
from mmairl.evaluation.logreg import STRENGTHS, newton_fits, per_class_fits


@pytest.fixture
def score(monkeypatch):
    """Return a function that scores features by the protocol with three strengths."""
    monkeypatch.setattr(logreg, 'STRENGTHS', (1.0, 1e-2, 1e-4))
    protocol = logreg.LogisticRegression()
    return lambda train, test, val: protocol.score(Split(train, test, val, 'top-1'))


def parts(digits, several: bool = False) -> list[Features]:
    train, test = digits
    rows = (slice(0, 300), slice(300, 400), slice(0, 200))
    found = [Features(data.x[some], data.y[some]) for data, some in zip((train, train, test), rows)]
    if several:
        for number, part in enumerate(found):
            labels = torch.stack([part.y % 2, part.y // 5, part.y % 3 == 0], 1).long()
            labels[number::7, 1] = -1
            found[number] = Features(part.x, labels)
    return found


@pytest.mark.parametrize('strength', [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize('dimensions', [64, 8])
def test_minimum_equals_scikit_learn(digits, strength, dimensions):
    data = parts(digits)[0]
    x = data.x[:, 20 : 20 + dimensions]
    [ours] = newton_fits(x, data.y, [strength], 10)
    model = LogisticRegression(C=1 / (strength * len(x)), tol=1e-10, max_iter=100_000)
    model.fit(x.double().numpy(), data.y.numpy())
    theirs = np.c_[model.coef_, model.intercept_]
    shift = (ours[:, -1].numpy() - theirs[:, -1]).mean()
    ours[:, -1] -= shift
    assert np.allclose(ours, theirs, atol=2e-3 * np.abs(theirs).max())


def test_choice_and_scores_equal_scikit_learn(digits, score):
    train, val, test = parts(digits)
    scores, details = score(train, test, val)
    best, held_out = details['strength'], details['held_out']
    assert held_out[best] == max(held_out.values())
    x, y = torch.cat([train.x, val.x]).numpy(), torch.cat([train.y, val.y]).numpy()
    model = LogisticRegression(C=1 / (best * len(x)), tol=1e-8, max_iter=10_000)
    expected = model.fit(x, y).score(test.x.numpy(), test.y.numpy())
    assert scores['logistic regression, top-1'] == pytest.approx(100 * expected, abs=0.5)


def test_weak_regularization_of_dependent_features_needs_few_steps(monkeypatch):
    random = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 6
    factors = torch.randn(600, 6, generator=random) + torch.randn(6, 6, generator=random)[y]
    mixed = factors @ torch.randn(6, 60, generator=random) + torch.randn(60, generator=random)
    x = mixed.relu() + 0.01 * torch.randn(600, 60, generator=random)
    products, hessian = [], logreg.Fit.hessian

    def count(*args):
        products.append(1)
        return hessian(*args)

    monkeypatch.setattr(logreg.Fit, 'hessian', count)
    inputs = np.c_[x.double().numpy(), np.ones(600)]
    for strength, weight in zip(STRENGTHS, newton_fits(x, y, STRENGTHS, 6)):
        weight = weight.numpy()
        excess = scipy.special.softmax(inputs @ weight.T, axis=1) - np.eye(6)[y]
        penalty = strength * weight * (np.arange(61) < 60)
        gradient = excess.T @ inputs / 600 + penalty
        assert np.linalg.norm(gradient) < 1e-4 * np.linalg.norm(penalty)
    assert len(products) < 5000  # 16,090 with the diagonal as the only preconditioner


def test_copies_of_features_cost_no_width(digits, monkeypatch):
    widths, created = [], logreg.Fit.__init__
    monkeypatch.setattr(
        logreg.Fit, '__init__', lambda self, x, y: widths.append(x.shape[1]) or created(self, x, y)
    )
    data = parts(digits)[0]
    x = data.x[:, 20:30]
    [once] = newton_fits(x * 3**0.5, data.y, [1e-3], 10)
    [thrice] = newton_fits(torch.cat([x, x, x], dim=1), data.y, [1e-3], 10)
    assert widths == [11, 11]
    assert torch.allclose(thrice[:, :10] * 3**0.5, once[:, :10], atol=1e-3)


def test_each_of_several_classes_is_a_binary_fit(digits):
    data = parts(digits, several=True)[0]
    [ours] = per_class_fits(data.x, data.y, [1e-3], 2)
    for label, column in enumerate(data.y.T):
        rows = column >= 0
        model = LogisticRegression(C=1 / (1e-3 * len(column)), tol=1e-10, max_iter=100_000)
        model.fit(data.x[rows].double().numpy(), column[rows].numpy())
        theirs = np.r_[model.coef_[0], model.intercept_]
        assert np.allclose(ours[label], theirs, atol=2e-3 * np.abs(theirs).max())


def test_test_images_change_neither_choice_nor_fit(digits, score):
    train, val, test = parts(digits)
    other = Features(test.x.flip(0) * 3, test.y)
    found = [score(train, part, val)[1] for part in (test, other)]
    assert found[0]['held_out'] == found[1]['held_out']
    assert found[0]['strength'] == found[1]['strength']


def test_class_without_a_training_image_is_never_predicted(digits, score):
    train, val, test = parts(digits)
    some = Features(train.x[train.y != 4], train.y[train.y != 4])
    rest = Features(val.x[val.y != 4], val.y[val.y != 4])
    _, details = score(some, test, rest)
    assert (details['predicted'] != 4).all()
