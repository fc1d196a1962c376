"""L2-regularized logistic regression on frozen features, as in BYOL's transfer table.

Each fit reaches the minimum by Newton's method with gradients in float64. Conjugate gradients with products in float32 solve
its linear systems (Nocedal and Wright 2006, ch. 7). L-BFGS, which BYOL uses, stops far from the minimum at both ends of the
grid of strengths.
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

# BYOL's 45 strengths, from strong to weak, because each fit starts from the previous one.
EXPONENTS = torch.linspace(5, -6, 45, dtype=torch.float64)
STRENGTHS = tuple((10**EXPONENTS).tolist())
QUICK = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
ROWS = 65536  # features converted to float64 at a time
WIDEST = 8192  # above this number of features and of images, principal axes would take minutes and are left out
TOLERANCE = 1e-4  # largest last step relative to the weights; with FORCING, the remaining error is a twentieth of it
FORCING = 0.01  # relative residual of each linear system
STEPS = 100  # limit of Newton's steps
INNER = 300  # limit of the conjugate gradient steps per Newton step
BALANCE = 1e-5  # largest gradient of a solved fit, relative to strength |W|
NEVER = 1e6  # minus the score of a class without a training image


@PROTOCOLS.register_module('logreg')
@dataclass(frozen=True)
class LogisticRegressionProtocol(FeatureProtocol):
    """L2-regularized logistic regression (BYOL's transfer table).

    The strength is chosen on the config's validation images, or on a held-out fifth of the training images. A test image
    whose class has no training image counts as wrong.

    Args:
        standardise: Whether to scale features to mean 0 and deviation 1. Default: False.
        seed: Seed of the choice of held-out images. Default: 0.
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
    """The result of a fit.

    Attributes:
        scores: Test scores in percent.
        strength: The L2 strength with the best validation score.
        held_out: Validation score of each strength.
        gradient: Norm of the objective's gradient at the end of each fit, by strength; the final fit has the key 0.
        predicted: Predicted class of each test image, unless images have several classes.
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
        train: Training images.
        test: Test images.
        val: Validation images. Default: a fifth of each class of the training images.
        metric: Metric of the data set.
        strengths: L2 strengths to choose from.
        device: Device of the fits.
        standardise: Whether to scale features to mean 0 and deviation 1.
        seed: Seed of the choice of held-out images.
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
        """Return the objective for these images, and the function that prepares the features of others."""
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
        start = fit.inner if previous is None else 2 * fit.inner - previous  # extrapolation
        previous = fit.inner
        gradient[strength] = fit.gradient
        if not fit.solved:
            print_log(
                f'logistic regression at strength {strength:.1e} did not converge and is left out',
                level=WARNING,
            )
            continue
        of_val = scores(x_val, fit.weight).cpu()
        on_val = scores_of(metric, of_val, val.y)
        held_out[strength] = next(iter(on_val.values()))
    if not held_out:
        raise UserError(
            f'logreg: none of {len(strengths)} strengths converged, the last with a gradient of {fit.gradient:.1e}; set '
            'standardise=True if the features are very large or very small',
            code='no-strength-solved',
        )
    highest = max(held_out.values())
    # On small validation sets, several strengths tie. The middle one is far from both over- and underfitting.
    tied = [strength for strength, score in held_out.items() if score == highest]
    best = tied[len(tied) // 2]
    del objective, x_val  # frees device memory for the larger training set
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
    """Return a function that scales each dimension to mean 0 and deviation 1, and constant dimensions to 0."""
    mean = x.mean(dim=0)
    std = x.std(dim=0)
    std = std.where(std > 1e-6, 1)
    return lambda values: (values - mean).div_(std)


@dataclass(frozen=True)
class Minimum:
    """The result of a fit: weights (classes, D + 1) with the bias last, in the axes of the features and of the objective."""

    weight: Tensor
    inner: Tensor
    gradient: float
    solved: bool


class Objective:
    """The mean cross-entropy of `x` (N, D) and `y`, plus strength/2 |W|^2. The bias is not penalized.

    scikit-learn's `C` is 1 / (N strength). If images have several classes, each class is a binary problem, and labels of -1
    do not count. Internally, features are centered and rotated to their principal axes. The minimum stays the same, and
    the diagonal of the Hessian becomes a good preconditioner.
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
        """Return the Hessian times a direction.

        Only the matrix products are in float32. In float32, 1 - p would vanish for probabilities close to 1.
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
        """Return the diagonal of the Hessian."""
        ones = p.new_ones(p.shape[1], self.x.shape[1])
        total = _penalty(ones, strength)
        for x, counted, q in self._blocks(p):
            variance = q * (1 - q) * counted
            total += variance.T.float() @ x.square() / len(self.x)
        # If all probabilities are 0 or 1, the bias has no curvature, and a division by it would give NaN.
        return total.clamp_min(strength)

    def minimise(self, strength: float, start: Tensor | None = None) -> Minimum:
        """Run Newton's method from zero or from `start` until a step is small relative to the weights."""
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
                # Near the minimum, the objective is too flat to compare its values; its slope is not.
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
        """Solve the linear system by conjugate gradients with a diagonal preconditioner."""
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
            # Shifting the scores of all classes by the same amount changes no probability.
            step = step - step.mean(dim=0)
        return step * scale

    def _plain(self, weight: Tensor) -> Tensor:
        """Return the weights in the axes of the features. Classes without a training image get a constant score."""
        inner = weight[:, :-1]
        if self.axes is not None:
            inner = inner @ self.axes.T
        bias = weight[:, -1] - inner @ self.mean
        plain = weight.new_zeros(len(self.known), len(self.mean) + 1)
        plain[:, -1] = self.certain
        plain[self.known] = torch.cat([inner, bias[:, None]], dim=1)
        return plain


def _principal_axes(x: Tensor, mean: Tensor) -> Tensor:
    """Return the principal axes as columns: all D, or with fewer images only those along which the images differ."""
    if len(x) < x.shape[1]:
        parts = torch.linalg.svd(x.double() - mean, full_matrices=False)
        return parts.Vh.T
    covariance = sum(block.T @ block for block in _centered(x, mean))
    return torch.linalg.eigh(covariance).eigenvectors


def _centered(x: Tensor, mean: Tensor) -> Iterator[Tensor]:
    for block in x.split(ROWS):
        yield block.double() - mean


def _penalty(weight: Tensor, strength: float) -> Tensor:
    """Return the weights times the strength, without the bias."""
    return F.pad(strength * weight[:, :-1], (0, 1))


def _small(step: Tensor, weight: Tensor, least: float) -> bool:
    """Return whether a step is small relative to the weights."""
    largest = weight.abs().max().clamp_min(least)
    return bool(step.abs().max() <= TOLERANCE * largest)


def scores(x: Tensor, weight: Tensor) -> Tensor:
    """Return class scores in float64."""
    coefficients = weight[:, :-1]
    bias = weight[:, -1]
    blocks = [F.linear(block.double(), coefficients, bias) for block in x.split(ROWS)]
    return torch.cat(blocks)
