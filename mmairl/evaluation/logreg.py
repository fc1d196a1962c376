"""Fit L2-regularized logistic regression on frozen features, as in BYOL's transfer table.

If each image has one class, each fit runs Newton's method until it is close to the minimum, also on
a GPU. Gradients are in float64. The linear system of each Newton step is solved by conjugate
gradients with matrix products in float32 (Nocedal and Wright 2006, ch. 7). BYOL uses L-BFGS instead,
which stops far from the minimum if the regularization is very strong or very weak. If images can
have several classes, scikit-learn fits one classifier per class.
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
from mmairl.errors import UserError
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.features import Features
from mmairl.evaluation.metrics import scores_of
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

# The exponents of BYOL's 45 strengths. Strong regularization comes first, because its solution is
# close to zero, where the first fit starts. Each later fit starts from the solutions before it.
EXPONENTS = torch.linspace(5, -6, 45, dtype=torch.float64)
STRENGTHS = tuple((10**EXPONENTS).tolist())
QUICK = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
ROWS = 65536  # number of images whose features are converted to float64 at a time
WIDEST = 8192  # above this number of features and images, principal axes would take minutes
TOLERANCE = 1e-4  # largest last step of a converged fit, relative to the largest weight
FORCING = 0.01  # relative residual at which a linear system counts as solved
STEPS = 100  # largest number of Newton steps
INNER = 300  # largest number of conjugate gradient steps per Newton step
BALANCE = 1e-5  # largest gradient of a converged fit, relative to strength times |weights|
NEVER = 1e6  # a class without a training image always gets the score -NEVER


@PROTOCOLS.register_module('logreg')
@dataclass(frozen=True)
class LogisticRegressionProtocol(FeatureProtocol):
    """Score features by L2-regularized logistic regression, as in BYOL's transfer table.

    The strength of the regularization is chosen on the config's validation images or, if there are
    none, on a part of the training images. The final fit uses all of them. A test image whose class
    has no training image counts as wrong.

    Args:
        standardise: Whether to scale features to mean 0 and standard deviation 1. Default: False.
    """

    standardise: bool = False

    validation: ClassVar = 'choose'

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        return dict(standardise=self.standardise, strengths=len(STRENGTHS))

    def score(self, split: Split) -> tuple[Scores, dict]:
        fitted = logistic_regression(
            split.train,
            split.test,
            split.val,
            split.metric,
            device=self.device,
            standardise=self.standardise,
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
        predicted: Predicted class of each test image, if images have one class.
    """

    scores: dict[str, float]
    strength: float
    held_out: dict[float, float]
    predicted: Tensor | None = None


