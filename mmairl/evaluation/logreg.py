"""Fit L2-regularized logistic regression on frozen features, as in BYOL's transfer table.

If each image has one class, each fit runs Newton's method until it is close to the minimum, also on
a GPU. BYOL uses L-BFGS instead, which stops far from the minimum if the regularization is very
strong or very weak. If images can have several classes, there is one binary fit per class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.checkpoints.load import warn
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.metrics import scores_of
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

# The exponents of BYOL's 45 strengths. Strong regularization comes first, because its solution is
# close to zero, where the first fit starts. Each later fit starts from the solutions before it.
EXPONENTS = torch.linspace(5, -6, 45, dtype=torch.float64)
STRENGTHS = tuple((10**EXPONENTS).tolist())
BALANCE = 1e-5  # a fit has converged if its gradient is this small, relative to that of the penalty
STEPS = 100  # largest number of Newton steps
HALVINGS = 14  # largest number of times that the line search halves a Newton step
INNER = 300  # largest number of conjugate gradient steps per Newton step
LARGEST = 2**28  # largest number of entries of the Hessian's blocks, which take 2 GiB
FORCING = 0.01  # relative residual at which a linear system counts as solved
NEVER = 1e6  # score by which a class is never predicted


@PROTOCOLS.register_module('logreg')
@dataclass(frozen=True)
class LogisticRegression(FeatureProtocol):
    """Score features by L2-regularized logistic regression, as in BYOL's transfer table.

    The strength of the regularization is chosen on the config's validation images or, if there are
    none, on a part of the training images. The final fit uses all of them. A test image whose class
    has no training image counts as wrong.
    """

    validation: ClassVar = 'choose'

    def score(self, split: Split) -> tuple[Scores, dict]:
        """Choose the strength on validation images, fit on all other images, and score the test images."""
        train, test, val = split.train, split.test, split.val
        several = train.y.ndim == 2
        fits = per_class_fits if several else newton_fits
        classes = int(max(part.y.max() for part in (train, val, test))) + 1
        held_out = {}
        weights = fits(train.x.to(self.device), train.y, STRENGTHS, classes)
        for strength, weight in zip(STRENGTHS, weights):
            scores = scores_of(split.metric, class_scores(val.x, weight), val.y)
            held_out[strength], *_ = scores.values()
        # On small validation sets, several strengths share the best score. The middle one is
        # chosen, because it is far from both overfitting and underfitting.
        highest = max(held_out.values())
        tied = [strength for strength, score in held_out.items() if score == highest]
        best = tied[len(tied) // 2]
        x = torch.cat([train.x, val.x]).to(self.device)
        [weight] = fits(x, torch.cat([train.y, val.y]), [best], classes)
        on_test = class_scores(test.x, weight)
        scores = scores_of(split.metric, on_test, test.y)
        predicted = None if several else on_test.argmax(1)
        details = dict(strength=best, held_out=held_out, predicted=predicted)
        return {f'logistic regression, {name}': score for name, score in scores.items()}, details


def per_class_fits(
    x: Tensor, y: Tensor, strengths: Sequence[float], classes: int
) -> Iterator[Tensor]:
    """Fit one binary classifier per column of labels. Labels of -1 do not count."""
    columns = []
    for column in y.T:
        rows = column >= 0
        # Both classes have weights, which share the penalty, so the strength is doubled.
        doubled = [2 * len(y) / int(rows.sum()) * strength for strength in strengths]
        fits = newton_fits(x[rows], (column[rows] == 1).long(), doubled, classes)
        columns.append([weight[1] - weight[0] for weight in fits])
    return map(torch.stack, zip(*columns))


def newton_fits(x: Tensor, y: Tensor, strengths: Sequence[float], classes: int) -> Iterator[Tensor]:
    """Minimize the mean cross-entropy plus strength/2 |W|^2 for each strength.

    Yield the weights (classes, D + 1). The last column is the bias, which is not penalized. In
    scikit-learn's notation, the strength is 1 / (N C). Internally, features are centered and
    rotated to their principal axes. This does not change the minimum, and it makes the diagonal of
    the Hessian a good preconditioner.

    A class without a training image always gets the score -NEVER.
    """
    target = F.one_hot(y.to(x.device), classes).double()
    known = target.any(0)
    x = x.double()
    mean = x.mean(0)
    centered = x - mean
    if len(x) < x.shape[1]:
        axes = torch.linalg.svd(centered, full_matrices=False).Vh.T
    else:
        variances, axes = torch.linalg.eigh(centered.T @ centered)
        # Weights along axes without variance are zero. Gray pixels in three channels have many.
        axes = axes[:, variances >= 1e-12 * variances[-1]]
    fit = Fit(F.pad(centered @ axes, (0, 1), value=1.0), target[:, known])
    weight = before = x.new_zeros(fit.target.shape[1], fit.x.shape[1])
    for strength in strengths:
        # The fit starts from a linear extrapolation of the last two solutions.
        before, weight = weight, fit.minimum(2 * weight - before, strength)
        inner = weight[:, :-1] @ axes.T
        plain = x.new_zeros(classes, x.shape[1] + 1)
        plain[:, -1] = -NEVER
        plain[known] = torch.cat([inner, (weight[:, -1] - inner @ mean)[:, None]], dim=1)
        yield plain.cpu()


class Fit:
    """Newton's method for logistic regression. Each step is solved by conjugate gradients.

    Gradients are in float64, and the matrix products of the Hessian are in float32. The diagonal of
    the Hessian preconditions the first steps. Weak regularization of correlated features would need
    many thousands of them. Whenever the steps have cost about as much as factorizing the Hessian's
    block of each class, the blocks are factorized, and precondition the next steps.
    """

    def __init__(self, x: Tensor, target: Tensor) -> None:
        self.x = x
        self.narrow = x.float()
        self.target = target
        self.factors: Tensor | None = None
        self.steps = 0  # the conjugate gradient steps since the last factorization

    def minimum(self, weight: Tensor, strength: float) -> Tensor:
        """Return the weights that minimize the loss, or warn that the fit does not converge."""
        self.penalty = self.x.new_full(self.x.shape[1:], strength)
        self.penalty[-1] = 0
        gradient, p = self.gradient(weight)
        for _ in range(STEPS):
            step = self.newton_step(gradient, p)
            slope = (gradient * step).sum().abs()
            # Near the minimum, the loss is too flat to compare its values, so slopes are compared.
            for halving in range(HALVINGS):
                candidate = weight + 0.5**halving * step
                gradient, p = self.gradient(candidate)
                if (gradient * step).sum() <= slope / 2:
                    break
            weight = candidate
            if gradient.norm() <= BALANCE * (self.penalty * weight).norm():
                return weight
        warn(f'logistic regression at strength {strength:.1e} did not converge')
        return weight

    def gradient(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient and the class probabilities of each image."""
        p = (self.x @ weight.T).softmax(dim=1)
        return (p - self.target).T @ self.x / len(p) + self.penalty * weight, p

    def newton_step(self, gradient: Tensor, p: Tensor) -> Tensor:
        width = self.x.shape[1]
        if self.steps > 2 * width and gradient.numel() * width <= LARGEST:
            self.factors, self.steps = self.factorize(p), 0
        # If all probabilities are 0 or 1, the curvature of the bias is 0.
        curvature = (p * (1 - p)).T.float() @ self.narrow.square() / len(p) + self.penalty
        curvature = curvature.clamp_min(self.penalty[0])
        step = torch.zeros_like(gradient)
        residual = -gradient
        towards = self.precondition(residual, curvature)
        product = first = (residual * towards).sum()
        for _ in range(INNER):
            bent = self.hessian(p, towards)
            length = product / (towards * bent).sum()
            step += length * towards
            residual = residual - length * bent
            downhill = self.precondition(residual, curvature)
            self.steps += 1
            before, product = product, (residual * downhill).sum()
            if not product > FORCING**2 * first:
                break
            towards = downhill + product / before * towards
        # The same change of the scores of all classes changes no probability.
        return step - step.mean(dim=0)

    def precondition(self, residual: Tensor, curvature: Tensor) -> Tensor:
        if self.factors is None:
            return residual / curvature
        return torch.cholesky_solve(residual[..., None], self.factors)[..., 0]

    def factorize(self, p: Tensor) -> Tensor:
        """Return the Cholesky factor of each class's block, in which the bias is penalized, too."""
        curvature = (p * (1 - p) / len(p)).T
        blocks = torch.stack([(row[:, None] * self.x).T @ self.x for row in curvature])
        smallest = 1e-12 * blocks.max()  # far above the rounding errors
        blocks.diagonal(dim1=1, dim2=2).add_(self.penalty[0].maximum(smallest))
        return torch.linalg.cholesky(blocks)

    def hessian(self, p: Tensor, direction: Tensor) -> Tensor:
        """Return the product of the Hessian and a direction."""
        change = p * (self.narrow @ direction.T.float())
        change = change - p * change.sum(1, True)
        return change.T.float() @ self.narrow / len(p) + self.penalty * direction


def class_scores(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.double(), weight[:, :-1], weight[:, -1])
