"""Fit L2-regularized logistic regression on frozen features, as in BYOL's transfer table.

If each image has one class, each fit runs Newton's method until it is close to the minimum, also on
a GPU. Gradients are in float64. The linear system of each Newton step is solved by conjugate
gradients with matrix products in float32 (Nocedal and Wright 2006, ch. 7). BYOL uses L-BFGS instead,
which stops far from the minimum if the regularization is very strong or very weak. If images can
have several classes, scikit-learn fits one classifier per class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
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
        return scores, dict(standardise=self.standardise, **details)


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
    if standardise:
        deviation = train.x.std(dim=0)
        # Rounding gives constant dimensions a small standard deviation. They become 0.
        deviation[deviation <= 1e-6 * train.x.abs().amax(dim=0)] = torch.inf
        train, val, test = (
            replace(part, x=(part.x - train.x.mean(dim=0)) / deviation)
            for part in (train, val, test)
        )

    def fits(x: Tensor, y: Tensor, chosen: Sequence[float]) -> Iterator[tuple[float, Tensor]]:
        if several:
            return per_class_fits(x, y, chosen)
        return newton_fits(x.float().to(device), y.to(device), classes, chosen)

    held_out: dict[float, float] = {}
    for strength, weight in fits(train.x, train.y, sorted(strengths, reverse=True)):
        on_val = scores_of(metric, class_scores(val.x, weight), val.y)
        held_out[strength] = next(iter(on_val.values()))
    # On small validation sets, several strengths share the best score. The middle one is chosen,
    # because it is far from both overfitting and underfitting.
    highest = max(held_out.values(), default=0.0)
    tied = [strength for strength, score in held_out.items() if score == highest]
    best = tied[len(tied) // 2 : len(tied) // 2 + 1]
    final = list(fits(torch.cat([train.x, val.x]), torch.cat([train.y, val.y]), best))
    if not final:
        raise UserError(
            f'logreg: the fits at {len(strengths)} regularization strengths did not converge; set '
            'standardise=True (--settings standardise=True)',
            code='no-strength-solved',
        )
    [(strength, weight)] = final
    on_test = class_scores(test.x, weight)
    predicted = None if several else on_test.argmax(1)
    return LogisticRegression(scores_of(metric, on_test, test.y), strength, held_out, predicted)


def per_class_fits(
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


def newton_fits(
    x: Tensor, y: Tensor, classes: int, strengths: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Yield each strength whose fit converged, with the weights on the CPU."""
    objective = Objective(x, y, classes)
    start = previous = None
    for strength in strengths:
        weight, solved = objective.minimize(strength, start)
        # The next fit starts from a linear extrapolation of the last two solutions.
        start = weight if previous is None else 2 * weight - previous
        previous = weight
        if solved:
            yield strength, objective.plain(weight).cpu()
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
        target = F.one_hot(y, classes).double()
        self.known = target.any(0)
        self.target = target[:, self.known]
        self.mean = x.double().mean(0)
        centered = x.double() - self.mean
        if len(x) < x.shape[1]:
            self.axes = torch.linalg.svd(centered, full_matrices=False).Vh.T
        else:
            self.axes = torch.linalg.eigh(centered.T @ centered).eigenvectors
        self.x = F.pad((centered @ self.axes).float(), (0, 1), value=1.0)

    def gradient(self, weight: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """Return the gradient in float64, and the class probabilities of each image."""
        x = self.x.double()
        p = (x @ weight.T).softmax(dim=1)
        return penalty(weight, strength) + (p - self.target).T @ x / len(x), p

    def hessian(self, p: Tensor, direction: Tensor, strength: float) -> Tensor:
        """Return the product of the Hessian and a direction, with matrix products in float32."""
        change = p * (self.x @ direction.T.float())
        change = change - p * change.sum(1, True)
        return penalty(direction, strength) + change.T.float() @ self.x / len(self.x)

    def curvature(self, p: Tensor, strength: float) -> Tensor:
        """Return the diagonal of the Hessian, at least `strength`.

        If all probabilities are 0 or 1, the curvature of the bias is 0.
        """
        diagonal = (p * (1 - p)).T.float() @ self.x.square() / len(self.x)
        return (diagonal.double() + penalty(torch.ones_like(diagonal), strength)).clamp_min(
            strength
        )

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
            largest = weight[:, :-1].abs().max()
            small = step[:, :-1].abs().max() <= TOLERANCE * largest
            bias = weight[:, -1].abs().max().clamp_min(1)
            if length == 1 and small and step[:, -1].abs().max() <= TOLERANCE * bias:
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
        inner = weight[:, :-1] @ self.axes.T
        bias = weight[:, -1] - inner @ self.mean
        plain = weight.new_zeros(len(self.known), len(self.mean) + 1)
        plain[:, -1] = -NEVER
        plain[self.known] = torch.cat([inner, bias[:, None]], dim=1)
        return plain


def penalty(weight: Tensor, strength: float) -> Tensor:
    """Return the gradient of the L2 penalty: strength times the weights, and 0 for the bias."""
    return F.pad(strength * weight[:, :-1], (0, 1))


def class_scores(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.double(), weight[:, :-1], weight[:, -1])
