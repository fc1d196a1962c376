"""The health of a pre-training run: the measured quantities, their good ranges, and advice for values out of range."""

from math import inf, isfinite
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from mmairl.io import read_yaml
from mmairl.models.processes import norms
from mmairl.models.spectrum import rankme, spread

# Ranks and similarities use at most this number of images, which limits the time that they take.
ROWS = 256
# With fewer images than this, a rank would describe the batch rather than the model, so it is not computed.
FEWEST = 16


class Quantity(msgspec.Struct, frozen=True):
    """A quantity of health.yaml with its ranges.

    Attributes:
        name: Key of the curve, without the prefix `health_`.
        label: Name on pages and in logs.
        low: Smallest good value.
        high: Largest good value.
        floor: Values below this limit are bad.
        ceiling: Values above this limit are bad.
        below: Advice for values below `low`. `{}` is replaced by the value.
        above: Advice for values above `high`. `{}` is replaced by the value.
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
    'check the part of the method that prevents collapse (predictor, teacher, negatives or a loss '
    'term), and lower the learning rate'
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
    """Return advice for a value outside the good range, or '' for a good value."""
    if not isfinite(value):
        return f'the run has diverged: {quantity.label} is {value}; lower the learning rate and resume from a checkpoint'
    if state(quantity, value) == 'good':
        return ''
    text = quantity.below if value < quantity.low else quantity.above
    return text.format(f'{value:.3g}', against_collapse=AGAINST_COLLAPSE)


def embedding_metrics(
    features: Tensor, q: Tensor | None, k: Tensor | None, negatives: Tensor | None
) -> dict[str, float]:
    """Return ranks, spreads and similarities of a batch, given its features, queries `q`, keys `k` and negatives.

    Ranks and spreads are computed on the CPU. On a GPU, the matrix decomposition would load cuSOLVER, and the CPU would wait
    for the GPU at every value that it reads.
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
    """Return RankMe of the rows. Return NaN if a row is not finite, because the matrix decomposition would fail."""
    return rankme(rows) if rows.isfinite().all() else float('nan')


def similarities(q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, float]:
    """Return mean cosines of the queries with the keys of the same images (positives) and with negatives.

    Without a queue, the negatives of a query are the keys of the other images in the batch. The hardest negative of a query
    is the one that is most similar to it. `contrast` is the mean cosine with positives minus the mean cosine with negatives.
    """
    positive = (q * k).sum(dim=1).mean()
    if negatives is not None:
        cosines = q @ negatives.T.to(q.dtype)
    else:
        others = ~torch.eye(len(q), dtype=torch.bool, device=q.device)
        cosines = (q @ k.T)[others].view(len(q), -1)
    if cosines.shape[1] == 0:
        return dict(positive=positive.item())
    means = torch.stack([positive, cosines.mean(), cosines.amax(dim=1).mean()])
    # All values are read at once, so that the CPU waits for the device only once.
    positive, negative, hardest = means.tolist()
    return dict(
        positive=positive, negative=negative, hardest_negative=hardest, contrast=positive - negative
    )


def distance(weights: list[Tensor], others: list[Tensor]) -> Tensor:
    """Return |W - O| / |O| for several tensors W and the corresponding tensors O."""
    difference = norms(torch._foreach_sub(weights, others)).norm()
    return difference / norms(others).norm().clamp_min(1e-12)
