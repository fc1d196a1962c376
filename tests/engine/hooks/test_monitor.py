"""HealthHook measures what its documentation states, and does not change training."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmairl.engine import run
from mmairl.engine.hooks import monitor
from mmairl.engine.hooks.monitor import HealthHook
from mmairl.models.heads.contrastive import ContrastiveHead

HOOK = dict(type='HealthHook', interval=1)


def trained(cfg) -> tuple:
    runner = run.train(cfg)
    state = {key: value.clone() for key, value in runner.model.state_dict().items() if isinstance(value, torch.Tensor)}
    return runner, state, torch.get_rng_state()


def measured(runner) -> dict[str, list[float]]:
    scalars = runner.message_hub.log_scalars
    prefix = 'health/'
    return {name.removeprefix(prefix): value.data[0].tolist() for name, value in scalars.items() if prefix in name}


@pytest.mark.parametrize(
    'scale,fused', [(1.0, False), (8.0, False), (8.0, True)], ids=['plain', 'scaled', 'scaled, fused']
)
def test_gradient_norms_exclude_the_loss_scale(scale, fused):
    parts = dict(
        backbone=nn.Sequential(nn.Linear(3, 4)), projector=nn.Linear(4, 2), fc=nn.Linear(2, 2).requires_grad_(False)
    )
    model = nn.ModuleDict(parts).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    recorder = monitor.Recorder(model, optimizer)
    loss = model.projector(model.backbone(torch.randn(5, 3, dtype=torch.float64))).square().mean()
    parts = {name: list(model[part].parameters()) for name, part in (('stem', 'backbone'), ('projector', 'projector'))}
    before = {name: torch.cat([p.detach().flatten() for p in part]) for name, part in parts.items()}
    gradients = {
        name: torch.cat([g.flatten() for g in torch.autograd.grad(loss, part, retain_graph=True)])
        for name, part in parts.items()
    }
    scaler = torch.amp.GradScaler('cpu', init_scale=scale)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    metrics = recorder.weight_metrics()
    for name in parts:
        change = torch.cat([p.detach().flatten() for p in parts[name]]) - before[name]
        assert metrics[f'gradient_norm_{name}'] == pytest.approx(gradients[name].norm().item())
        assert metrics[f'weight_norm_{name}'] == pytest.approx(before[name].norm().item())
        assert metrics[f'update_ratio_{name}'] == pytest.approx((change.norm() / before[name].norm()).item())
    assert metrics['gradient_norm'] == pytest.approx(torch.cat(list(gradients.values())).norm().item())
    assert metrics['update_ratio'] == max(metrics[f'update_ratio_{name}'] for name in parts)
    assert not any('fc' in name for name in metrics), 'the frozen layer fc is reported'


CASES = {
    'queue, accumulation': {'name': 'mocov2plus_r50_200e.py', 'optim_wrapper.accumulative_counts': 2},
    'no queue, bfloat16': {'name': 'byol_lars_r50_200e.py', 'optim_wrapper.dtype': 'bfloat16'},
    'no teacher': dict(name='byol_variants/simclr_r50_300e.py'),
}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_hooks_leave_training_bitwise_equal(toy_config, tmp_path, case):
    """Weights, teacher, statistics, queue and random state equal those of a run without the hooks."""
    options = dict(case, steps=4, width=8, **{'default_hooks.checkpoint': None})
    plain = {'default_hooks.health': None, 'default_hooks.non_finite': None}
    _, without, random_state = trained(toy_config(**options, **plain, work_dir=str(tmp_path / 'a')))
    runner, with_it, drawn_too = trained(toy_config(**options, work_dir=str(tmp_path / 'b'), custom_hooks=[HOOK]))
    assert without.keys() == with_it.keys() and all(torch.equal(without[key], with_it[key]) for key in without)
    assert torch.equal(random_state, drawn_too)
    quantities = measured(runner)
    assert len(quantities['spread_key']) == 4 // case.get('optim_wrapper.accumulative_counts', 1)
    assert {'positive', 'negative', 'gradient_norm_layer1', 'update_ratio', 'data_share'} <= quantities.keys()
    assert ('teacher_distance' in quantities) == (runner.model.teacher is not None)
    assert ('queue_drift' in quantities) == (runner.model.queue is not None)
    assert all(torch.isfinite(torch.tensor(values)).all() for values in quantities.values())


def test_keys_of_only_the_first_view_are_measured(toy_config):
    options = {'model.key_views': [0], 'name': 'byol_r50_200e.py'}
    runner, *_ = trained(toy_config(**options, steps=2, batch=16, width=8, custom_hooks=[HOOK]))
    assert len(measured(runner)['positive']) == 2


def test_classifier_has_no_embedding_quantities(toy_config):
    runner, *_ = trained(
        toy_config('supervised/supervised_r50_100e.py', steps=2, batch=16, width=8, custom_hooks=[HOOK])
    )
    quantities = measured(runner)
    assert {'rank_features', 'gradient_norm_fc', 'weight_norm_layer4'} <= quantities.keys()
    assert not {'spread_key', 'positive', 'teacher_distance', 'queue_steps'} & quantities.keys()


def test_queue_age_is_its_length_over_keys_of_a_step(toy_config):
    cfg = toy_config(
        steps=4, batch=8, queue=40, width=8, custom_hooks=[HOOK], **{'optim_wrapper.accumulative_counts': 2}
    )
    cfg.default_hooks.momentum = dict(type='MomentumHook', base=0.9, schedule='constant')
    runner, *_ = trained(cfg)
    quantities = measured(runner)
    # A step has two iterations, and each enqueues 4 keys.
    assert quantities['queue_steps'][-1] == 5
    assert quantities['queue_epochs'][-1] == pytest.approx(40 / 32)
    # Each measurement comes before the step enqueues its own keys.
    assert quantities['queue_filled'] == [0.0, 8 / 40]
    assert quantities['queue_drift'][-1] == pytest.approx(5 * (1 - 0.9))


def test_quantity_warns_again_only_after_recovery(caplog):
    hook, logger = HealthHook(), logging.getLogger('health-test')
    with caplog.at_level(logging.WARNING, 'health-test'):
        for step, value in enumerate([0.9, 0.05, 0.04, 0.3, 0.05, 0.8, 0.03]):
            hook._warn(SimpleNamespace(logger=logger, iter=step), dict(spread_key=value))
    messages = [record.getMessage() for record in caplog.records]
    assert [text.split(': ')[0] for text in messages] == [f'health, iteration {step}' for step in (2, 6, 7)]
    for message, text in zip(messages, ('collapse', 'normal again', 'collapse'), strict=True):
        assert text in message


def test_support_set_has_no_age_in_epochs(toy_config, monkeypatch):
    monkeypatch.setattr(ContrastiveHead, 'queue_role', 'support')
    runner, *_ = trained(toy_config(steps=2, batch=8, width=8, custom_hooks=[HOOK]))
    quantities = measured(runner)
    assert 'queue_steps' in quantities
    assert 'queue_epochs' not in quantities
    assert len(quantities['head_instance_accuracy']) == 2
