"""Fit L2-regularized logistic regression on frozen features, as in BYOL's transfer table.

Each fit runs Newton's method until it is close to the minimum. Gradients are in float64. The linear system of each Newton step
is solved by conjugate gradients with matrix products in float32 (Nocedal and Wright 2006, ch. 7). BYOL uses L-BFGS instead,
which stops far from the minimum if the regularization is very strong or very weak.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from logging import WARNING
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from mmengine import Config
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.read import Backbone
from mmairl.data.splits import split_by_class
from mmairl.errors import UserError
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.features import Features
from mmairl.evaluation.metrics import scores_of
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

# The exponents of BYOL's 45 regularization strengths. Strong regularization comes first, because its solution is close to
# zero, where the first fit starts. Each later fit starts from the solutions of the fits before it.
EXPONENTS = torch.linspace(5, -6, 45, dtype=torch.float64)
STRENGTHS = tuple((10**EXPONENTS).tolist())
QUICK = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
ROWS = 65536  # number of images whose features are converted to float64 at a time
# Principal axes are not computed if the numbers of features and of images both exceed this, because that would take minutes.
WIDEST = 8192
TOLERANCE = 1e-4  # largest last step of a converged fit, relative to the largest weight
FORCING = 0.01  # relative residual at which a linear system counts as solved
STEPS = 100  # largest number of Newton steps
INNER = 300  # largest number of conjugate gradient steps per Newton step
BALANCE = 1e-5  # largest norm of the gradient of a converged fit, relative to the strength times the norm of the weights
NEVER = 1e6  # A class without a training image always gets the score -NEVER.


@PROTOCOLS.register_module('logreg')
@dataclass(frozen=True)
class LogisticRegressionProtocol(FeatureProtocol):
    """Score features by L2-regularized logistic regression, as in BYOL's transfer table.

    The strength of the regularization is chosen on the config's validation images. If there are none, a fifth of the
    training images is held out for the choice. A test image whose class has no training image counts as wrong.

    Args:
        standardise: Whether to scale features to mean 0 and standard deviation 1. Default: False.
        seed: Seed for choosing the held-out images. Default: 0.
    """

    standardise: bool = False
    seed: int = 0

    validation: ClassVar = 'choose'

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        return dict(standardise=self.standardise, strengths=len(STRENGTHS), seed=self.seed)

    def score(self, split: Split) -> tuple[Scores, dict]:
        fitted = logistic_regression(
            split.train,
            split.test,
            split.val,
            split.metric,
            device=self.device,
            standardise=self.standardise,
            seed=self.seed,
        )
        details = asdict(fitted)
        found = details.pop('scores')
        scores = {f'logistic regression, {name}': score for name, score in found.items()}
        features = 'standardised' if self.standardise else 'as they are'
        return scores, dict(features=features, **details)


@dataclass(frozen=True)
class LogisticRegression:
    """The result of `logistic_regression`.

    Attributes:
        scores: Test scores in percent.
        strength: The L2 strength with the best validation score.
        held_out: Validation score of each strength whose fit converged.
        gradient: Norm of the objective's gradient at the end of each fit. Keys are the strengths, and 0 for the final fit.
        predicted: Predicted class of each test image. None if images can have several classes.
    """

    scores: dict[str, float]
    strength: float
    held_out: dict[float, float]
    gradient: dict[float, float]
    predicted: Tensor | None = None


def logistic_regression(
    train: Features,
    test: Features,
    val: Features | None = None,
    metric: str = 'top-1',
    strengths: Sequence[float] = STRENGTHS,
    device: str | torch.device = 'cpu',
    standardise: bool = False,
    seed: int = 0,
) -> LogisticRegression:
    """Choose the strength on validation images, fit again on training and validation images, and score the test images.

    Args:
        train: Features of the training images.
        test: Features of the test images.
        val: Features of the validation images. Default: a fifth of the training images of each class.
        metric: Name of the data set's metric.
        strengths: L2 strengths to choose from.
        device: Device of the fits.
        standardise: Whether to scale features to mean 0 and standard deviation 1.
        seed: Seed for choosing the held-out images.

    Raises:
        UserError: If the fits of all strengths fail to converge.
    """
    if val is None:
        fit_part, held_part = split_by_class(train.y, seed, groups=train.groups)
        val = Features(train.x[held_part], train.y[held_part])
        train = Features(train.x[fit_part], train.y[fit_part])
    if train.y.ndim == 2:
        classes = train.y.shape[1]
    else:
        highest = [part.y.max() for part in (train, val, test)]
        classes = int(max(highest)) + 1

    def fitted(x: Tensor, y: Tensor) -> tuple[Objective, Callable[[Tensor], Tensor]]:
        """Return the objective for training images, and the function that prepares the features of other images."""
        prepare = _standardiser(x) if standardise else Tensor.float
        objective = Objective(prepare(x).to(device), y.to(device), classes)
        return objective, prepare

    objective, prepare = fitted(train.x, train.y)
    x_val = prepare(val.x).to(device)
    held_out: dict[float, float] = {}
    gradient: dict[float, float] = {}
    start = None
    previous = None
    for strength in sorted(strengths, reverse=True):
        fit = objective.minimise(strength, start)
        # The next fit starts from a linear extrapolation of the last two solutions.
        start = fit.inner if previous is None else 2 * fit.inner - previous
        previous = fit.inner
        gradient[strength] = fit.gradient
        if not fit.solved:
            print_log(
                f'logistic regression at regularization strength {strength:.1e} did not converge and is left out',
                level=WARNING,
            )
            continue
        of_val = scores(x_val, fit.weight).cpu()
        on_val = scores_of(metric, of_val, val.y)
        held_out[strength] = next(iter(on_val.values()))
    if not held_out:
        raise UserError(
            f'logreg: no fit converged at any of {len(strengths)} regularization strengths (last gradient: '
            f'{fit.gradient:.1e}); set standardise=True (--standardise) if the features are very large or very small',
            code='no-strength-solved',
        )
    highest = max(held_out.values())
    # On small validation sets, several strengths share the best score. The middle one is chosen, because it is far from both
    # overfitting and underfitting.
    tied = [strength for strength, score in held_out.items() if score == highest]
    best = tied[len(tied) // 2]
    del objective, x_val  # This frees device memory for the larger training set.
    objective, prepare = fitted(torch.cat([train.x, val.x]), torch.cat([train.y, val.y]))
    fit = objective.minimise(best)
    gradient[0.0] = fit.gradient
    x_test = prepare(test.x).to(device)
    on_test = scores(x_test, fit.weight).cpu()
    return LogisticRegression(
        scores=scores_of(metric, on_test, test.y),
        strength=best,
        held_out=held_out,
        gradient=gradient,
        predicted=on_test.argmax(1) if test.y.ndim == 1 else None,
    )


def _standardiser(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that scales each dimension to mean 0 and standard deviation 1. Constant dimensions become 0."""
    mean = x.mean(dim=0)
    std = x.std(dim=0)
    # The limit is relative, because rounding gives constant dimensions a small standard deviation.
    std = std.where(std > 1e-6 * x.abs().amax(dim=0), 1)
    return lambda values: (values - mean).div_(std)


