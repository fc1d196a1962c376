"""The regression heads compute the same values as plain formulas."""

import pytest
import torch
import torch.nn.functional as F

from mmairl.models.heads.regression import RegressionHead


@pytest.mark.parametrize('weight', [1.0, 0.25])
def test_regression_is_distance_of_unit_vectors(weight):
    """With a weight of 0.25, RegressionHead's loss is SimSiam's loss plus 1."""
    (q, p), (k, j) = (
        [3 * torch.randn(4, 6, dtype=torch.float64) for _ in range(2)] for _ in range(2)
    )
    loss = RegressionHead(weight)({0: q, 1: p}, {0: k, 1: j}, None)['loss']
    distances = [
        (F.normalize(a, dim=1) - F.normalize(b, dim=1)).square().sum() / 4
        for a, b in ((q, j), (p, k))
    ]
    torch.testing.assert_close(loss, weight * sum(distances), atol=1e-12, rtol=1e-12)
    if weight == 0.25:
        simsiam = -(torch.cosine_similarity(q, j).mean() + torch.cosine_similarity(p, k).mean()) / 2
        torch.testing.assert_close(loss, 1 + simsiam, atol=1e-12, rtol=1e-12)


def test_rows_are_normalized_in_float32():
    q = torch.ones(2, 4096, dtype=torch.bfloat16)
    results = RegressionHead()({0: q}, {1: q}, None)
    assert results['loss'].dtype == torch.float32 and abs(results['loss']) < 1e-5
