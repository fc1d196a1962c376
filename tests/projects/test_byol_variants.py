"""InfoNCE(alpha, beta) against the printed sum, and against the losses at its two ends."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from harness.losses import assert_same, rows, units
from torch import Tensor

from mmairl.config import load_config
from mmairl.models.heads import RegressionHead
from mmairl.registry import MODELS
from projects.byol_variants import collapse
from projects.byol_variants.info_nce import InfoNCEHead

CONFIGS = Path(__file__).parents[2] / 'projects/byol_variants/configs'
# Tab. 5b: config -> predictor, target network, beta
TABLE_5B = {
    'byol': (True, True, 0),
    'predictor_target_beta1': (True, True, 1),
    'target_beta1': (False, True, 1),
    'simclr': (False, False, 1),
    'predictor_beta1': (True, False, 1),
    'predictor_beta0': (True, False, 0),
    'mean_teacher': (False, True, 0),
    'neither_beta0': (False, False, 0),
}
# Tab. 5a: config -> the teacher's momentum, where it begins and how it goes on
TABLE_5A = {
    'target_fixed': (1.0, 'constant'),
    'target_ema0999': (0.999, 'cosine'),
    'target_ema099': (0.99, 'cosine'),
    'target_ema09': (0.9, 'cosine'),
}


def printed(query: Tensor, same: Tensor, other: Tensor, alpha: float, beta: float) -> Tensor:
    """Eq. 6 as printed, to be maximised, one image after the other."""
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


def test_its_ends_are_byols_loss_less_a_constant_and_two_alpha_times_nt_xent_a_direction():
    q, k, alpha = rows(2, 5), rows(2, 5), 0.5
    torch.testing.assert_close(InfoNCEHead(0.1, 0.0)(q, k, None)['loss'] + 4, RegressionHead()(q, k, None)['loss'])
    both = torch.cat(list(units(q).values()))
    logits = (both @ both.T / alpha).fill_diagonal_(-math.inf)
    nt_xent = F.cross_entropy(logits, torch.tensor([5, 6, 7, 8, 9, 0, 1, 2, 3, 4]))
    assert_same(InfoNCEHead(alpha, 1.0)(q, q, None)['loss'], 2 * 2 * alpha * nt_xent, list(q.values()))


def test_a_stop_gradient_is_a_teacher_of_momentum_0(toy_config):
    """Tab. 5a's last row: the student stands where a teacher copied from it at each step would."""
    folder = '../projects/byol_variants/configs'
    averaged, stopped = (
        MODELS.build(toy_config(f'{folder}/{name}_r50_300e.py', width=8).model).double()
        for name in ('byol', 'predictor_beta0')
    )
    averaged.load_state_dict(stopped.state_dict(), strict=False)
    averaged.teacher.copy_from(averaged)
    views = list(torch.randn(2, 8, 3, 32, 32, dtype=torch.float64))
    gradients = []
    for model in (averaged, stopped):
        loss = model(views, mode='loss')['loss']
        gradients.append((loss.detach(), *torch.autograd.grad(loss, [model.get_parameter('projector.mlp.0.weight')])))
    torch.testing.assert_close(*gradients)


def test_each_config_is_its_row_of_table_5():
    base = load_config(str(CONFIGS / 'byol_r50_300e.py'))
    for name in (*TABLE_5B, *TABLE_5A):
        cfg = load_config(str(CONFIGS / f'{name}_r50_300e.py'))
        model, momentum = cfg.model, cfg.default_hooks.momentum
        if name in TABLE_5A:
            assert (momentum.base, momentum.schedule) == TABLE_5A[name], name
            assert model == base.model and cfg.optim_wrapper == base.optim_wrapper
        else:
            assert (model.predictor is not None, model.target == 'teacher', model.head.beta) == TABLE_5B[name], name
            assert model.head.alpha == 0.1 and model.queue is None and model.symmetric
    variants = {(predictor, target == 'teacher', beta) for predictor, target, beta, _ in collapse.VARIANTS.values()}
    assert variants == set(TABLE_5B.values())
