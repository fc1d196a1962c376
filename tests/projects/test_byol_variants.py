"""InfoNCE(alpha, beta) against the printed sum, and against the losses at its two ends."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.errors import UserError
from mmairl.models.heads import RegressionHead
from projects.byol_variants.info_nce import InfoNCEHead


def units(count: int = 5) -> dict[int, Tensor]:
    return {view: F.normalize(torch.randn(count, 4, dtype=torch.float64), dim=1).requires_grad_() for view in (0, 1)}


def printed(query: Tensor, same: Tensor, other: Tensor, alpha: float, beta: float) -> Tensor:
    """Eq. 6 as printed, to be maximised, one image after the other."""
    count, attraction, repulsion = len(query), 0.0, 0.0
    for i in range(count):
        attraction = attraction + query[i] @ other[i]
        inside = sum(torch.exp(query[i] @ same[j] / alpha) for j in range(count) if j != i)
        inside = inside + sum(torch.exp(query[i] @ other[j] / alpha) for j in range(count))
        repulsion = repulsion + torch.log(inside)
    return 2 / count * attraction - beta * 2 * alpha / count * repulsion


@pytest.mark.parametrize('alpha', [0.1, 1.0])
@pytest.mark.parametrize('beta', [0.0, 0.3, 1.0])
def test_loss_and_gradient_equal_the_printed_sum(alpha, beta):
    q, k = units(), units()
    expected = -printed(q[0], k[0], k[1], alpha, beta) - printed(q[1], k[1], k[0], alpha, beta)
    found = InfoNCEHead(alpha, beta)(q, k, None)['loss']
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    for one, two in zip(torch.autograd.grad(found, list(q.values())), torch.autograd.grad(expected, list(q.values()))):
        torch.testing.assert_close(one, two, atol=1e-12, rtol=1e-12)


def test_without_negatives_it_is_byols_loss_less_a_constant():
    q, k = units(), units()
    torch.testing.assert_close(InfoNCEHead(0.1, 0.0)(q, k, None)['loss'] + 4, RegressionHead()(q, k, None)['loss'])


def test_with_all_negatives_it_is_two_alpha_times_nt_xent():
    z, alpha = units(), 0.5
    both = torch.cat([z[0], z[1]])
    logits = (both @ both.T / alpha).fill_diagonal_(-math.inf)
    nt_xent = F.cross_entropy(logits, torch.tensor([5, 6, 7, 8, 9, 0, 1, 2, 3, 4]))
    torch.testing.assert_close(InfoNCEHead(alpha, 1.0)(z, z, None)['loss'], 2 * 2 * alpha * nt_xent)


@pytest.mark.parametrize('wrong', [dict(beta=-0.1), dict(beta=1.1), dict(alpha=0.0)])
def test_values_out_of_range_are_one_sentence(wrong):
    with pytest.raises(UserError, match='beta in'):
        InfoNCEHead(**wrong)


def test_one_direction_is_refused():
    with pytest.raises(UserError, match='symmetric=True'):
        InfoNCEHead()({0: units()[0]}, {1: units()[1]}, None)
