"""MSBReg's terms against independent float64 arithmetic."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.errors import UserError
from mmairl.models.heads import ContrastiveHead, RegressionHead
from projects.msbreg.msbreg import BrownianTerm, CentroidHead, RegularisedHead, SingularValueTerm


def units(views: int, count: int = 6, dim: int = 4) -> dict[int, Tensor]:
    rows = {view: F.normalize(torch.randn(count, dim, dtype=torch.float64), dim=1) for view in range(views)}
    return {view: row.requires_grad_() for view, row in rows.items()}


def test_two_views_are_byols_symmetric_loss():
    q, k = units(2), units(2)
    one, two = CentroidHead()(q, k, None)['loss'], RegressionHead()(q, k, None)['loss']
    torch.testing.assert_close(one, two)
    for a, b in zip(torch.autograd.grad(one, list(q.values())), torch.autograd.grad(two, list(q.values()))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('views', [3, 4, 8])
def test_each_view_is_drawn_to_the_centre_of_the_others(views):
    q, k = units(views), units(views)
    total = 0.0
    for v in range(views):
        centre = sum(k[w] for w in range(views) if w != v) / (views - 1)
        total = total + sum(2 - 2 * (q[v][i] @ centre[i]) / centre[i].norm() for i in range(6)) / 6
    torch.testing.assert_close(CentroidHead()(q, k, None)['loss'], 2 * total / views)


def test_the_means_of_both_networks_can_be_compared_instead():
    q, k = units(3), units(3)
    a, b = (sum(rows.values()) / 3 for rows in (q, k))
    expected = torch.stack([2 * (2 - 2 * (x @ y) / (x.norm() * y.norm())) for x, y in zip(a, b)]).mean()
    torch.testing.assert_close(CentroidHead('mean')(q, k, None)['loss'], expected)


def test_the_singular_value_term_is_that_of_the_singular_values():
    z = torch.randn(2, 20, 5, dtype=torch.float64)
    expected = 0.0
    for view in z:
        standard = (view - view.mean(0)) / view.std(0, correction=0)
        values = torch.linalg.svdvals(standard / 20**0.5)
        expected = expected + ((values**2 - 1) ** 2).sum() / 2
    torch.testing.assert_close(SingularValueTerm()(z), expected, atol=1e-6, rtol=1e-6)


def test_an_even_spread_costs_nothing():
    corners = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    assert SingularValueTerm()(corners[None]) < 1e-12


@pytest.mark.parametrize('per,distinct', [('image', 6), ('view', 18), ('batch', 1)])
def test_the_brownian_gradient_is_a_unit_direction_per_image_view_or_batch(per, distinct):
    q = torch.stack(list(units(3).values())).detach().requires_grad_()
    term = BrownianTerm(per=per)
    (gradient,) = torch.autograd.grad(term(q), q)
    steps = gradient.reshape(-1, 4) * 18
    torch.testing.assert_close(steps.norm(dim=1), torch.ones(18, dtype=torch.float64))
    assert len(steps.mul(1e9).round().unique(dim=0)) == distinct
    (again,) = torch.autograd.grad(term(q), q)
    assert not torch.equal(again, gradient), 'fresh every step'


def test_terms_are_added_to_any_head_by_their_weights():
    q, k, bank = units(2), units(2), units(1)[0].detach()
    terms = [dict(type='BrownianTerm', weight=0.5), dict(type='SingularValueTerm', weight=0.004)]
    head = RegularisedHead(dict(type='ContrastiveHead', temperature=0.2), terms)
    found = head(q, k, bank)
    expected = ContrastiveHead(0.2)(q, k, bank)['loss'] + 0.5 * found['brownian'] + 0.004 * found['singular']
    torch.testing.assert_close(found['loss'], expected)


def test_wrong_settings_are_one_sentence():
    with pytest.raises(UserError, match='K >= 2'):
        CentroidHead()(units(1), units(1), None)
    with pytest.raises(UserError, match='centroid'):
        CentroidHead('middle')
    with pytest.raises(UserError, match='per'):
        BrownianTerm(per='pixel')
