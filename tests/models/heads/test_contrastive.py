"""ContrastiveHead's accuracy and required queue, and InfoNCEHead, whose loss equals Eq. 6 of BYOL's paper."""

import math

import pytest
import torch
import torch.nn.functional as F
from harness.errors import raises_code
from harness.losses import assert_same, rows, units
from torch import Tensor

from mmairl.models.heads.contrastive import ContrastiveHead, InfoNCEHead
from mmairl.models.heads.regression import RegressionHead


def test_instance_accuracy_counts_closest_positives():
    axes = torch.eye(3)
    results = ContrastiveHead(0.2)({0: 5 * axes[:2]}, {1: axes[[0, 2]]}, axes[1:2])
    assert results['instance_accuracy'] == 0.5
    with raises_code('no-queue'):
        ContrastiveHead(0.2)({0: axes}, {1: axes}, None)


def printed(query: Tensor, same: Tensor, other: Tensor, alpha: float, beta: float) -> Tensor:
    """Compute Equation 6 of BYOL's paper as it is printed, with loops over images.

    The paper maximizes this value, so the loss is its negative.
    """
    count, attraction, repulsion = len(query), 0.0, 0.0
    for i in range(count):
        attraction = attraction + query[i] @ other[i]
        inside = sum(torch.exp(query[i] @ same[j] / alpha) for j in range(count) if j != i)
        inside = inside + sum(torch.exp(query[i] @ other[j] / alpha) for j in range(count))
        repulsion = repulsion + torch.log(inside)
    return 2 / count * attraction - beta * 2 * alpha / count * repulsion


@pytest.mark.parametrize('alpha,beta', [(0.1, 0.0), (1.0, 0.3)])
def test_loss_and_gradient_equal_the_printed_sum(alpha, beta):
    q, k = rows(2, 5), rows(2, 5)
    (q0, q1), (k0, k1) = units(q).values(), units(k).values()
    expected = -printed(q0, k0, k1, alpha, beta) - printed(q1, k1, k0, alpha, beta)
    assert_same(InfoNCEHead(alpha, beta)(q, k, None)['loss'], expected, [*q.values(), *k.values()])


def test_beta_0_is_byol_and_beta_1_is_nt_xent():
    q, k, alpha = rows(2, 5), rows(2, 5), 0.5
    torch.testing.assert_close(
        InfoNCEHead(0.1, 0.0)(q, k, None)['loss'] + 4, RegressionHead()(q, k, None)['loss']
    )
    both = torch.cat(list(units(q).values()))
    logits = (both @ both.T / alpha).fill_diagonal_(-math.inf)
    nt_xent = F.cross_entropy(logits, torch.tensor([5, 6, 7, 8, 9, 0, 1, 2, 3, 4]))
    assert_same(
        InfoNCEHead(alpha, 1.0)(q, q, None)['loss'], 2 * 2 * alpha * nt_xent, list(q.values())
    )


@pytest.mark.parametrize('count', [0, 1, 11])
def test_moco_loss_equals_concatenated_logits(count):
    """MoCo's released code computes a cross entropy with class 0, whose logit (the positive) comes first."""
    (q, k), negatives = (
        rows(2, 4).values(),
        F.normalize(torch.randn(count, 4, dtype=torch.float64), dim=1),
    )
    unit_q, unit_k = F.normalize(q, dim=1), F.normalize(k, dim=1)
    logits = torch.cat([(unit_q * unit_k).sum(1, keepdim=True), unit_q @ negatives.T], dim=1) / 0.2
    expected = F.cross_entropy(logits, torch.zeros(4, dtype=torch.long))
    assert_same(ContrastiveHead(0.2)({0: q}, {1: k}, negatives)['loss'], expected, [q, k])
