import numpy as np
import pytest
import torch
from harness.errors import raises_code
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from mmairl.evaluation.features import Features
from mmairl.evaluation.logreg import (
    NEVER,
    QUICK,
    STRENGTHS,
    Objective,
    _standardiser,
    logistic_regression,
    scores,
)


def unequal(train: Features, classes: int) -> Features:
    """Return a subset in which each class has about half as many images as the class before it."""
    rows = [(train.y == label).nonzero().flatten()[: max(5, 90 // 2**label)] for label in range(classes)]
    return Features(train.x[torch.cat(rows)], train.y[torch.cat(rows)])


def minimum_by_scikit_learn(x: Tensor, y: Tensor, strength: float) -> np.ndarray:
    solver = LogisticRegression(C=1 / (len(x) * strength), tol=1e-12, max_iter=20_000, solver='newton-cg')
    solver.fit(x.double().numpy(), y.numpy())
    return np.column_stack([solver.coef_, solver.intercept_])


def bias_centred(weight: np.ndarray) -> np.ndarray:
    """Subtract the mean bias, since adding a constant to all biases changes no probability."""
    return np.column_stack([weight[:, :-1], weight[:, -1] - weight[:, -1].mean()])


@pytest.mark.parametrize('kind', ['equal', 'unequal'])
def test_each_strength_reaches_scikit_learns_minimum(digits, kind):
    """With the strongest penalty, only biases remain. With the weakest, the classes are separated."""
    train = unequal(digits[0], 6) if kind == 'unequal' else Features(digits[0].x[:150, 10:40], digits[0].y[:150])
    objective = Objective(train.x, train.y, int(train.y.max()) + 1)
    for strength in STRENGTHS:
        fitted = objective.minimise(strength)
        assert fitted.solved
        reference = minimum_by_scikit_learn(train.x, train.y, strength)
        np.testing.assert_allclose(
            bias_centred(fitted.weight.numpy()), bias_centred(reference), atol=1e-4, err_msg=f'{strength}'
        )
        weight = fitted.weight.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(train.x.double() @ weight[:, :-1].T + weight[:, -1], train.y)
        (loss + strength / 2 * weight[:, :-1].square().sum()).backward()
        assert weight.grad[:, -1].norm() <= 1.5 * fitted.gradient + 1e-9 and fitted.gradient < 1e-6
        # Only biases remain, so the predicted probabilities are the frequencies of the classes.
        if strength == max(STRENGTHS):
            frequency = torch.bincount(train.y).double() / len(train.y)
            torch.testing.assert_close(fitted.weight[:, -1].softmax(0), frequency, atol=1e-5, rtol=0)
            assert kind == 'equal' or not scores(train.x, fitted.weight).argmax(1).any(), (
                'the largest class is not predicted for all images'
            )


def test_solved_fit_is_near_the_minimum_at_any_scale(digits):
    x, y = 1000 * digits[0].x[:300, :40], digits[0].y[:300] % 6
    objective, start = Objective(x, y, 6), None
    for strength in STRENGTHS[::5]:
        fitted = objective.minimise(strength, start)
        start = fitted.inner

        def loss(weight: Tensor, strength: float = strength) -> Tensor:
            penalty = strength / 2 * weight[:, :-1].square().sum()
            return torch.nn.functional.cross_entropy(objective.x.double() @ weight.T, y) + penalty

        bent = torch.func.hessian(loss)(start).reshape(start.numel(), -1)
        step = torch.linalg.lstsq(bent, torch.func.grad(loss)(start).reshape(-1, 1), driver='gelsd').solution
        step = step.view_as(start) - step.view_as(start).mean(0)
        assert not fitted.solved or step[:, :-1].abs().max() < 1e-3 * start[:, :-1].abs().max(), strength
        assert not fitted.solved or step[:, -1].abs().max() < 1e-3 * start[:, -1].abs().max().clamp_min(1), strength


def test_wide_features_reach_the_minimum(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr('mmairl.evaluation.logreg.ROWS', 20)
    x, y = torch.randn(30, 50) * 3 + 5, torch.arange(30) % 3
    reference = minimum_by_scikit_learn(x, y, 1e-3)
    for widest in (8192, 10):
        monkeypatch.setattr('mmairl.evaluation.logreg.WIDEST', widest)
        weight = Objective(x, y, 3).minimise(1e-3).weight
        np.testing.assert_allclose(bias_centred(weight.numpy()), bias_centred(reference), atol=1e-4)


@pytest.mark.parametrize('standardise', [False, True])
def test_strength_is_chosen_on_held_out_images(digits, standardise):
    train, test = digits
    probe = logistic_regression(train, test, strengths=QUICK, standardise=standardise)
    assert probe.held_out[probe.strength] == max(probe.held_out.values())
    assert set(probe.gradient) == {*QUICK, 0.0} and max(probe.gradient.values()) < 1e-6
    mean, std = train.x.numpy().mean(0), train.x.numpy().std(0, ddof=1)
    std[std < 1e-6] = 1  # Constant dimensions are not scaled
    x, x_test = (((data.x.numpy() - mean) / std) if standardise else data.x.numpy() for data in digits)
    reference = LogisticRegression(C=1 / (len(x) * probe.strength), tol=1e-8, max_iter=5000).fit(x, train.y)
    assert probe.scores['top-1'] == pytest.approx(100 * reference.score(x_test, test.y), abs=1e-9)
    other = logistic_regression(train, Features(test.x, test.y.flip(0)), strengths=QUICK, standardise=standardise)
    assert (probe.strength, probe.held_out) == (other.strength, other.held_out), (
        'the choice depends on the labels of test images'
    )


def test_validation_images_choose_then_join_the_fit(digits):
    train, test = digits
    fit_part, val = Features(train.x[:900], train.y[:900]), Features(train.x[900:], train.y[900:])
    probe = logistic_regression(fit_part, test, val, strengths=QUICK)
    objective = Objective(fit_part.x, fit_part.y, 10)
    for strength in QUICK:
        right = (scores(val.x, objective.minimise(strength).weight).argmax(1) == val.y).double().mean()
        assert probe.held_out[strength] == pytest.approx(100 * right.item())
    last = Objective(train.x, train.y, 10).minimise(probe.strength).weight
    right = (scores(test.x, last).argmax(1) == test.y).double().mean()
    assert probe.scores['top-1'] == pytest.approx(100 * right.item())


def test_multi_label_fit_equals_scikit_learn(digits, monkeypatch):
    monkeypatch.setattr('mmairl.evaluation.logreg.ROWS', 100)
    x = digits[0].x[:300]
    y = torch.stack([digits[0].y[:300] % 2, (digits[0].y[:300] > 4).long()], dim=1)
    y[::7, 0] = -1
    fitted = Objective(x, y, 2).minimise(1e-2)
    assert fitted.solved
    for column in range(2):
        labeled = y[:, column] >= 0
        # scikit-learn averages the loss over labeled images. `Objective` averages it over all images,
        # so the test adapts the penalty.
        reference = minimum_by_scikit_learn(x[labeled], y[labeled, column], 1e-2 * len(x) / int(labeled.sum()))
        np.testing.assert_allclose(fitted.weight[column], reference[0], atol=1e-4)


def test_class_without_training_image_is_never_chosen(digits):
    x, y = digits[0].x[:100], digits[0].y[:100] % 4
    y[y == 1] = 3
    fitted = Objective(x, y, 5).minimise(1e-2)
    assert fitted.solved and fitted.weight[[1, 4], -1].tolist() == [-NEVER, -NEVER]
    assert set(scores(x, fitted.weight).argmax(1).tolist()) <= {0, 2, 3}


def test_separable_images_are_solved_at_every_strength():
    """With weak penalties, all probabilities approach 0 or 1, and the curvature of the loss along the bias vanishes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(30) % 2
    objective = Objective(torch.randn(30, 300, generator=generator) + 2.0 * y[:, None], y, 2)
    fitted = None
    for strength in STRENGTHS:
        fitted = objective.minimise(strength, fitted and fitted.inner)
        assert fitted.solved and fitted.weight.isfinite().all(), strength


def test_features_without_a_solution_are_an_error(digits):
    x = digits[0].x[:40, 20:26] * 1e25
    train = Features(x, torch.arange(40) % 2)
    with raises_code('no-strength-solved'):
        logistic_regression(train, train, strengths=(1.0, 1e-3))


def test_standardisation_does_not_depend_on_the_scale(digits):
    x = digits[0].x.double()
    x[:, 0] = 7.1
    expected = _standardiser(x)(x)
    torch.testing.assert_close(_standardiser(1e-8 * x)(1e-8 * x), expected)
    assert expected[:, 0].abs().max() < 1e-6 and expected[:, 1:].std(dim=0).max() > 0.99
