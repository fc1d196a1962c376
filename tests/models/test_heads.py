"""The losses against plain float64 re-derivations, value and gradient."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.errors import UserError
from mmairl.models.heads import ContrastiveHead, RegressionHead


def rows(count: int) -> Tensor:
    """As a network gives them, of any length."""
    return 3 * torch.randn(count, 6, dtype=torch.float64)


def info_nce(query: Tensor, key: Tensor, bank: Tensor, temperature: float) -> Tensor:
    """Eq. 1 as printed, of unit vectors, one sample after the other."""
    query, key = F.normalize(query, dim=1), F.normalize(key, dim=1)
    total = torch.zeros((), dtype=torch.float64)
    for q, k in zip(query, key):
        top = torch.exp(q @ k / temperature)
        total = total - torch.log(top / (top + sum(torch.exp(q @ n / temperature) for n in bank)))
    return total / len(query)


@pytest.mark.parametrize('temperature,batch,negatives', [(0.07, 4, 9), (1.0, 1, 1)])
def test_info_nce_and_its_gradient_equal_the_printed_formula(temperature, batch, negatives):
    q = [rows(batch).requires_grad_() for _ in range(2)]
    k, bank = [rows(batch) for _ in range(2)], F.normalize(rows(negatives), dim=1)
    expected = info_nce(q[0], k[1], bank, temperature) + info_nce(q[1], k[0], bank, temperature)
    wanted = torch.autograd.grad(expected, q)
    found = ContrastiveHead(temperature)(dict(enumerate(q)), dict(enumerate(k)), bank)
    torch.testing.assert_close(found['loss'], expected, atol=1e-12, rtol=1e-12)
    for got, want in zip(torch.autograd.grad(found['loss'], q), wanted):
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('weight', [1.0, 0.25])
def test_the_regression_is_the_squared_distance_of_unit_vectors(weight):
    """A quarter of it, both directions summed, is 1 more than SimSiam's loss."""
    (q, p), (k, j) = ([rows(4).requires_grad_() for _ in range(2)] for _ in range(2))
    found = RegressionHead(weight)({0: q, 1: p}, {0: k, 1: j}, None)['loss']
    distances = [(F.normalize(a, dim=1) - F.normalize(b, dim=1)).square().sum() / 4 for a, b in ((q, j), (p, k))]
    torch.testing.assert_close(found, weight * sum(distances), atol=1e-12, rtol=1e-12)
    if weight == 0.25:
        simsiam = -(torch.cosine_similarity(q, j).mean() + torch.cosine_similarity(p, k).mean()) / 2
        torch.testing.assert_close(found, 1 + simsiam, atol=1e-12, rtol=1e-12)


def test_lengths_are_taken_in_float32():
    """In bfloat16 a row of 4 096 equal numbers would have another length."""
    q = torch.ones(2, 4096, dtype=torch.bfloat16)
    found = RegressionHead()({0: q}, {1: q}, None)
    assert found['loss'].dtype == torch.float32 and abs(found['loss']) < 1e-5


def test_instance_accuracy_counts_positives_nearer_than_every_negative():
    axes = torch.eye(3)
    found = ContrastiveHead(0.2)({0: 5 * axes[:2]}, {1: axes[[0, 2]]}, axes[1:2])
    assert found['instance_accuracy'] == 0.5
    with pytest.raises(UserError, match='no queue'):
        ContrastiveHead(0.2)({0: axes}, {1: axes}, None)