@dataclass(frozen=True)
class Minimum:
    """The result of a fit with one strength.

    Attributes:
        weight: Weights for the original features, (classes, D + 1). The last column is the bias.
        inner: The same weights for the centered and rotated features that `Objective` uses internally.
        gradient: Norm of the objective's gradient.
        solved: Whether the fit converged.
    """

    weight: Tensor
    inner: Tensor
    gradient: float
    solved: bool


class Objective:
    """The function to minimize: the mean cross-entropy on features `x` (N, D) and labels `y`, plus strength/2 |W|^2.

    The bias is not penalized. In scikit-learn's notation, the strength is 1 / (N C). If images can have several classes,
    each class is a binary problem, and labels of -1 do not count. Internally, features are centered and rotated to their
    principal axes. This does not change the minimum, and it makes the diagonal of the Hessian a good preconditioner.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        self.several = y.ndim == 2
        if self.several:
            counted = y >= 0
            target = y == 1
            has_negatives = (counted & ~target).any(0)
            self.known = target.any(0) & has_negatives
            self.counted = counted[:, self.known]
        else:
            target = F.one_hot(y, classes).bool()
            self.known = target.any(0)
            self.counted = target.new_ones(len(y), 1)
        self.certain = torch.where(target.any(0), NEVER, -NEVER).double()
        self.target = target[:, self.known]
        sums = [block.double().sum(0) for block in x.split(ROWS)]
        self.mean = torch.stack(sums).sum(0) / len(x)
        self.axes = None
        size = x.shape[1]
        if min(x.shape) <= WIDEST:
            self.axes = _principal_axes(x, self.mean)
            size = self.axes.shape[1]
        # Blocks are written in place, because joining them would need twice the memory.
        self.x = torch.ones(len(x), size + 1, device=x.device)
        for rows, block in zip(self.x.split(ROWS), _centered(x, self.mean)):
            rows[:, :-1] = block if self.axes is None else block @ self.axes

    def _blocks(self, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
        every = (self.x, self.counted, *columns)
        return zip(*(column.split(ROWS) for column in every))

    def gradient(self, weight: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Return the gradient in float64, and the class probabilities of each image."""
        total = _penalty(weight, strength)
        probabilities = []
        for x, counted, target in self._blocks(self.target):
            x = x.double()
            scores = x @ weight.T
            p = scores.sigmoid() if self.several else scores.softmax(dim=1)
            error = (p - target.double()) * counted
            total += error.T @ x / len(self.x)
            probabilities.append(p)
        return total, torch.cat(probabilities)

    def hessian(self, p: Tensor, direction: Tensor, strength: float) -> Tensor:
        """Return the product of the Hessian and a direction.

        The matrix products are in float32. All else is in float64, because 1 - p would round to 0 in float32 for
        probabilities close to 1.
        """
        total = _penalty(direction, strength)
        for x, counted, q in self._blocks(p):
            change = q * (x @ direction.T.float())
            change = (
                change * (1 - q) * counted if self.several else change - q * change.sum(1, True)
            )
            total += change.T.float() @ x / len(self.x)
        return total

    def curvature(self, p: Tensor, strength: float) -> Tensor:
        """Return the diagonal of the Hessian. Values below `strength` are replaced by `strength`."""
        ones = p.new_ones(p.shape[1], self.x.shape[1])
        total = _penalty(ones, strength)
        for x, counted, q in self._blocks(p):
            variance = q * (1 - q) * counted
            total += variance.T.float() @ x.square() / len(self.x)
        # If all probabilities are 0 or 1, the curvature of the bias is 0, and dividing by it would give NaN.
        return total.clamp_min(strength)

    def minimise(self, strength: float, start: Tensor | None = None) -> Minimum:
        """Run at most STEPS steps of Newton's method from `start` (default: zero), until it converges or makes no progress."""
        weight = start
        if start is None:
            classes = self.target.shape[1]
            weight = self.mean.new_zeros(classes, self.x.shape[1])
        gradient, p = self.gradient(weight, strength)
        solved = False
        for _ in range(STEPS):
            if not gradient.isfinite().all():
                break
            step = self._newton_step(gradient, p, strength)
            length = 1.0
            slope = (gradient * step).sum().abs()
            while True:
                after, p_after = self.gradient(weight + length * step, strength)
                # The line search compares slopes. Near the minimum, the objective is too flat for comparing its values.
                if (after * step).sum() <= slope / 2 or length < 1e-4:
                    break
                length /= 2
            stuck = after.norm() >= gradient.norm()
            weight = weight + length * step
            gradient = after
            p = p_after
            small = _small(step[:, :-1], weight[:, :-1], 0)
            small_bias = _small(step[:, -1], weight[:, -1], 1)
            if length == 1 and small and small_bias:
                balance = BALANCE * strength * weight[:, :-1].norm().clamp_min(1e-9)
                solved = bool(gradient.norm() <= balance)
                if solved or stuck:
                    break
        return Minimum(self._plain(weight), weight, gradient.norm().item(), solved)

    def _newton_step(self, gradient: Tensor, p: Tensor, strength: float) -> Tensor:
        """Compute the Newton step by conjugate gradients with a diagonal preconditioner."""
        tiny = torch.finfo(torch.float64).tiny
        scale = gradient.abs().max().clamp_min(tiny)
        residual = -gradient / scale
        curvature = self.curvature(p, strength)
        step = torch.zeros_like(residual)
        towards = residual / curvature
        product = first = (residual * towards).sum()
        for _ in range(INNER):
            bent = self.hessian(p, towards, strength)
            along = (towards * bent).sum()
            if not along > 0:
                break
            step += product / along * towards
            residual = residual - product / along * bent
            downhill = residual / curvature
            before = product
            product = (residual * downhill).sum()
            if product <= FORCING**2 * first:
                break
            towards = downhill + product / before * towards
        if not self.several:
            # Adding the same amount to the scores of all classes changes no probability, so the mean over classes is
            # removed.
            step = step - step.mean(dim=0)
        return step * scale

    def _plain(self, weight: Tensor) -> Tensor:
        """Return the weights for the original features.

        A class without a training image gets the constant score -NEVER. If images can have several classes, a class that all
        training images belong to gets the constant score NEVER.
        """
        inner = weight[:, :-1]
        if self.axes is not None:
            inner = inner @ self.axes.T
        bias = weight[:, -1] - inner @ self.mean
        plain = weight.new_zeros(len(self.known), len(self.mean) + 1)
        plain[:, -1] = self.certain
        plain[self.known] = torch.cat([inner, bias[:, None]], dim=1)
        return plain


