"""The linear probe: L2-regularised multinomial logistic regression on frozen, standardised features.

The strength is chosen on held-out training images; the test set is looked at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.features import Features

# From strong to weak, so that each fit starts from the one before it.
STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
HELD_OUT = 0.2
SEARCH = 50  # iterations for a strength on trial, which starts from its neighbour's solution


@dataclass(frozen=True)
class LinearProbe:
    """Test top-1 in percent, the L2 strength it was reached with, and the held-out top-1 of every strength tried."""

    accuracy: float
    strength: float
    held_out: dict[float, float]


def linear_probe(
    train: Features,
    test: Features,
    strengths: Sequence[float] = STRENGTHS,
    device: str | torch.device = 'cpu',
    seed: int = 0,
) -> LinearProbe:
    """Choose the strength on a fifth of the training set, fit again on all of it, look at the test set once."""
    classes = int(train.y.max()) + 1
    fit_part, held_part = split_by_class(train.y, seed)
    x, y = train.x.to(device), train.y.to(device)
    mean, std = standard(x[fit_part])
    x_fit, x_held = ((x[part] - mean) / std for part in (fit_part, held_part))
    weight, held_out = None, {}
    for strength in sorted(strengths, reverse=True):
        weight = fit(x_fit, y[fit_part], classes, strength, weight, iterations=SEARCH)
        held_out[strength] = top1(x_held, y[held_part], weight)
    best = max(held_out, key=held_out.get)
    mean, std = standard(x)
    weight = fit((x - mean) / std, y, classes, best, start=weight)
    return LinearProbe(top1((test.x.to(device) - mean) / std, test.y.to(device), weight), best, held_out)


def split_by_class(y: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions to fit on and positions held out, a fifth of every class and at least one of each."""
    generator = torch.Generator().manual_seed(seed)
    fit_part, held_part = [], []
    for label in y.unique():
        members = (y == label).nonzero().flatten()
        if len(members) < 2:
            raise UserError(f'class {int(label)} has one training image; the linear probe holds some out and needs two')
        members = members[torch.randperm(len(members), generator=generator)]
        held = max(1, int(HELD_OUT * len(members)))
        held_part.append(members[:held])
        fit_part.append(members[held:])
    return torch.cat(fit_part), torch.cat(held_part)


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

    The bias is not penalised; scikit-learn's `C` is 1 / (N strength).
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
        loss = F.cross_entropy(scores(x, weight), y) + strength / 2 * weight[:, :-1].square().sum()
        loss.backward()
        return loss

    solver.step(objective)
    return weight.detach()


def scores(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight[:, :-1], weight[:, -1])


def top1(x: Tensor, y: Tensor, weight: Tensor) -> float:
    return 100 * (scores(x, weight).argmax(dim=1) == y).float().mean().item()
