"""What the health hook measures, by closed forms and independent loops, and that training does not notice it."""

import logging
from math import isnan
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmairl.engine import launch
from mmairl.hooks import health
from mmairl.hooks.health import HealthHook

HOOK = dict(type='HealthHook', interval=1)


def trained(cfg) -> tuple:
    runner = launch.train(cfg)
    state = {key: value.clone() for key, value in runner.model.state_dict().items() if isinstance(value, torch.Tensor)}
    return runner, state, torch.get_rng_state()


def measured(runner) -> dict[str, list[float]]:
    found = runner.message_hub.log_scalars
    prefix = 'health/'
    return {name.removeprefix(prefix): value.data[0].tolist() for name, value in found.items() if prefix in name}


def batch_of(rows: torch.Tensor) -> dict[str, float]:
    return health.of_batch(rows, F.normalize(rows), F.normalize(rows), None)


def test_ranks_and_spreads_of_a_batch():
    """Of one that collapses, of one that is spread out, of one that is not finite, and of few rows."""
    spread_out, one_point = batch_of(torch.eye(16)), batch_of(torch.ones(16, 4))
    assert spread_out['rank_features'] == pytest.approx(16, rel=1e-6) and spread_out['spread_key'] == pytest.approx(1)
    assert one_point['rank_features'] == pytest.approx(1, abs=1e-6) and one_point['spread_query'] == 0
    assert isnan(health.rank(torch.full((20, 4), float('inf'))))
    assert not {'rank_features', 'rank_embeddings'} & batch_of(torch.randn(health.FEWEST - 1, 4)).keys()


def test_similarities_to_the_queue():
    q = k = torch.eye(4)
    queue = torch.cat([torch.eye(4)[:2], -torch.eye(4)[:2]])
    assert health.similarities(q, k, queue) == dict(positive=1, negative=0, hardest_negative=0.5, contrast=1)
    for rows, negatives in ((q[:1], None), (q, torch.zeros(0, 4))):
        assert health.similarities(rows, rows, negatives) == dict(positive=1), 'without a negative'


def test_similarities_without_a_queue_leave_the_own_key_out():
    q = F.normalize(torch.randn(5, 3, dtype=torch.float64))
    k = F.normalize(torch.randn(5, 3, dtype=torch.float64))
    found = health.similarities(q, k, None)
    others = [[float(q[i] @ k[j]) for j in range(5) if j != i] for i in range(5)]
    assert found['positive'] == pytest.approx(sum(float(q[i] @ k[i]) for i in range(5)) / 5)
    assert found['negative'] == pytest.approx(sum(map(sum, others)) / 20)
    assert found['hardest_negative'] == pytest.approx(sum(map(max, others)) / 5)
    assert found['contrast'] == pytest.approx(found['positive'] - found['negative'])


def test_teacher_distance_is_that_of_a_loop():
    own, theirs = ([torch.randn(3, 4).double(), torch.randn(5).double()] for _ in range(2))
    apart = sum(float((t - s).square().sum()) for t, s in zip(own, theirs))
    whole = sum(float(s.square().sum()) for s in theirs)
    assert health.distance(own, theirs).item() == pytest.approx((apart / whole) ** 0.5)


@pytest.mark.parametrize(
    'scale,fused', [(1.0, False), (8.0, False), (8.0, True)], ids=['plain', 'scaled', 'scaled, fused']
)
def test_gradients_and_updates_are_those_of_autograd_without_the_loss_scale(scale, fused):
    parts = dict(
        backbone=nn.Sequential(nn.Linear(3, 4)), projector=nn.Linear(4, 2), fc=nn.Linear(2, 2).requires_grad_(False)
    )
    model = nn.ModuleDict(parts).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    recorder = health.Recorder(model, optimizer)
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
    found = recorder.of_weights()
    for name in parts:
        change = torch.cat([p.detach().flatten() for p in parts[name]]) - before[name]
        assert found[f'gradient_norm_{name}'] == pytest.approx(gradients[name].norm().item())
        assert found[f'weight_norm_{name}'] == pytest.approx(before[name].norm().item())
        assert found[f'update_ratio_{name}'] == pytest.approx((change.norm() / before[name].norm()).item())
    assert found['gradient_norm'] == pytest.approx(torch.cat(list(gradients.values())).norm().item())
    assert found['update_ratio'] == max(found[f'update_ratio_{name}'] for name in parts)
    assert not any('fc' in name for name in found), 'a part that does not learn has nothing to report'