def _principal_axes(x: Tensor, mean: Tensor) -> Tensor:
    """Return the principal axes of the features as columns.

    If there are fewer images than features, only as many axes as images are returned.
    """
    if len(x) < x.shape[1]:
        parts = torch.linalg.svd(x.double() - mean, full_matrices=False)
        return parts.Vh.T
    covariance = sum(block.T @ block for block in _centered(x, mean))
    return torch.linalg.eigh(covariance).eigenvectors


def _centered(x: Tensor, mean: Tensor) -> Iterator[Tensor]:
    for block in x.split(ROWS):
        yield block.double() - mean


def _penalty(weight: Tensor, strength: float) -> Tensor:
    """Return the gradient of the L2 penalty: the strength times the weights, and 0 for the bias."""
    return F.pad(strength * weight[:, :-1], (0, 1))


def _small(step: Tensor, weight: Tensor, least: float) -> bool:
    """Return whether a step is small relative to the largest weight, or to `least` if all weights are smaller."""
    largest = weight.abs().max().clamp_min(least)
    return bool(step.abs().max() <= TOLERANCE * largest)


def scores(x: Tensor, weight: Tensor) -> Tensor:
    """Return the class scores of the features `x` in float64."""
    coefficients = weight[:, :-1]
    bias = weight[:, -1]
    blocks = [F.linear(block.double(), coefficients, bias) for block in x.split(ROWS)]
    return torch.cat(blocks)
