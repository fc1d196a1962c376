"""Logistic regression agrees with scikit-learn, and strengths are chosen without test images."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from mmairl.evaluation.features import Features
from mmairl.evaluation.logreg import QUICK, logistic_regression, newton_fits


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
    [(_, ours)] = newton_fits(x, data.y, 10, [strength])
    model = LogisticRegression(C=1 / (strength * len(x)), tol=1e-10, max_iter=100_000)
    model.fit(x.double().numpy(), data.y.numpy())
    theirs = np.c_[model.coef_, model.intercept_]
    shift = (ours[:, -1].numpy() - theirs[:, -1]).mean()
    assert np.allclose(ours[:, :-1], theirs[:, :-1], atol=2e-3 * np.abs(theirs).max())
    assert np.allclose(ours[:, -1] - shift, theirs[:, -1], atol=2e-3 * np.abs(theirs).max())


@pytest.mark.parametrize('several', [False, True])
def test_choice_and_scores_equal_scikit_learn(digits, several):
    train, val, test = parts(digits, several)
    strengths = (1.0, 1e-2, 1e-4)
    fitted = logistic_regression(train, test, val, strengths=strengths)
    assert fitted.held_out.keys() == set(strengths)
    assert fitted.held_out[fitted.strength] == max(fitted.held_out.values())
    if not several:
        x, y = torch.cat([train.x, val.x]).numpy(), torch.cat([train.y, val.y]).numpy()
        model = LogisticRegression(C=1 / (fitted.strength * len(x)), tol=1e-8, max_iter=10_000)
        expected = model.fit(x, y).score(test.x.numpy(), test.y.numpy())
        assert fitted.scores['top-1'] == pytest.approx(100 * expected, abs=0.5)


def test_test_images_change_neither_choice_nor_fit(digits):
    train, val, test = parts(digits)
    other = Features(test.x.flip(0) * 3, test.y)
    first, second = (logistic_regression(train, part, val, strengths=QUICK) for part in (test, other))
    assert first.strength == second.strength and first.held_out == second.held_out


def test_class_without_a_training_image_is_never_predicted(digits):
    train, val, test = parts(digits)
    some = Features(train.x[train.y != 4], train.y[train.y != 4])
    rest = Features(val.x[val.y != 4], val.y[val.y != 4])
    assert (logistic_regression(some, test, rest, strengths=QUICK).predicted != 4).all()


def test_standardized_scores_do_not_depend_on_scale(digits):
    train, val, test = parts(digits)
    scaled = [Features(part.x * 2**13, part.y) for part in (train, test, val)]
    how = dict(strengths=QUICK, standardise=True)
    expected = logistic_regression(train, test, val, **how)
    assert logistic_regression(*scaled, **how).scores == expected.scores