def logistic_regression(
    train: Features,
    test: Features,
    val: Features,
    metric: str = 'top-1',
    strengths: Sequence[float] = STRENGTHS,
    device: str | torch.device = 'cpu',
    standardise: bool = False,
) -> LogisticRegression:
    """Choose the strength on validation images, fit on all other images, and score the test images.

    Args:
        train: Features of the training images.
        test: Features of the test images.
        val: Features of the validation images, which the final fit uses as well.
        metric: Name of the data set's metric.
        strengths: L2 strengths to choose from.
        device: Device of the fits.
        standardise: Whether to scale features to mean 0 and standard deviation 1.

    Raises:
        UserError: If the fits of all strengths fail to converge.
    """
    several = train.y.ndim == 2
    classes = 0 if several else int(max(part.y.max() for part in (train, val, test))) + 1

    def fits(x: Tensor, y: Tensor, chosen: Sequence[float]) -> Iterator[tuple[float, Callable]]:
        """Yield each strength whose fit converged, with the function that scores features."""
        prepare = _standardiser(x) if standardise else Tensor.float
        if several:
            found = _fits_per_class(prepare(x), y, chosen)
        else:
            found = _newton_fits(prepare(x).to(device), y.to(device), classes, chosen)
        for strength, weight in found:
            yield strength, lambda part, weight=weight: scores(prepare(part).to(device), weight)

    held_out: dict[float, float] = {}
    for strength, score in fits(train.x, train.y, sorted(strengths, reverse=True)):
        held_out[strength] = next(iter(scores_of(metric, score(val.x).cpu(), val.y).values()))
    if not held_out:
        raise UserError(
            f'logreg: no fit converged at any of {len(strengths)} regularization strengths; set '
            'standardise=True (--standardise) if the features are very large or very small',
            code='no-strength-solved',
        )
    highest = max(held_out.values())
    # On small validation sets, several strengths share the best score. The middle one is chosen,
    # because it is far from both overfitting and underfitting.
    tied = [strength for strength, score in held_out.items() if score == highest]
    best = tied[len(tied) // 2]
    x, y = torch.cat([train.x, val.x]), torch.cat([train.y, val.y])
    found = list(fits(x, y, [best]))
    if not found:
        raise UserError(
            f'logreg: the final fit at strength {best:.1e} did not converge; set standardise=True',
            code='no-strength-solved',
        )
    on_test = found[0][1](test.x).cpu()
    predicted = None if several else on_test.argmax(1)
    return LogisticRegression(scores_of(metric, on_test, test.y), best, held_out, predicted)


def _standardiser(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that scales each dimension to mean 0 and standard deviation 1.

    Constant dimensions become 0. The limit is relative, because rounding gives them a small
    standard deviation.
    """
    mean = x.mean(dim=0)
    std = x.std(dim=0)
    std = std.where(std > 1e-6 * x.abs().amax(dim=0), 1)
    return lambda values: (values - mean).div_(std)


def _fits_per_class(
    x: Tensor, y: Tensor, strengths: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Fit one binary classifier per class by scikit-learn. Labels of -1 do not count."""
    from sklearn.linear_model import LogisticRegression as Classifier  # importing it takes a second

    for strength in strengths:
        weights = x.new_zeros(y.shape[1], x.shape[1] + 1).double()
        for label, column in enumerate(y.T):
            rows = column >= 0
            target = (column[rows] == 1).numpy()
            if target.min() == target.max():
                weights[label, -1] = NEVER if target[0] else -NEVER
                continue
            model = Classifier(C=1 / (strength * len(y)), max_iter=1000, tol=TOLERANCE)
            model.fit(x[rows].double().numpy(), target)
            weights[label, :-1] = torch.from_numpy(model.coef_[0])
            weights[label, -1] = model.intercept_[0]
        yield strength, weights


def _newton_fits(
    x: Tensor, y: Tensor, classes: int, strengths: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    objective = Objective(x, y, classes)
    start = previous = None
    for strength in strengths:
        weight, solved = objective.minimize(strength, start)
        # The next fit starts from a linear extrapolation of the last two solutions.
        start = weight if previous is None else 2 * weight - previous
        previous = weight
        if solved:
            yield strength, objective.plain(weight)
        else:
            text = f'logistic regression at strength {strength:.1e} did not converge'
            print_log(text, logger='current', level=WARNING)


class Objective:
    """The mean cross-entropy on features `x` (N, D) and labels `y`, plus strength/2 |W|^2.

    The bias is not penalized. In scikit-learn's notation, the strength is 1 / (N C). Internally,
    features are centered and rotated to their principal axes. This does not change the minimum, and
    it makes the diagonal of the Hessian a good preconditioner.
    """

    def __init__(self, x: Tensor, y: Tensor, classes: int) -> None:
        target = F.one_hot(y, classes).bool()
        self.known = target.any(0)
        self.target = target[:, self.known]
        self.mean = sum(block.double().sum(0) for block in x.split(ROWS)) / len(x)
        self.axes = _principal_axes(x, self.mean) if min(x.shape) <= WIDEST else None
        size = x.shape[1] if self.axes is None else self.axes.shape[1]
        # Blocks are written in place, because joining them would need twice the memory.
        self.x = torch.ones(len(x), size + 1, device=x.device)
        for rows, block in zip(self.x.split(ROWS), _centered(x, self.mean)):
            rows[:, :-1] = block if self.axes is None else block @ self.axes

    def gradient(self, weight: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Return the gradient in float64, and the class probabilities of each image."""
        total = _penalty(weight, strength)
        probabilities = []
        for x, target in zip(self.x.split(ROWS), self.target.split(ROWS)):
            p = (x.double() @ weight.T).softmax(dim=1)
            total += (p - target.double()).T @ x.double() / len(self.x)
            probabilities.append(p)
        return total, torch.cat(probabilities)

    def hessian(self, p: Tensor, direction: Tensor, strength: float) -> Tensor:
        """Return the product of the Hessian and a direction, with matrix products in float32."""
        total = _penalty(direction, strength)
        for x, q in zip(self.x.split(ROWS), p.split(ROWS)):
            change = q * (x @ direction.T.float())
            change = change - q * change.sum(1, True)
            total += change.T.float() @ x / len(self.x)
        return total

    def curvature(self, p: Tensor, strength: float) -> Tensor:
        """Return the diagonal of the Hessian, at least `strength`.

        If all probabilities are 0 or 1, the curvature of the bias is 0.
        """
        total = _penalty(p.new_ones(p.shape[1], self.x.shape[1]), strength)
        for x, q in zip(self.x.split(ROWS), p.split(ROWS)):
            total += (q * (1 - q)).T.float() @ x.square() / len(self.x)
        return total.clamp_min(strength)

    def minimize(self, strength: float, start: Tensor | None = None) -> tuple[Tensor, bool]:
        """Run Newton's method from `start` (default: zero). Return the weights, and success."""
        weight = start
        if start is None:
            weight = self.mean.new_zeros(self.target.shape[1], self.x.shape[1])
        gradient, p = self.gradient(weight, strength)
        for _ in range(STEPS):
            if not gradient.isfinite().all():
                break
            step = self._newton_step(gradient, p, strength)
            length = 1.0
            slope = (gradient * step).sum().abs()
            while True:
                after, p = self.gradient(weight + length * step, strength)
                # Near the minimum, the objective is too flat for comparing its values.
                if (after * step).sum() <= slope / 2 or length < 1e-4:
                    break
                length /= 2
            stuck = after.norm() >= gradient.norm()
            weight = weight + length * step
            gradient = after
            small = _small(step[:, :-1], weight[:, :-1], 0) and _small(
                step[:, -1], weight[:, -1], 1
            )
            if length == 1 and small:
                balance = BALANCE * strength * weight[:, :-1].norm().clamp_min(1e-9)
                solved = bool(gradient.norm() <= balance)
                if solved or stuck:
                    return weight, solved
        return weight, False

    def _newton_step(self, gradient: Tensor, p: Tensor, strength: float) -> Tensor:
        """Compute the Newton step by conjugate gradients with a diagonal preconditioner."""
        scale = gradient.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
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
        # Adding the same amount to the scores of all classes changes no probability.
        return (step - step.mean(dim=0)) * scale

    def plain(self, weight: Tensor) -> Tensor:
        """Return the weights for the original features, (classes, D + 1). The last is the bias."""
        inner = weight[:, :-1] if self.axes is None else weight[:, :-1] @ self.axes.T
        bias = weight[:, -1] - inner @ self.mean
        plain = weight.new_zeros(len(self.known), len(self.mean) + 1)
        plain[:, -1] = -NEVER
        plain[self.known] = torch.cat([inner, bias[:, None]], dim=1)
        return plain


def _principal_axes(x: Tensor, mean: Tensor) -> Tensor:
    """Return the principal axes of the features as columns, at most as many as images."""
    if len(x) < x.shape[1]:
        return torch.linalg.svd(x.double() - mean, full_matrices=False).Vh.T
    covariance = sum(block.T @ block for block in _centered(x, mean))
    return torch.linalg.eigh(covariance).eigenvectors


def _centered(x: Tensor, mean: Tensor) -> Iterator[Tensor]:
    for block in x.split(ROWS):
        yield block.double() - mean


def _penalty(weight: Tensor, strength: float) -> Tensor:
    """Return the gradient of the L2 penalty: strength times the weights, and 0 for the bias."""
    return F.pad(strength * weight[:, :-1], (0, 1))


def _small(step: Tensor, weight: Tensor, least: float) -> bool:
    """Return whether a step is small relative to the largest weight, or to `least`."""
    return bool(step.abs().max() <= TOLERANCE * weight.abs().max().clamp_min(least))


def scores(x: Tensor, weight: Tensor) -> Tensor:
    """Return the class scores of the features `x` in float64."""
    weight = weight.to(x.device)
    blocks = [F.linear(block.double(), weight[:, :-1], weight[:, -1]) for block in x.split(ROWS)]
    return torch.cat(blocks)
