"""The health measures of a run equal closed forms and loops. A value outside its range comes with advice."""

from math import inf, isnan, nan

import pytest
import torch
import torch.nn.functional as F

from mmairl.engine import health
from mmairl.engine.health import QUANTITIES, advice, state

# These values were measured on Shapes. The healthy model is MoCo v2+ after 8 epochs; the collapsed
# one is a mean teacher with momentum 0 and no predictor.
SOUND = dict(
    loss=12.4,
    spread_query=0.68,
    spread_key=0.87,
    rank_features=29,
    rank_embeddings=6.8,
    positive=0.35,
)
SOUND |= dict(
    negative=0.025, hardest_negative=0.54, contrast=0.33, teacher_distance=0.03, gradient_norm=0.5
)
SOUND |= dict(
    update_ratio=0.004,
    queue_steps=4,
    queue_epochs=0.087,
    queue_filled=1,
    queue_drift=0.09,
    data_share=0.04,
)
COLLAPSED = dict(
    spread_query=0.024, spread_key=0.023, rank_features=46, rank_embeddings=2.7, positive=0.9994
)
COLLAPSED |= dict(
    negative=0.9994,
    hardest_negative=0.9998,
    contrast=0.0,
    teacher_distance=0.0,
    gradient_norm=0.006,
)


def test_collapsed_run_is_bad_for_a_named_reason():
    assert {
        q.name for q in QUANTITIES if q.name in SOUND and state(q, SOUND[q.name]) != 'good'
    } == set()
    advice_of = {
        q.name: advice(q, COLLAPSED[q.name])
        for q in QUANTITIES
        if state(q, COLLAPSED.get(q.name, 0)) == 'bad'
    }
    assert advice_of['spread_key'].startswith(
        'collapse: the spread of the keys is 0.023 (its maximum is 1)'
    )
    assert {'negative', 'teacher_distance'} <= set(advice_of)


def test_values_beyond_a_range_get_advice():
    for quantity in QUANTITIES:
        for value in (nan, inf, -inf):
            assert state(quantity, value) == 'bad' and 'diverged' in advice(quantity, value)
        assert quantity.floor <= quantity.low <= quantity.high <= quantity.ceiling
        for normal, worst, outwards in (
            (quantity.low, quantity.floor, -1e-3),
            (quantity.high, quantity.ceiling, 1e-3),
        ):
            if abs(normal) == inf:
                continue
            beyond = normal + outwards * abs(normal)
            assert (state(quantity, normal), advice(quantity, normal)) == ('good', ''), (
                quantity.name
            )
            assert state(quantity, beyond) != 'good' and f'{beyond:.3g}' in advice(
                quantity, beyond
            ), quantity.name
            if abs(worst) != inf:
                assert state(quantity, worst) != 'bad', quantity.name
                assert state(quantity, worst + outwards * abs(worst)) == 'bad', quantity.name


def batch_of(rows: torch.Tensor) -> dict[str, float]:
    return health.embedding_metrics(rows, F.normalize(rows), F.normalize(rows), None)


def test_ranks_and_spreads_of_a_batch():
    """One batch is spread out, one is collapsed to a point, one is not finite, and one is too small for a rank."""
    spread_out, one_point = batch_of(torch.eye(16)), batch_of(torch.ones(16, 4))
    assert spread_out['rank_features'] == pytest.approx(16, rel=1e-6) and spread_out[
        'spread_key'
    ] == pytest.approx(1)
    assert (
        one_point['rank_features'] == pytest.approx(1, abs=1e-6) and one_point['spread_query'] == 0
    )
    assert isnan(health.rank(torch.full((20, 4), float('inf'))))
    assert (
        not {'rank_features', 'rank_embeddings'}
        & batch_of(torch.randn(health.FEWEST - 1, 4)).keys()
    )


def test_similarities_to_the_queue():
    q = k = torch.eye(4)
    queue = torch.cat([torch.eye(4)[:2], -torch.eye(4)[:2]])
    assert health.similarities(q, k, queue) == dict(
        positive=1, negative=0, hardest_negative=0.5, contrast=1
    )
    for rows, negatives in ((q[:1], None), (q, torch.zeros(0, 4))):
        assert health.similarities(rows, rows, negatives) == dict(positive=1), (
            'negatives are measured although there are none'
        )


def test_similarities_exclude_the_own_key():
    q = F.normalize(torch.randn(5, 3, dtype=torch.float64))
    k = F.normalize(torch.randn(5, 3, dtype=torch.float64))
    measures = health.similarities(q, k, None)
    others = [[float(q[i] @ k[j]) for j in range(5) if j != i] for i in range(5)]
    assert measures['positive'] == pytest.approx(sum(float(q[i] @ k[i]) for i in range(5)) / 5)
    assert measures['negative'] == pytest.approx(sum(map(sum, others)) / 20)
    assert measures['hardest_negative'] == pytest.approx(sum(map(max, others)) / 5)
    assert measures['contrast'] == pytest.approx(measures['positive'] - measures['negative'])


def test_teacher_distance_equals_a_loop():
    students, theirs = ([torch.randn(3, 4).double(), torch.randn(5).double()] for _ in range(2))
    apart = sum(float((t - s).square().sum()) for t, s in zip(students, theirs))
    whole = sum(float(s.square().sum()) for s in theirs)
    assert health.distance(students, theirs).item() == pytest.approx((apart / whole) ** 0.5)
