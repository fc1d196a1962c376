"""Fit L2-regularized logistic regression on frozen features, as in BYOL's transfer table.

If each image has one class, each fit runs Newton's method in a trust region until it is close to the
minimum, also on a GPU. BYOL uses L-BFGS instead, which stops far from the minimum if the
regularization is very strong or very weak. If images can have several classes, scikit-learn fits
one classifier per class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
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
TOLERANCE = 1e-7  # largest gradient of a converged fit
STEPS = 200  # largest number of Newton steps
NEVER = 1e6  # score by which a class is never predicted


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
            model = Classifier(C=1 / (strength * len(y)), max_iter=1000)
            model.fit(x[rows].double().numpy(), target)
            weights[label, :-1] = torch.from_numpy(model.coef_[0])
            weights[label, -1] = model.intercept_[0]
        yield strength, weights


def newton_fits(
    x: Tensor, y: Tensor, classes: int, strengths: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Yield each strength whose fit converged, with the weights (classes, D + 1) on the CPU.

    The objective is the mean cross-entropy on features `x` (N, D) and labels `y`, plus
    strength/2 |W|^2; the bias is not penalized. In scikit-learn's notation, the strength is
    1 / (N C). Features are centered and rotated to their principal axes, which does not change the
    minimum. A class without a training image always gets the score -NEVER.
    """
    from scipy.optimize import minimize

    target = F.one_hot(y, classes).double()
    known = target.any(0)
    target = target[:, known]
    mean = x.double().mean(0)
    centered = x.double() - mean
    if len(x) < x.shape[1]:
        axes = torch.linalg.svd(centered, full_matrices=False).Vh.T
    else:
        axes = torch.linalg.eigh(centered.T @ centered).eigenvectors
    rotated = F.pad(centered @ axes, (0, 1), value=1.0)
    weight = rotated.new_zeros(target.shape[1], rotated.shape[1])
    for strength in strengths:
        penalty = rotated.new_tensor([strength] * axes.shape[1] + [0.0])
        # In these units, the diagonal of the Hessian is about constant.
        unit = (rotated.square().mean(0) / len(weight) + penalty).rsqrt()
        problem = Objective(rotated * unit, target, penalty * unit**2)
        found = minimize(
            problem.loss,
            (weight / unit).cpu().numpy().ravel(),
            jac=True,
            hessp=problem.hessian,
            method='trust-ncg',
            options=dict(gtol=TOLERANCE, maxiter=STEPS),
        )
        weight = problem.tensor(found.x) * unit
        if not found.success and np.abs(found.jac).max() > 100 * TOLERANCE:
            text = f'logistic regression at strength {strength:.1e} did not converge'
            print_log(text, logger='current', level=WARNING)
            continue
        plain = weight.new_zeros(classes, x.shape[1] + 1)
        plain[:, -1] = -NEVER
        inner = weight[:, :-1] @ axes.T
        plain[known] = torch.cat([inner, (weight[:, -1] - inner @ mean)[:, None]], dim=1)
        yield strength, plain.cpu()


class Objective:
    """The regularized mean cross-entropy, as functions of flat weights for scipy."""

    def __init__(self, x: Tensor, target: Tensor, penalty: Tensor) -> None:
        self.x = x
        self.narrow = x.float()  # products of the Hessian are computed in float32
        self.target = target
        self.penalty = penalty

    def tensor(self, flat: np.ndarray) -> Tensor:
        return torch.from_numpy(flat).to(self.x).view(self.target.shape[1], -1)

    def loss(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss and its gradient, in float64."""
        weight = self.tensor(flat)
        logits = self.x @ weight.T
        log_p = logits.log_softmax(dim=1)
        loss = -(log_p * self.target).sum(1).mean() + (self.penalty * weight**2).sum() / 2
        gradient = (log_p.exp() - self.target).T @ self.x / len(self.x) + self.penalty * weight
        return loss.item(), gradient.cpu().numpy().ravel()

    def hessian(self, flat: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the product of the Hessian and a direction."""
        direction = self.tensor(direction)
        p = (self.x @ self.tensor(flat).T).softmax(dim=1)
        change = p * (self.narrow @ direction.T.float())
        change = change - p * change.sum(1, True)
        product = change.T.float() @ self.narrow / len(self.x) + self.penalty * direction
        return product.double().cpu().numpy().ravel()


def class_scores(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.double(), weight[:, :-1], weight[:, -1])
