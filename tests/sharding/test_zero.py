"""Runs under ZeRO are the runs of whole networks: losses, weights, teacher, queue, optimizer, checkpoints."""

import subprocess
import sys
from pathlib import Path

import pytest
import resuming
import torch
import zero_two_processes as script

from mmairl.engine import launch
from mmairl.engine.checkpoint import load_checkpoint
from mmairl.errors import UserError
from mmairl.sharding.consolidate import consolidate
from projects.faults.compare import differing

SCRIPT = Path(script.__file__)
PAIRS = [(case, strategy) for case, strategies in script.RUNS.items() for strategy in strategies]


def load(path: Path) -> dict:
    launch.trust_mmengine_checkpoints()
    return torch.load(path, weights_only=True)


@pytest.fixture(scope='module')
def equal(tmp_path_factory, run_processes) -> dict:
    folder = tmp_path_factory.mktemp('equal')
    run_processes(2, SCRIPT, 'equal', folder / 'found.pth', folder)
    return load(folder / 'found.pth')


@pytest.mark.parametrize('case,strategy', PAIRS)
def test_five_steps_equal_those_of_ddp(equal, case, strategy):
    """Student, teacher, queue and the optimizer's state to 1e-6; losses, which are sums over images, to as many digits."""
    plain, cut = equal[f'{case}/None'], equal[f'{case}/{strategy}']
    torch.testing.assert_close(cut['losses'], plain['losses'], atol=0, rtol=2e-6, equal_nan=True)
    assert cut['skipped'] == plain['skipped'] == (case == 'poisoned')
    assert list(cut['state_dict']) == list(plain['state_dict'])
    for part in ('state_dict', 'optimizer', 'online_probe', 'knn'):
        close(cut.get(part), plain.get(part), part)


def close(one: object, other: object, name: str) -> None:
    """The same structure, and tensors that are equal to 1e-6."""
    if isinstance(other, dict):
        assert one.keys() == other.keys(), name
        for key in other:
            close(one[key], other[key], f'{name}.{key}')
    elif isinstance(other, list):
        assert len(one) == len(other), name
        for place, pair in enumerate(zip(one, other)):
            close(*pair, f'{name}.{place}')
    elif isinstance(other, torch.Tensor):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6, msg=lambda text: f'{name}: {text}')
    else:
        assert one == other, name


@pytest.mark.parametrize('strategy', script.RUNS['mocov2plus_lars'])
def test_the_health_curves_are_the_same(equal, strategy):
    """Norms of gradients, weights and updates by stage, and the teacher's distance, are of whole layers."""
    plain, cut = (equal[f'mocov2plus_lars/{name}']['health'] for name in (None, strategy))
    assert cut.keys() == plain.keys() and {'health/gradient_norm', 'health/teacher_distance'} < plain.keys()
    for name, values in plain.items():
        torch.testing.assert_close(
            cut[name], values, atol=1e-6, rtol=1e-4, msg=lambda text, name=name: f'{name}: {text}'
        )


def test_the_compared_runs_learn_and_a_wrong_lars_is_seen(equal):
    """Controls: weights and teacher have moved, and norms of a process's rows give other weights."""
    for case in script.RUNS:
        weights = equal[f'{case}/None']['state_dict']
        moved = [(weights[f'teacher.{k}'] - weights[k]).abs().max() for k in weights if f'teacher.{k}' in weights]
        assert max(moved) > 1e-4, case
    plain, wrong = (equal[f'mocov2plus_lars/{name}']['state_dict'] for name in (None, 'wrong'))
    with pytest.raises(AssertionError):
        close(wrong, plain, 'state_dict')


@pytest.fixture(scope='module')
def states(tmp_path_factory, run_processes) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp('states')
    run_processes(2, SCRIPT, 'states', folder / 'found.pth', folder)
    return load(folder / 'found.pth'), folder


@pytest.mark.parametrize('name', ['zero2', 'bf16'])
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(states, name):
    whole, left = (states[1] / f'{name}_{part}' / 'iter_6.pth' for part in ('whole', 'left'))
    resuming.assert_the_same_run(whole, left)
    kept = sorted(path.name for path in left.parent.glob('*.pth'))
    assert kept == ['iter_4.pth', 'iter_6.pth'], 'max_keep_ckpts'


