"""The health of a pre-training run: how it is measured, what is normal, and what it means when it is not."""

from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from mmairl.models.processes import norms
from mmairl.models.spectrum import rankme, spread

ROWS = 256  # images of the joined batch that ranks and similarities are taken of, so that a large batch costs no more
FEWEST = 16  # images below which a rank would say more about the batch than about the network


@dataclass(frozen=True)
class Quantity:
    """Normal from `low` to `high`, to be watched outside of it, bad below `floor` and above `ceiling`.

    `below` and `above` say what it means to be outside, with the value where `{}` stands.
    """

    name: str
    label: str
    low: float = -inf
    high: float = inf
    floor: float = -inf
    ceiling: float = inf
    below: str = ''
    above: str = ''


COLLAPSE = 'check the predictor, the momentum and the negatives, and lower the learning rate'
# The reason for each range stands above it; docs/health.md has the short runs that they were checked with.
QUANTITIES = (
    Quantity('loss', 'loss'),
    # With m the mean of the unit embeddings it is at most sqrt(1 - |m|^2): below 0.1 more than 99 % of every embedding's
    # square is the same for all images, below 0.5 more than 75 % is, or few dimensions carry what is not.
    Quantity(
        'spread_key', 'spread of the keys', low=0.5, floor=0.1,
        below='collapse: the standard deviation of the keys is {} of 1/sqrt(d), so that images look alike; ' + COLLAPSE,
    ),
    # A predictor answers with the mean of all keys before it tells them apart: sound runs pass through 0.04 on their way up.
    Quantity(
        'spread_query', 'spread of the queries', low=0.3, floor=0.02,
        below='collapse: the standard deviation of the queries is {} of 1/sqrt(d), so that images look alike; ' + COLLAPSE,
    ),
    # 1 is a line and the least there is; with fewer than a handful of directions a classifier has nothing to separate.
    Quantity(
        'rank_features', f'RankMe of {ROWS} rows, features', low=8, floor=2,
        below='collapse: the pooled features use {} directions; check that the images differ, and ' + COLLAPSE,
    ),
    # The mean that all queries share is one direction of them, and the heaviest: a dozen classes end up near 7, not 12.
    Quantity(
        'rank_embeddings', f'RankMe of {ROWS} rows, queries', low=3, floor=1.5,
        below='collapse: the queries use {} directions; ' + COLLAPSE,
    ),
    # A cosine of 1 leaves no loss to learn from: the views are copies of one another, or all images are one point.
    Quantity(
        'positive', 'similarity to the own key', low=0.1, high=0.995, ceiling=0.9999,
        below="the two views of an image are {} alike, hardly more than chance; train on, or weaken the augmentation",
        above='the two views of an image are {} alike, so that nothing is left to learn; check the augmentation',
    ),
    # Random directions have 0; 0.9 and more is a common direction that the loss fails to push apart.
    Quantity(
        'negative', 'similarity to the negatives', high=0.5, ceiling=0.95,
        above='collapse: other images are {} alike on average; ' + COLLAPSE,
    ),
    # The nearest of tens of thousands may well be near; a copy is the image itself under another name.
    Quantity(
        'hardest_negative', 'similarity to the hardest negative', high=0.95, ceiling=0.999,
        above='the nearest negative is {} alike: the data hold copies, the queue holds keys of the same images, or all is one',
    ),
    # At 0 an image's own view is no nearer than another image. A sound network cannot tell either for its first hundred
    # steps or more, so this alone is never bad.
    Quantity(
        'contrast', 'own key nearer than others by', low=0.1,
        below="an image's other view is nearer by {} than other images: little is told apart yet; late in a run, " + COLLAPSE,
    ),
    Quantity('queue_steps', 'steps that renew the queue'),
    # A queue that holds an epoch holds every image's own old key as a negative.
    Quantity(
        'queue_epochs', 'epochs that the queue spans', high=0.5, ceiling=1,
        above="the queue spans {} epochs, so that an image meets its own old keys as negatives; shorten model.queue.length",
    ),
    Quantity(
        'queue_filled', 'share of the queue that is filled', low=1,
        below='{} of the queue is filled; the rest is the noise that it started with',
    ),
    # In units of the 1 / (1 - m) steps that the teacher averages over. MoCo (He et al. 2020) tried m on 4096 keys at batch
    # 256, so 16 steps: 0.99 and more (0.16 and less) do well, 0.9 (1.6) is considerably worse, 0 (16) does not converge.
    Quantity(
        'queue_drift', "queue's age over the teacher's memory", high=1.5, ceiling=8,
        above='the oldest keys are {} times 1 / (1 - momentum) steps old, made by another network than the newest; '
        'raise the momentum or shorten the queue',
    ),
    # At 0 the teacher is the student and averages nothing; at 1 it is as far away as a teacher of zeros.
    Quantity(
        'teacher_distance', 'distance of the teacher', low=1e-6, high=0.5, floor=1e-9, ceiling=1,
        below='the teacher is {} from the student, which makes it the student: check that the momentum is not 0',
        above='the teacher is {} of the weights away from the student: it lags behind; lower the momentum or the rate',
    ),
    # Below what float32 resolves beside weights of size 1, no step changes anything.
    Quantity(
        'gradient_norm', 'gradient norm', low=1e-6, floor=1e-9,
        below='the gradient has a norm of {}: nothing is learnt any more',
    ),
    # A rule of thumb wants a thousandth a step; LARS at its peak and a stem under warm-up reach a few hundredths.
    # At a tenth, ten steps replace a stage's weights.
    Quantity(
        'update_ratio', 'update over weights, fastest stage', high=0.1, ceiling=0.5,
        above='a step changes the fastest stage by {} of its weights: lower the learning rate or lengthen the warm-up',
    ),
    # Up to a fifth hides behind what else varies between steps; beyond, a faster loader is a faster run.
    Quantity(
        'data_share', 'share of time waiting for data', high=0.2, ceiling=0.5,
        above='{} of the time goes by waiting for data: raise num_workers, or make the views on the device',
    ),
    Quantity('probe_accuracy', 'accuracy of the online probe'),
    Quantity('knn_accuracy', 'accuracy of the online k-NN, %'),
)  # fmt: skip


