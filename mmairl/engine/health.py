"""The health of a pre-training run: quantities, their normal ranges, and advice for values outside."""

from math import inf, isfinite
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from mmairl.io import read_yaml
from mmairl.models.processes import norms
from mmairl.models.spectrum import rankme, spread

ROWS = 256  # maximum number of images for ranks and similarities, which bounds their cost
FEWEST = 16  # minimum number of images for a rank, below which it would describe the batch rather than the model


class Quantity(msgspec.Struct, frozen=True):
    """A quantity of health.yaml with its ranges.

    Attributes:
        name: Key of the curve, without the prefix `health_`.
        label: Name on pages and in logs.
        low: Smallest good value.
        high: Largest good value.
        floor: Value below which the quantity is bad.
        ceiling: Value above which the quantity is bad.
        below: Advice for values below `low`, with `{}` in place of the value.
        above: Advice for values above `high`, with `{}` in place of the value.
    """

    name: str
    label: str
    low: float = -inf
    high: float = inf
    floor: float = -inf
    ceiling: float = inf
    below: str = ''
    above: str = ''


AGAINST_COLLAPSE = (
    'check what prevents collapse here (predictor, teacher, negatives or a loss term), and lower '
    'the learning rate'
)
QUANTITIES = read_yaml(Path(__file__).with_suffix('.yaml'), tuple[Quantity, ...])


def state(quantity: Quantity, value: float) -> str:
    """Return 'good', 'watch' or 'bad'. A value that is not finite is bad.

    >>> [state(Quantity('share', 'a share', high=0.2, ceiling=0.5), share) for share in (0.1, 0.3, 0.6, float('nan'))]
    ['good', 'watch', 'bad', 'bad']
    """
    if not isfinite(value) or not quantity.floor <= value <= quantity.ceiling:
        return 'bad'
    return 'good' if quantity.low <= value <= quantity.high else 'watch'


def advice(quantity: Quantity, value: float) -> str:
    """Return advice for a value outside the good range, or ''."""
    if not isfinite(value):
        return f'the run has diverged: {quantity.label} is {value}; lower the learning rate and resume from a checkpoint'
    if state(quantity, value) == 'good':
        return ''
    text = quantity.below if value < quantity.low else quantity.above
    return text.format(f'{value:.3g}', against_collapse=AGAINST_COLLAPSE)


def embedding_metrics(
    features: Tensor, q: Tensor | None, k: Tensor | None, negatives: Tensor | None
) -> dict[str, float]:
    """Return ranks, spreads and similarities of a batch.

    Ranks and spreads are computed on the host. On a GPU, the decomposition would load cuSOLVER, and reading each value
    would wait for the GPU.
    """
    values = {}
    for name, rows in (('rank_features', features), ('rank_embeddings', q)):
        if rows is not None and len(rows) >= FEWEST:
            values[name] = rank(rows[:ROWS].cpu())
    if q is not None:
        values['spread_query'] = spread(q.cpu())
        values['spread_key'] = spread(k.cpu())
        values.update(similarities(q[:ROWS], k[:ROWS], negatives))
    return values


def rank(rows: Tensor) -> float:
    """Return RankMe, or NaN if a row is not finite, because the decomposition would fail."""
    return rankme(rows) if rows.isfinite().all() else float('nan')


def similarities(q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, float]:
    """Return cosines of queries with the keys of their images (positives) and with negatives.

    Without a queue, the keys of the other images are the negatives. The hardest negative of a query is the nearest one.
    `contrast` is the mean cosine of positives minus that of negatives.
    """
    positive = (q * k).sum(dim=1).mean()
    if negatives is None:
        others = ~torch.eye(len(q), dtype=torch.bool, device=q.device)
        cosines = (q @ k.T)[others].view(len(q), -1)
    else:
        cosines = q @ negatives.T.to(q.dtype)
    if cosines.shape[1] == 0:
        return dict(positive=positive.item())
    means = torch.stack([positive, cosines.mean(), cosines.amax(dim=1).mean()])
    positive, negative, hardest = means.tolist()  # waits for the device once
    return dict(
        positive=positive, negative=negative, hardest_negative=hardest, contrast=positive - negative
    )


def distance(teacher: list[Tensor], student: list[Tensor]) -> Tensor:
    """Return |T - S| / |S| over the teacher's parameters T and the student's counterparts S."""
    difference = torch.linalg.vector_norm(norms(torch._foreach_sub(teacher, student)))
    return difference / torch.linalg.vector_norm(norms(student))
