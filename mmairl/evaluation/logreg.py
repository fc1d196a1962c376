"""L2-regularised logistic regression on frozen, standardised features by L-BFGS, as in BYOL's transfer table.

The strength is chosen on validation images; the test set is looked at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.data.splits import split_by_class
from mmairl.evaluation.features import Features
from mmairl.evaluation.metrics import scores_of

# BYOL's 45 strengths, from strong to weak, so that each fit starts from the one before it.
STRENGTHS = tuple((10 ** torch.linspace(5, -6, 45, dtype=torch.float64)).tolist())
QUICK = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
SEARCH = 50  # iterations for a strength on trial, which starts from its neighbour's solution
ROWS = 65536  # of the features at a time, so that class scores of ImageNet need no memory of their own


@dataclass(frozen=True)
class LogisticRegression:
    """Test scores in percent, the L2 strength they were reached with, and the validation score of every strength."""

    scores: dict[str, float]
    strength: float
    held_out: dict[float, float]


def logistic_regression(
    train: Features,
    test: Features,
    val: Features | None = None,
    metric: str = 'top-1',
    strengths: Sequence[float] = STRENGTHS,
    device: str | torch.device = 'cpu',
    seed: int = 0,
) -> LogisticRegression:
    """Choose the strength on `val`, or a fifth of the training set, fit again on both, look at the test set once."""
    if val is None:
        fit_part, held_part = split_by_class(train.y, seed)
        train, val = (Features(train.x[part], train.y[part]) for part in (fit_part, held_part))
    classes = train.y.shape[1] if train.y.ndim == 2 else int(max(train.y.max(), val.y.max())) + 1
    x, y = train.x.to(device), train.y.to(device)
    mean, std = standard(x)
    x, x_val = (x - mean) / std, (val.x.to(device) - mean) / std
    weight, held_out = None, {}
    for strength in sorted(strengths, reverse=True):
        weight = fit(x, y, classes, strength, weight, iterations=SEARCH)
        found = scores_of(metric, scores(x_val, weight).cpu(), val.y)
        held_out[strength] = next(iter(found.values()))
    # Small validation sets leave ties: the middle one is neither at the edge of vanishing nor of overfitting.
    tied = [strength for strength, score in held_out.items() if score == max(held_out.values())]
    best = tied[len(tied) // 2]
    x, y = torch.cat([train.x, val.x]).to(device), torch.cat([train.y, val.y]).to(device)
    mean, std = standard(x)
    weight = fit((x - mean) / std, y, classes, best)
    found = scores_of(metric, scores((test.x.to(device) - mean) / std, weight).cpu(), test.y)
    return LogisticRegression(found, best, held_out)


def standard(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation per dimension; a constant dimension is left at zero rather than blown up."""
    std = x.std(dim=0)
    return x.mean(dim=0), torch.where(std > 1e-6, std, torch.ones_like(std))


def fit(
    x: Tensor,
    y: Tensor,
    classes: int,
    strength: float,
    start: Tensor | None = None,
    tolerance: float = 1e-5,
    iterations: int = 300,
) -> Tensor:
    """Minimise mean cross-entropy + strength/2 |W|^2 by L-BFGS; returns (classes, D + 1), the bias in the last column.

    The bias is not penalised; scikit-learn's `C` is 1 / (N strength). Where an image has several labels each class is
    its own yes or no.
    """
    weight = x.new_zeros(classes, x.shape[1] + 1) if start is None else start.clone()
    weight.requires_grad_()
    solver = torch.optim.LBFGS(
        [weight],
        max_iter=iterations,
        history_size=20,
        tolerance_grad=tolerance,
        tolerance_change=1e-4 * tolerance,
        line_search_fn='strong_wolfe',
    )

    def objective() -> Tensor:
        solver.zero_grad()
        loss = strength / 2 * weight[:, :-1].square().sum()
        loss.backward()
        loss = loss.detach()
        for x_block, y_block in zip(x.split(ROWS), y.split(ROWS)):
            part = error(scores(x_block, weight), y_block) / len(x)
            part.backward()
            loss += part.detach()
        return loss

    solver.step(objective)
    return weight.detach()


def error(found: Tensor, y: Tensor) -> Tensor:
    """The sum over images of the cross-entropy, where a label of -1 is not counted."""
    if y.ndim == 1:
        return F.cross_entropy(found, y, reduction='sum')
    each = F.binary_cross_entropy_with_logits(found, y.clamp(min=0).to(found), reduction='none')
    return (each * (y >= 0)).sum()


def scores(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight[:, :-1], weight[:, -1])
