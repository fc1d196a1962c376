"""HealthHook measures what its documentation states, and does not change training."""

import logging
from types import SimpleNamespace

import pytest
import torch

from mmairl.engine import run
from mmairl.engine.hooks.monitor import HealthHook


def trained(cfg) -> tuple:
    runner = run.train(cfg)
    state = {
        key: value.clone()
        for key, value in runner.model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    return runner, state, torch.get_rng_state()


CASES = {
    'queue, accumulation': {
        'name': 'mocov2plus_r50_200e.py',
        'optim_wrapper.accumulative_counts': 2,
    },
    'no queue, bfloat16': {'name': 'byol_lars_r50_200e.py', 'optim_wrapper.dtype': 'bfloat16'},
    'no teacher': dict(name='byol_variants/simclr_r50_300e.py'),
    'classifier': dict(name='supervised/supervised_r50_100e.py'),
}


@pytest.mark.parametrize('case', CASES)
def test_health_leaves_training_bitwise_equal(toy_config, tmp_path, case):
    """Weights, teacher, statistics, queue and random state equal those of a run without the hook."""
    options = dict(CASES[case], steps=4, width=8, batch=16, **{'default_hooks.checkpoint': None})
    plain = {'default_hooks.health': None}
    _, without, random_state = trained(toy_config(**options, **plain, work_dir=str(tmp_path / 'a')))
    runner, with_it, drawn_too = trained(toy_config(**options, work_dir=str(tmp_path / 'b')))
    assert without.keys() == with_it.keys() and all(
        torch.equal(without[key], with_it[key]) for key in without
    )
    assert torch.equal(random_state, drawn_too)
    scalars = runner.message_hub.log_scalars
    values = {name[7:]: scalars[name].data[0] for name in scalars if name.startswith('health/')}
    # A run of four steps is measured in each step.
    assert len(values['update_ratio']) == 4 // options.get('optim_wrapper.accumulative_counts', 1)
    assert ('spread_key' in values) == (case != 'classifier')
    assert ('teacher_distance' in values) == (getattr(runner.model, 'teacher', None) is not None)
    assert ('queue_filled' in values) == (getattr(runner.model, 'queue', None) is not None)
    assert 'data_share' in values


def test_quantity_warns_once(caplog):
    hook, logger = HealthHook(), logging.getLogger('health-test')
    with caplog.at_level(logging.WARNING, 'health-test'):
        for step, value in enumerate([0.9, 0.05, 0.04]):
            hook._warn(SimpleNamespace(logger=logger, iter=step), dict(spread_key=value))
    assert [record.getMessage().split(': ')[0] for record in caplog.records] == [
        'health, iteration 2'
    ]
