"""The configs of BYOL's variants follow Tables 5a and 5b of its paper."""

from pathlib import Path

import torch

from mmairl.config import load_config
from mmairl.registry import MODELS

CONFIGS = Path(__file__).parents[3] / 'configs/byol_variants'
# For each config: whether it has a predictor and a target network, and its beta, as in Table 5b.
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
# For each config: the initial momentum of the teacher, and the schedule of the momentum, as in
# Table 5a.
TABLE_5A = {
    'target_fixed': (1.0, 'constant'),
    'target_ema0999': (0.999, 'cosine'),
    'target_ema099': (0.99, 'cosine'),
    'target_ema09': (0.9, 'cosine'),
}


def test_stop_gradient_is_a_teacher_of_momentum_0(toy_config):
    """In the last row of Table 5a, the teacher is a copy of the student in each step.

    The loss and the gradients must equal those of a student whose keys have no gradient.
    """
    averaged, stopped = (
        MODELS.build(toy_config(f'byol_variants/{name}_r50_300e.py', width=8).model).double()
        for name in ('byol', 'predictor_beta0')
    )
    averaged.load_state_dict(stopped.state_dict(), strict=False)
    averaged.teacher.copy_from(averaged)
    views = list(torch.randn(2, 8, 3, 32, 32, dtype=torch.float64))
    gradients = []
    for model in (averaged, stopped):
        loss = model(views, mode='loss')['loss']
        gradients.append(
            (
                loss.detach(),
                *torch.autograd.grad(loss, [model.get_parameter('projector.mlp.0.weight')]),
            )
        )
    torch.testing.assert_close(*gradients)


def test_each_config_equals_its_row_of_table_5():
    base = load_config(str(CONFIGS / 'byol_r50_300e.py'))
    for name in (*TABLE_5B, *TABLE_5A):
        cfg = load_config(str(CONFIGS / f'{name}_r50_300e.py'))
        model, momentum = cfg.model, cfg.default_hooks.momentum
        if name in TABLE_5A:
            assert (momentum.base, momentum.schedule) == TABLE_5A[name], name
            assert model == base.model and cfg.optim_wrapper == base.optim_wrapper
        else:
            assert (
                model.predictor is not None,
                model.target == 'teacher',
                model.head.beta,
            ) == TABLE_5B[name], name
            assert model.head.alpha == 0.1 and model.queue is None and model.symmetric
