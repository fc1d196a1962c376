"""Runs under ZeRO equal ordinary runs in their losses, weights, teacher, queue, optimizer and checkpoints."""

from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness import sharding
from harness.compare import differing
from harness.errors import raises_code

from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.checkpoint import consolidate, load_checkpoint


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes) -> tuple[dict, Path]:
    """Return what the runs of two processes saved, and the folder of these runs."""
    folder = tmp_path_factory.mktemp('zero')
    run_processes(2, sharding.__file__, folder / 'found.pth', folder, 'zero')
    return sharding.load(folder / 'found.pth'), folder


@pytest.mark.slow
@pytest.mark.parametrize('case,strategy', sharding.EQUAL['zero'])
def test_five_steps_equal_those_of_ddp(two, case, strategy):
    outcomes, _ = two
    sharding.assert_equal(outcomes[f'{case}/{strategy}'], outcomes[f'{case}/None'])
    assert outcomes[f'{case}/{strategy}']['skipped'] == (case == 'poisoned')
    if case == 'mocov2plus_lars':
        health = outcomes[f'{case}/{strategy}']['health']
        assert {'health/gradient_norm', 'health/teacher_distance'} < health.keys()


@pytest.mark.slow
def test_overflow_in_one_process_skips_step_in_both(two):
    assert two[0]['overflow'] == [(False, 2.0**15, [1.0, 1.0])] * 2


@pytest.mark.slow
def test_stage_1_exchanges_gradients_once_per_step(two):
    once, each_batch = two[0]['exchanges']
    assert 0 < 5 * once == 3 * each_batch, (
        'the exchanges of stages 1 and 2 are not in the ratio of 3 steps to 5 batches'
    )


@pytest.mark.slow
def test_resumed_run_equals_uninterrupted_run(two):
    whole, interrupted = (two[1] / part / 'iter_6.pth' for part in ('whole', 'interrupted'))
    resuming.assert_the_same_run(whole, interrupted)
    names = sorted(path.name for path in interrupted.parent.glob('*.pth'))
    assert names == ['iter_4.pth', 'iter_6.pth'], 'max_keep_ckpts=2 is not respected'


@pytest.mark.slow
def test_bf16_keeps_and_averages_weights_in_float32(two):
    outcome = two[0]['bf16']
    assert outcome['losses'].isfinite().all()
    assert {value.dtype for value in outcome['state_dict'].values()} == {torch.float32, torch.int64}
    for part in ('backbone.', 'teacher.backbone.'):
        kernels = [value for key, value in outcome['state_dict'].items() if key.startswith(part) and value.ndim == 4]
        assert not any(torch.equal(kernel, kernel.bfloat16().float()) for kernel in kernels)


@pytest.fixture
def whole(two) -> Path:
    return two[1] / 'whole' / 'iter_6.pth'


@pytest.mark.slow
def test_consolidated_file_holds_only_weights(whole, tmp_path):
    message = consolidate(whole.parent, tmp_path / 'weights.pth')
    content, saved = sharding.load(tmp_path / 'weights.pth'), load_checkpoint(whole)
    assert f'{len(saved["state_dict"])} tensors of iter_6.pth' in message
    assert set(content) == {'meta', 'state_dict'}
    assert differing(saved['state_dict'], content['state_dict'], '') == []


@pytest.mark.slow
@pytest.mark.parametrize('strategy', ['zero3_offload', None])
def test_one_process_resumes_checkpoint_of_two(whole, tmp_path, strategy):
    resumed, saved = sharding.resume_alone('mocov2plus_lars', whole, tmp_path, strategy), load_checkpoint(whole)
    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        assert differing(saved[part], resumed[part], f'{strategy}.{part}') == []


@pytest.mark.slow
def test_process_holds_share_and_stage_3_frees_blocks(two):
    (share_2, whole_2), (share_3, whole_3) = two[0]['held']
    assert share_2 == share_3 == pytest.approx(0.5, abs=0.05)
    assert whole_2 > 0
    assert whole_3 == 0


def test_base_config_sets_strategy(tmp_path):
    bases = ['mmairl::byol_lars_r50_200e.py', 'mmairl::_base_/strategies/zero3_offload.py']
    (tmp_path / 'mine.py').write_text(f'_base_ = {bases}')
    strategy = load_config(str(tmp_path / 'mine.py')).strategy
    assert strategy == run.strategy_named('zero3_offload')
    assert strategy.zero_optimization.stage == 3


NVME = dict(stage=3, offload_param=dict(device='nvme'))
WRONG = {
    'unknown-stage': dict(type='ZeroStrategy', zero_optimization=dict(stage=4)),
    'unknown-strategy': dict(type='FSDPStrategy'),
    'unsupported-offload': dict(type='ZeroStrategy', zero_optimization=NVME),
    'unsupported-key': dict(type='ZeroStrategy', zero_optimization=dict(stage=1, stages=1)),
}


@pytest.mark.parametrize('code', WRONG)
def test_wrong_strategy_is_an_error(tmp_path, code):
    with raises_code(code):
        run.train(sharding.config('byol_lars', str(tmp_path), WRONG[code]))


def test_unknown_strategy_name_suggests_others():
    with raises_code('no-config', "did you mean '.*/zero"):
        run.strategy_named('zero4')
