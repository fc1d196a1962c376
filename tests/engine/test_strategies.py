"""Runs under ZeRO equal runs under DDP, and their checkpoints can be read without a strategy."""

from importlib.util import find_spec

import pytest
import torch
from engine import sharding as script
from harness.errors import raises_code
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from mmairl.engine.runner import Runner
from mmairl.engine.strategy import strategy_named

needs_deepspeed = pytest.mark.skipif(find_spec('deepspeed') is None, reason='requires deepspeed')


@pytest.fixture(scope='module')
def results_of(tmp_path_factory, run_processes):
    """Return a function that returns the results of a suite."""
    results = {}

    def of(suite: str) -> dict:
        if suite not in results:
            folder = tmp_path_factory.mktemp(suite)
            run_processes(2, script.__file__, folder, suite)
            results[suite] = torch.load(folder / f'{suite}.pth', weights_only=True)
        return results[suite]

    return of


MARKS = dict(deepspeed=needs_deepspeed, adapted=pytest.mark.slow)
COMPARED = [
    pytest.param(
        suite,
        case,
        strategy,
        marks=MARKS.get(suite, ()),
        id=f'{case}, {strategy}',
    )
    for suite, pairs in script.SUITES.items()
    for case, strategy in [*pairs, (pairs[0][0], 'resumed')]
]


@pytest.mark.parametrize('suite,case,strategy', COMPARED)
def test_strategy_trains_as_ddp(results_of, suite, case, strategy):
    results = results_of(suite)
    plain, sharded = results[f'{case}/None'], results[f'{case}/{strategy}']
    assert_close(sharded['losses'], plain['losses'], atol=0, rtol=2e-6)
    assert list(sharded['state_dict']) == list(plain['state_dict'])
    for part in ('state_dict', 'optimizer'):
        for one, other in zip(tree_leaves(sharded[part]), tree_leaves(plain[part]), strict=True):
            if isinstance(other, torch.Tensor):
                assert_close(one, other, atol=1e-6, rtol=1e-6)
            elif not isinstance(other, bool | None):
                assert one == other
    if strategy.startswith('zero'):
        assert sharded['share'] < 0.6 < plain['share']


def test_wrong_strategies_raise(tmp_path):
    with raises_code('unknown-strategy'):
        strategy_named('zero')
    for case, strategy, options, code in (
        ('sgd', 'deepspeed3', {}, 'unknown-stage'),
        ('sgd', 'deepspeed1', {'optim_wrapper.dtype': 'float16'}, 'not-with-deepspeed'),
    ):
        with raises_code(code):
            Runner.from_cfg(script.config(case, str(tmp_path), strategy, **options))


@pytest.fixture
def group():
    """End the process group of a run that fails."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_zero_rejects_copies_of_the_model(tmp_path, group):
    cfg = script.config('sgd', str(tmp_path), 'zero2', custom_hooks=[dict(type='EMAHook')])
    with raises_code('not-with-zero'):
        Runner.from_cfg(cfg)


@needs_deepspeed
def test_deepspeed_rejects_lars(tmp_path, group):
    with raises_code('not-with-deepspeed', 'zero2'):
        Runner.from_cfg(script.config('lars', str(tmp_path), 'deepspeed2'))
