"""The health of a pre-training run: quantities to watch, their normal ranges, and advice outside of them."""

from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from mmairl.models.processes import norms
from mmairl.models.spectrum import rankme, spread

ROWS = 256  # images of the joined batch used for ranks and similarities, so that a large batch costs no more
FEWEST = 16  # images below which a rank would describe the batch rather than the model


@dataclass(frozen=True)
class Quantity:
    """A quantity with its ranges: good from `low` to `high`, to be watched outside, bad below `floor` or above `ceiling`.

    Attributes:
        name: Key of the curve, without the prefix `health_`.
        label: Name on pages and in logs.
        low: Least good value.
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


COLLAPSE = 'check what prevents collapse here (predictor, teacher, negatives or a loss term), and lower the learning rate'
# The reason for each range is in the comment above it. results/2026-11-21_health_ranges.md lists runs that checked the ranges.
QUANTITIES = (
    Quantity('loss', 'loss'),
    # With m the mean of the unit embeddings, the spread is at most sqrt(1 - |m|^2). Below 0.1, more than 99 % of the square
    # of every embedding is the same for all images; below 0.5 more than 75 %, or few dimensions carry the rest.
    Quantity(
        'spread_key',
        'spread of the keys',
        low=0.5,
        floor=0.1,
        below='collapse: the standard deviation of the keys is {} of 1/sqrt(d), so images look alike; '
        + COLLAPSE,
    ),
    # A predictor outputs the mean of all keys before it learns to distinguish them: sound runs start near 0.04 and rise.
    Quantity(
        'spread_query',
        'spread of the queries',
        low=0.3,
        floor=0.02,
        below='collapse: the standard deviation of the queries is {} of 1/sqrt(d), so images look alike; '
        + COLLAPSE,
    ),
    # 1 is the least and means a line. With fewer than a handful of directions, a classifier has nothing to separate.
    Quantity(
        'rank_features',
        f'RankMe of {ROWS} rows, features',
        low=8,
        floor=2,
        below='collapse: the pooled features use {} directions; check that the images differ, and '
        + COLLAPSE,
    ),
    # The mean of all queries is one direction, and the largest: a dozen classes end near 7, not 12.
    Quantity(
        'rank_embeddings',
        f'RankMe of {ROWS} rows, queries',
        low=3,
        floor=1.5,
        below='collapse: the queries use {} directions; ' + COLLAPSE,
    ),
    # With a cosine of 1 no loss is left to learn from: the views are copies, or all images have one embedding.
    Quantity(
        'positive',
        'similarity to the own key',
        low=0.1,
        high=0.995,
        ceiling=0.9999,
        below='the two views of an image are {} alike, hardly more than chance; train longer, or weaken the augmentation',
        above='the two views of an image are {} alike, so nothing is left to learn; check the augmentation',
    ),
    # Random directions have 0. From 0.9 on, the embeddings share a direction that the loss fails to remove.
    Quantity(
        'negative',
        'similarity to the negatives',
        high=0.5,
        ceiling=0.95,
        above='collapse: other images are {} alike on average; ' + COLLAPSE,
    ),
    # The nearest of tens of thousands may be near; a copy is the same image under another name.
    Quantity(
        'hardest_negative',
        'similarity to the hardest negative',
        high=0.95,
        ceiling=0.999,
        above='the nearest negative is {} alike: the data contain copies, the queue holds keys of the same images, or the '
        'embeddings have collapsed',
    ),
    # At 0, the other view of an image is no nearer than another image. Sound models need a hundred steps or more to
    # distinguish them, so this quantity alone is never bad.
    Quantity(
        'contrast',
        'own key nearer than others by',
        low=0.1,
        below="an image's other view is nearer by {} than other images, which is little; late in a run, "
        + COLLAPSE,
    ),
    Quantity('queue_steps', 'steps that renew the queue'),
    # A queue that spans an epoch contains the old key of every image as a negative.
    Quantity(
        'queue_epochs',
        'epochs that the queue spans',
        high=0.5,
        ceiling=1,
        above='the queue spans {} epochs, so an image meets its own old keys as negatives; shorten model.queue.length',
    ),
    Quantity(
        'queue_filled',
        'share of the queue that is filled',
        low=1,
        below='{} of the queue is filled; the rest is its initial noise',
    ),
    # In units of the 1 / (1 - m) steps that the teacher averages over. MoCo (He et al. 2020) tried m on 4096 keys at batch
    # 256, so 16 steps: 0.99 and more (0.16 and less) do well, 0.9 (1.6) is considerably worse, 0 (16) does not converge.
    Quantity(
        'queue_drift',
        "queue's age over the teacher's memory",
        high=1.5,
        ceiling=8,
        above='the oldest keys are {} times 1 / (1 - momentum) steps old, so another model made them than the newest; '
        'raise the momentum or shorten the queue',
    ),
    # At 0 the teacher equals the student and averages nothing; at 1 it is as far away as a teacher of zeros.
    Quantity(
        'teacher_distance',
        'distance of the teacher',
        low=1e-6,
        high=0.5,
        floor=1e-9,
        ceiling=1,
        below='the teacher is {} of the weights away from the student, so it is the student: check that the momentum is '
        'not 0',
        above='the teacher is {} of the weights away from the student: it lags behind; lower the momentum or the rate',
    ),
    # Below the resolution of float32 for weights of size 1, no step changes anything.
    Quantity(
        'gradient_norm',
        'gradient norm',
        low=1e-6,
        floor=1e-9,
        below='the gradient has a norm of {}, so the model no longer learns',
    ),
    # The rule of thumb is a thousandth a step. LARS at its peak and a stem under warm-up reach a few hundredths.
    # At a tenth, ten steps replace the weights of a stage.
    Quantity(
        'update_ratio',
        'update over weights, fastest stage',
        high=0.1,
        ceiling=0.5,
        above='a step changes the fastest stage by {} of its weights: lower the learning rate or lengthen the warm-up',
    ),
    # Other variation between steps hides up to a fifth. Beyond that, a faster loader makes a faster run.
    Quantity(
        'data_share',
        'share of time waiting for data',
        high=0.2,
        ceiling=0.5,
        above='the run waits for data for {} of the time: raise num_workers, or make the views on the device',
    ),
    Quantity('probe_accuracy', 'accuracy of the online probe'),
    Quantity('probe_held_out_accuracy', 'accuracy of the online probe on held-out images, %'),
    Quantity('knn_accuracy', 'accuracy of the online k-NN, %'),
    Quantity('knn_accuracy_on_test_images', 'accuracy of the online k-NN ON TEST IMAGES, %'),
)


def state(quantity: Quantity, value: float) -> str:
    """Return 'good', 'watch' or 'bad'. A value that is not finite is bad.

    >>> [state(Quantity('share', 'a share', high=0.2, ceiling=0.5), share) for share in (0.1, 0.3, 0.6, float('nan'))]
    ['good', 'watch', 'bad', 'bad']
    """
    if not isfinite(value) or not quantity.floor <= value <= quantity.ceiling:
        return 'bad'
    return 'good' if quantity.low <= value <= quantity.high else 'watch'


def advice(quantity: Quantity, value: float) -> str:
    """Return advice for a value outside of the good range, and '' inside."""
    if not isfinite(value):
        return f'the {quantity.label} is {value}: the run has diverged; lower the learning rate and resume from a checkpoint'
    if value < quantity.low:
        return quantity.below.format(f'{value:.3g}')
    if value > quantity.high:
        return quantity.above.format(f'{value:.3g}')
    return ''


def embedding_metrics(
    features: Tensor, q: Tensor | None, k: Tensor | None, negatives: Tensor | None
) -> dict[str, float]:
    """Return ranks, spreads and similarities of a batch."""
    values = {}
    for name, rows in (('rank_features', features), ('rank_embeddings', q)):
        if rows is not None and len(rows) >= FEWEST:
            values[name] = rank(rows[:ROWS])
    if q is not None:
        values['spread_query'] = spread(q)
        values['spread_key'] = spread(k)
        values.update(similarities(q[:ROWS], k[:ROWS], negatives))
    return values


def rank(rows: Tensor) -> float:
    """Return RankMe, or NaN for rows that are not finite, for which the decomposition would fail."""
    return rankme(rows) if rows.isfinite().all() else float('nan')


def similarities(q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, float]:
    """Return cosines of queries with their own keys and with negatives: the queue's, or else the keys of other images.

    The hardest negative of a query is its nearest. `contrast` is how much nearer the own key is than the average negative.
    """
    positive = (q * k).sum(dim=1).mean().item()
    if negatives is None:
        others = ~torch.eye(len(q), dtype=torch.bool, device=q.device)
        cosines = (q @ k.T)[others].view(len(q), -1)
    else:
        cosines = q @ negatives.T.to(q.dtype)
    if cosines.shape[1] == 0:
        return dict(positive=positive)
    negative = cosines.mean().item()
    hardest = cosines.amax(dim=1).mean().item()
    return dict(
        positive=positive, negative=negative, hardest_negative=hardest, contrast=positive - negative
    )


def distance(teacher: list[Tensor], student: list[Tensor]) -> Tensor:
    """Return |T - S| / |S| over the parameters that the teacher has."""
    difference = torch.linalg.vector_norm(norms(torch._foreach_sub(teacher, student)))
    return difference / torch.linalg.vector_norm(norms(student))