def test_with_bf16_weights_are_kept_averaged_and_saved_in_float32(states):
    found = states[0]
    weights, momenta = found['weights'], found['momenta']
    names = [key for key in weights[0] if f'teacher.{key}' in weights[0] and key.endswith(('weight', 'bias'))]
    teacher = {key: weights[0][f'teacher.{key}'].double() for key in names}
    for momentum, student in zip(momenta, weights[1:], strict=True):
        teacher = {key: momentum * teacher[key] + (1 - momentum) * student[key].double() for key in names}
    assert len(momenta) == 5 and found['losses'].isfinite().all()
    for key in names:
        torch.testing.assert_close(weights[-1][f'teacher.{key}'].double(), teacher[key], atol=1e-6, rtol=0, msg=key)
    assert {value.dtype for value in found['state_dict'].values()} == {torch.float32, torch.int64}
    assert not all(torch.equal(weights[-1][key], weights[-1][key].bfloat16().float()) for key in names)


def test_a_consolidated_file_holds_the_weights_alone(states, tmp_path):
    said = consolidate(states[1] / 'zero2_whole', tmp_path / 'weights.pth')
    found, saved = load(tmp_path / 'weights.pth'), load_checkpoint(states[1] / 'zero2_whole' / 'iter_6.pth')
    assert f'{len(saved["state_dict"])} tensors of iter_6.pth' in said and set(found) == {'meta', 'state_dict'}
    assert differing(saved['state_dict'], found['state_dict'], '') == []


def test_a_checkpoint_of_two_processes_is_taken_up_by_one_in_any_stage_and_in_none(states, tmp_path, run_processes):
    run_processes(1, SCRIPT, 'reload', tmp_path / 'found.pth', states[1])
    saved = load_checkpoint(states[1] / 'zero2_whole' / 'iter_6.pth')
    for strategy, found in load_checkpoint(tmp_path / 'found.pth').items():
        for part in ('state_dict', 'optimizer', 'param_schedulers'):
            assert differing(saved[part], found[part], f'{strategy}.{part}') == []


def test_a_config_takes_a_strategy_by_one_line(tmp_path):
    (tmp_path / 'mine.py').write_text(
        "_base_ = ['mmairl::byol_lars_r50_200e.py', 'mmairl::_base_/strategies/zero3_offload.py']"
    )
    strategy = launch.load_config(str(tmp_path / 'mine.py')).strategy
    assert strategy == launch.strategy_named('zero3_offload') and strategy.zero_optimization.stage == 3


WRONG = {
    'a stage that does not exist': (
        dict(type='ZeroStrategy', zero_optimization=dict(stage=4)),
        'stage=4 is not one of',
    ),
    'another engine': (dict(type='DeepSpeedStrategy'), "'DeepSpeedStrategy' would train LARS and the teacher wrong"),
    'a disk for memory': (
        dict(type='ZeroStrategy', zero_optimization=dict(stage=3, offload_param=dict(device='nvme'))),
        "device='nvme' is not supported",
    ),
    'float16': (
        dict(type='ZeroStrategy', zero_optimization=dict(stage=2), fp16=dict(enabled=True)),
        "key 'fp16', which is not supported",
    ),
}


@pytest.mark.parametrize('strategy,sentence', WRONG.values(), ids=list(WRONG))
def test_a_wrong_strategy_is_one_sentence(tmp_path, strategy, sentence):
    with pytest.raises(UserError, match=sentence):
        launch.train(script.config('byol_lars', str(tmp_path), strategy))


def test_an_unknown_name_of_a_strategy_is_one_sentence():
    with pytest.raises(UserError, match="no strategy 'zero4'; did you mean 'zero"):
        launch.strategy_named('zero4')


def test_a_run_without_a_strategy_imports_nothing_of_it():
    code = (
        'import sys; from mmairl.engine import launch; from mmairl import hooks; launch.register(); '
        "assert 'mmairl.sharding.zero' not in sys.modules"
    )
    subprocess.run([sys.executable, '-c', code], check=True, cwd=SCRIPT.parents[2])
