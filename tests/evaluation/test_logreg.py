import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from mmairl.data.splits import split_by_class
from mmairl.errors import UserError
from mmairl.evaluation.features import Features
from mmairl.evaluation.logreg import QUICK, fit, logistic_regression, standard


@pytest.fixture(scope='module')
def digits() -> tuple[Features, Features]:
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    return Features(x[:1200], y[:1200]), Features(x[1200:], y[1200:])


def quick(train: Features, test: Features):
    return logistic_regression(train, test, strengths=QUICK)


@pytest.mark.parametrize('strength', [1e-1, 1e-3])
def test_coefficients_equal_scikit_learns(digits, strength):
    train, _ = digits
    mean, std = standard(train.x)
    x = ((train.x - mean) / std).double()
    weight = fit(x, train.y, 10, strength, tolerance=1e-8)
    reference = LogisticRegression(C=1 / (len(x) * strength), tol=1e-10, max_iter=5000).fit(x.numpy(), train.y)
    np.testing.assert_allclose(weight[:, :-1], reference.coef_, atol=1e-3)
    # The bias is only known up to a constant, which no probability sees.
    np.testing.assert_allclose(
        weight[:, -1] - weight[:, -1].mean(), reference.intercept_ - reference.intercept_.mean(), atol=1e-3
    )


def test_strength_is_chosen_on_held_out_training_images_and_refitted_on_all(digits):
    train, test = digits
    probe = quick(train, test)
    assert probe.held_out[probe.strength] == max(probe.held_out.values())
    x_mean, x_std = train.x.numpy().mean(0), train.x.numpy().std(0, ddof=1)
    x_std[x_std < 1e-6] = 1
    reference = LogisticRegression(C=1 / (len(train.x) * probe.strength), tol=1e-8, max_iter=5000)
    reference.fit((train.x.numpy() - x_mean) / x_std, train.y)
    assert probe.scores['top-1'] == pytest.approx(
        100 * reference.score((test.x.numpy() - x_mean) / x_std, test.y), abs=0.2
    )


def test_test_labels_do_not_touch_the_choice_and_runs_repeat(digits):
    train, test = digits
    shuffled = Features(test.x, test.y.flip(0))
    one, same, other = quick(train, test), quick(train, test), quick(train, shuffled)
    assert one == same
    assert (one.strength, one.held_out) == (other.strength, other.held_out)


def test_split_covers_every_image_once_and_holds_a_fifth_of_each_class():
    y = torch.tensor([0] * 50 + [1] * 10 + [2] * 2)[torch.randperm(62)]
    fit_part, held_part = split_by_class(y)
    assert sorted([*fit_part.tolist(), *held_part.tolist()]) == list(range(62))
    assert y[held_part].bincount().tolist() == [10, 2, 1]


def test_a_constant_dimension_does_no_harm(digits):
    train, test = digits
    wider = [Features(torch.cat([part.x, torch.full((len(part.x), 1), 3.0)], dim=1), part.y) for part in (train, test)]
    assert quick(*wider).scores['top-1'] == pytest.approx(quick(*digits).scores['top-1'], abs=0.2)


def test_a_class_of_one_image_is_one_sentence():
    lonely = Features(torch.randn(5, 2), torch.tensor([0, 0, 1, 1, 2]))
    with pytest.raises(UserError, match='class 2 has one training image'):
        quick(lonely, lonely)


def test_validation_images_choose_in_place_of_held_out_ones_and_join_the_last_fit(digits):
    train, test = digits
    fit_part, val = Features(train.x[:900], train.y[:900]), Features(train.x[900:], train.y[900:])
    given = logistic_regression(fit_part, test, val, strengths=QUICK)
    mean, std = standard(fit_part.x)
    for strength in QUICK:
        weight = fit((fit_part.x - mean) / std, fit_part.y, 10, strength)
        right = (F.linear((val.x - mean) / std, weight[:, :-1], weight[:, -1]).argmax(1) == val.y).float().mean()
        assert given.held_out[strength] == pytest.approx(100 * right.item(), abs=0.7)  # trials stop at 50 iterations
    mean, std = standard(train.x)
    weight = fit((train.x - mean) / std, train.y, 10, given.strength)
    right = (F.linear((test.x - mean) / std, weight[:, :-1], weight[:, -1]).argmax(1) == test.y).float().mean()
    assert given.scores['top-1'] == pytest.approx(100 * right.item(), abs=0.2)


def test_several_labels_an_image_are_a_yes_or_no_for_each_class_as_in_scikit_learn(digits):
    train, _ = digits
    y = torch.stack([train.y % 2, (train.y > 4).long()], dim=1)
    y[::7, 0] = -1
    mean, std = standard(train.x)
    x = ((train.x - mean) / std).double()
    weight = fit(x, y, 2, 1e-2, tolerance=1e-9)
    for column in range(2):
        kept = y[:, column] >= 0
        # sums over counted images there, over all images here
        reference = LogisticRegression(C=1 / (len(x) * 1e-2), tol=1e-10, max_iter=5000)
        reference.fit(x[kept].numpy(), y[kept, column])
        np.testing.assert_allclose(weight[column, :-1], reference.coef_[0], atol=1e-3)


def test_blocks_of_rows_change_nothing(digits, monkeypatch):
    train, _ = digits
    x = train.x.double() / 16
    whole = fit(x, train.y, 10, 1e-1, tolerance=1e-9)
    monkeypatch.setattr('mmairl.evaluation.logreg.ROWS', 100)
    torch.testing.assert_close(fit(x, train.y, 10, 1e-1, tolerance=1e-9), whole, atol=1e-6, rtol=0)
