"""Runs under ZeRO are the runs of whole networks: losses, weights, teacher, queue, optimizer, checkpoints."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import zero_two_processes as script
from harness import resume as resuming
from torch.utils._pytree import tree_leaves

from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.checkpoint import consolidate, load_checkpoint
from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.errors import UserError
from projects.faults.compare import differing


def load(path: Path) -> dict:
    run.trust_mmengine_checkpoints()
    return torch.load(path, weights_only=True)


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes) -> tuple[dict, Path]:
    """Return what two processes found, and where."""
    folder = tmp_path_factory.mktemp('zero')
    run_processes(2, script.__file__, folder / 'found.pth', folder)
    return load(folder / 'found.pth'), folder


@pytest.mark.parametrize('case,strategy', script.EQUAL)
def test_five_steps_equal_those_of_ddp(two, case, strategy):
    """Student, teacher, queue and the optimizer's state to 1e-6; losses, which are sums over images, to as many digits.

    Norms of gradients, weights and updates by stage, and the teacher's distance, are of whole layers.
    """
    found, _ = two
    plain, cut = found[f'{case}/None'], found[f'{case}/{strategy}']
    torch.testing.assert_close(cut['losses'], plain['losses'], atol=0, rtol=2e-6, equal_nan=True)
    assert cut['skipped'] == plain['skipped'] == (case == 'poisoned')
    assert list(cut['state_dict']) == list(plain['state_dict'])
    for part in ('state_dict', 'optimizer', 'online_probe', 'knn'):
        close(cut.get(part), plain.get(part))
    weights = plain['state_dict']
    moved = [(weights[f'teacher.{k}'] - weights[k]).abs().max() for k in weights if f'teacher.{k}' in weights]
    assert max(moved) > 1e-4, 'the compared runs learn'
    torch.testing.assert_close(cut['health'], plain['health'], atol=1e-6, rtol=1e-4)
    if case == 'mocov2plus_lars':
        assert {'health/gradient_norm', 'health/teacher_distance'} < plain['health'].keys()


def close(one: object, other: object) -> None:
    """The same leaves, and tensors that are equal to 1e-6."""
    for mine, theirs in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)
        else:
            assert mine == theirs


def test_an_overflow_in_one_processs_rows_leaves_the_step_out_in_both(two):
    assert two[0]['overflow'] == [(False, 2.0**15, [1.0, 1.0])] * 2


def test_resumed_run_equals_uninterrupted_run(two):
    whole, left = (two[1] / part / 'iter_6.pth' for part in ('whole', 'left'))
    resuming.assert_the_same_run(whole, left)
    kept = sorted(path.name for path in left.parent.glob('*.pth'))
    assert kept == ['iter_4.pth', 'iter_6.pth'], 'max_keep_ckpts'


def test_with_bf16_weights_are_kept_averaged_and_saved_in_float32(two):
    found = two[0]['bf16']
    assert found['losses'].isfinite().all()
    assert {value.dtype for value in found['state_dict'].values()} == {torch.float32, torch.int64}
    for part in ('backbone.', 'teacher.backbone.'):
        weights = [value for key, value in found['state_dict'].items() if key.startswith(part) and value.ndim == 4]
        assert not any(torch.equal(weight, weight.bfloat16().float()) for weight in weights)


@pytest.fixture
def whole(two) -> Path:
    return two[1] / 'whole' / 'iter_6.pth'


def test_a_consolidated_file_holds_the_weights_alone(whole, tmp_path):
    said = consolidate(whole.parent, tmp_path / 'weights.pth')
    found, saved = load(tmp_path / 'weights.pth'), load_checkpoint(whole)
    assert f'{len(saved["state_dict"])} tensors of iter_6.pth' in said and set(found) == {'meta', 'state_dict'}
    assert differing(saved['state_dict'], found['state_dict'], '') == []


@pytest.mark.parametrize('strategy', ['zero3_offload', None])
def test_a_checkpoint_of_two_processes_is_taken_up_by_one_in_any_stage_and_in_none(whole, tmp_path, strategy):
    cfg = script.config('mocov2plus_lars', str(tmp_path), strategy, 6)
    cfg.merge_from_dict(dict(resume=True, load_from=str(whole)))
    run.share_batch(cfg, 1)
    try:
        runner = run.build_runner(cfg)
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
        runner.load_or_resume()
        next(hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook)).states = []
        saved, found = load_checkpoint(whole), runner.snapshot(dict(epoch=0, iter=6), True, True)
        for part in ('state_dict', 'optimizer', 'param_schedulers'):
            assert differing(saved[part], found[part], f'{strategy}.{part}') == []
    finally:
        if dist.is_initialized():  # by a strategy
            dist.destroy_process_group()


def test_a_process_holds_its_share_and_stage_3_gives_blocks_back_behind_the_forward_pass(two):
    (of_two, whole_at_2), (of_three, whole_at_3) = two[0]['held']
    assert of_two == of_three == pytest.approx(0.5, abs=0.05) and whole_at_2 > 0 == whole_at_3


def test_a_config_takes_a_strategy_by_one_line(tmp_path):
    (tmp_path / 'mine.py').write_text(
        "_base_ = ['mmairl::byol_lars_r50_200e.py', 'mmairl::_base_/strategies/zero3_offload.py']"
    )
    strategy = load_config(str(tmp_path / 'mine.py')).strategy
    assert strategy == run.strategy_named('zero3_offload') and strategy.zero_optimization.stage == 3


NVME = dict(stage=3, offload_param=dict(device='nvme'))
WRONG = [
    (dict(type='ZeroStrategy', zero_optimization=dict(stage=4)), 'stage=4 is not a stage of'),
    (dict(type='DeepSpeedStrategy'), "'DeepSpeedStrategy' would train LARS and the teacher wrong"),
    (dict(type='ZeroStrategy', zero_optimization=NVME), "device='nvme' is not supported"),
]


def test_a_wrong_strategy_is_one_sentence(tmp_path):
    for strategy, sentence in WRONG:
        with pytest.raises(UserError, match=sentence):
            run.train(script.config('byol_lars', str(tmp_path), strategy))
    with pytest.raises(UserError, match="no config '.*zero4.py'; did you mean '.*/zero"):
        run.strategy_named('zero4')