CASES = {
    'queue, accumulation': {'name': 'mocov2plus_r50_200e.py', 'optim_wrapper.accumulative_counts': 2},
    'no queue, bfloat16': {'name': 'byol_lars_r50_200e.py', 'optim_wrapper.dtype': 'bfloat16'},
    'no teacher': dict(name='../projects/byol_variants/configs/simclr_r50_300e.py'),
}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_training_is_the_same_to_the_last_bit_with_it(toy_config, tmp_path, case):
    """Weights, teacher, statistics, queue and the random state."""
    options = dict(case, steps=4, width=8, **{'default_hooks.checkpoint': None})
    _, without, drawn = trained(toy_config(**options, work_dir=str(tmp_path / 'a')))
    runner, with_it, drawn_too = trained(toy_config(**options, work_dir=str(tmp_path / 'b'), custom_hooks=[HOOK]))
    assert without.keys() == with_it.keys() and all(torch.equal(without[key], with_it[key]) for key in without)
    assert torch.equal(drawn, drawn_too)
    found = measured(runner)
    assert len(found['spread_key']) == 4 // case.get('optim_wrapper.accumulative_counts', 1)
    assert {'positive', 'negative', 'gradient_norm_layer1', 'update_ratio', 'data_share'} <= found.keys()
    assert ('teacher_distance' in found) == (runner.model.teacher is not None)
    assert ('queue_drift' in found) == (runner.model.queue is not None)
    assert all(torch.isfinite(torch.tensor(values)).all() for values in found.values())


def test_a_classifier_has_the_quantities_that_exist(toy_config):
    runner, *_ = trained(
        toy_config('supervised/supervised_r50_100e.py', steps=2, batch=16, width=8, custom_hooks=[HOOK])
    )
    found = measured(runner)
    assert {'rank_features', 'gradient_norm_fc', 'weight_norm_layer4'} <= found.keys()
    assert not {'spread_key', 'positive', 'teacher_distance', 'queue_steps'} & found.keys()


def test_the_queue_is_renewed_in_its_length_over_the_keys_of_a_step(toy_config):
    cfg = toy_config(
        steps=4, batch=8, queue=40, width=8, custom_hooks=[HOOK], **{'optim_wrapper.accumulative_counts': 2}
    )
    cfg.default_hooks.momentum = dict(type='MomentumHook', base=0.9, schedule='constant')
    runner, *_ = trained(cfg)
    found = measured(runner)
    assert found['queue_steps'][-1] == 5  # 40 keys by 4 + 4 a step
    assert found['queue_epochs'][-1] == pytest.approx(40 / 32)
    assert found['queue_filled'] == [0.0, 8 / 40]  # before this step's own keys
    assert found['queue_drift'][-1] == pytest.approx(5 * (1 - 0.9))


def test_a_quantity_warns_once_and_again_only_after_it_recovered(caplog):
    hook, logger = HealthHook(), logging.getLogger('health-test')
    with caplog.at_level(logging.WARNING, 'health-test'):
        for step, value in enumerate([0.9, 0.05, 0.04, 0.3, 0.05, 0.8, 0.03]):
            hook._warn(SimpleNamespace(logger=logger, iter=step), dict(spread_key=value))
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(': ')[0] for text in said] == [f'health, iteration {step}' for step in (2, 6, 7)]
    assert 'collapse' in said[0] and '0.05' in said[0] and 'all clear' in said[1] and 'collapse' in said[2]