def state(quantity: Quantity, value: float) -> str:
    """'good', 'watch' or 'bad'; a value that is not finite is bad.

    >>> [state(Quantity('share', 'a share', high=0.2, ceiling=0.5), share) for share in (0.1, 0.3, 0.6, float('nan'))]
    ['good', 'watch', 'bad', 'bad']
    """
    if not isfinite(value) or not quantity.floor <= value <= quantity.ceiling:
        return 'bad'
    return 'good' if quantity.low <= value <= quantity.high else 'watch'


def sentence(quantity: Quantity, value: float) -> str:
    """Explain a value outside of the normal range; empty within it."""
    if not isfinite(value):
        return f'the {quantity.label} is {value}: the run has diverged; lower the learning rate and go on from a checkpoint'
    if value < quantity.low:
        return quantity.below.format(f'{value:.3g}')
    return quantity.above.format(f'{value:.3g}') if value > quantity.high else ''


def of_batch(features: Tensor, q: Tensor | None, k: Tensor | None, negatives: Tensor | None) -> dict[str, float]:
    """Ranks, spreads and similarities of a batch."""
    parts = dict(rank_features=features) if q is None else dict(rank_features=features, rank_embeddings=q)
    values = {name: rank(rows[:ROWS]) for name, rows in parts.items() if len(rows) >= FEWEST}
    if q is not None:
        values.update(spread_query=spread(q), spread_key=spread(k), **similarities(q[:ROWS], k[:ROWS], negatives))
    return values


def rank(rows: Tensor) -> float:
    """RankMe; rows that are not finite have none, and would stop the decomposition."""
    return rankme(rows) if rows.isfinite().all() else float('nan')


def similarities(q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, float]:
    """Cosines of queries with their own keys and with negatives: the queue's, or else the other images' keys.

    The hardest negative is each query's nearest; `contrast` is how much nearer its own key is than a negative on average.
    """
    positive = (q * k).sum(dim=1).mean().item()
    if negatives is None:
        cosines = (q @ k.T)[~torch.eye(len(q), dtype=torch.bool, device=q.device)].view(len(q), -1)
    else:
        cosines = q @ negatives.T.to(q.dtype)
    if cosines.shape[1] == 0:
        return dict(positive=positive)
    negative, hardest = cosines.mean().item(), cosines.amax(dim=1).mean().item()
    return dict(positive=positive, negative=negative, hardest_negative=hardest, contrast=positive - negative)


def distance(own: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """|T - S| / |S| over the parameters that the teacher has."""
    return torch.linalg.vector_norm(norms(torch._foreach_sub(own, theirs))) / torch.linalg.vector_norm(norms(theirs))
