"""Runs under DeepSpeed's ZeRO are the runs that nobody cut up: losses, weights, teacher, queue, optimizer, checkpoints."""

import copy
import os
import re
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

pytest.importorskip('deepspeed')
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
    for part in ('state_dict', 'optimizer', 'online_probe'):
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


def test_the_runs_learn_and_the_teacher_follows(equal):
    """The control of the test above: what is equal has moved, by much more than what may differ."""
    for case in script.RUNS:
        weights = equal[f'{case}/None']['state_dict']
        moved = [(weights[f'teacher.{k}'] - weights[k]).abs().max() for k in weights if f'teacher.{k}' in weights]
        assert max(moved) > 1e-4, case


def test_lars_on_shards_as_they_are_is_another_optimizer(equal):
    """The control for LARS: norms of shards in place of layers' are seen by the comparison."""
    plain, naive = (equal[f'mocov2plus_lars/{name}']['losses'] for name in (None, 'naive'))
    assert (naive - plain).abs().max() > 1e-4


@pytest.fixture(scope='module')
def states(tmp_path_factory, run_processes) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp('states')
    run_processes(2, SCRIPT, 'states', folder / 'found.pth', folder)
    return load(folder / 'found.pth'), folder


@pytest.mark.parametrize('name', ['zero1', 'zero3', 'bf16_zero2', 'bf16_zero3'])
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(states, name):
    """Under bfloat16 too: student, teacher and momentum go on from float32."""
    whole, left = (states[1] / f'{name}_{part}' / 'iter_6.pth' for part in ('whole', 'left'))
    resuming.assert_the_same_run(whole, left)
    kept = sorted(path.name for path in left.parent.glob('*.pth'))
    assert kept == ['iter_4.pth', 'iter_6.pth'], 'max_keep_ckpts'


@pytest.mark.parametrize('name', ['zero3', 'bf16_zero1', 'bf16_zero2', 'bf16_zero3'])
def test_200_updates_are_the_closed_form(states, name):
    """Of a student that stands still, at m = 0.9999; on weights below 0.1, as most are, where float32 holds 1e-8."""
    before, after = (states[0]['averaged'][name][when] for when in ('before', 'after'))
    names = [key for key in before if key.startswith('teacher.') and key.endswith(('weight', 'bias'))]
    assert len(names) == 12
    for key in names:
        torch.testing.assert_close(
            after[key].double(),
            after_200(before[key], before[key.removeprefix('teacher.')]),
            atol=1e-6,
            rtol=0,
            msg=key,
        )


def after_200(teacher: torch.Tensor, student: torch.Tensor, momentum: float = 0.9999) -> torch.Tensor:
    """T = m^200 T0 + (1 - m^200) S."""
    return momentum**200 * teacher.double() + (1 - momentum**200) * student.double()


def test_without_float32_the_updates_are_rounded_away(states):
    """The control of the test above: what DeepSpeed's cast alone would leave."""
    before = states[0]['averaged']['bf16_zero3']['before']
    for key in ('backbone.blocks.0.norm.weight', 'backbone.blocks.1.conv.weight'):
        start, student = before[f'teacher.{key}'].bfloat16(), before[key].bfloat16()
        teacher = start.clone()
        for _ in range(200):
            teacher.lerp_(student, 1 - 0.9999)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(teacher.double(), after_200(start, student), atol=1e-6, rtol=0)


@pytest.mark.parametrize('stage', ['zero2', 'zero3'])
def test_in_bfloat16_the_teacher_is_the_average_of_the_students_float32_weights(states, stage):
    found = states[0]['followed'][stage]
    weights, momenta = found['weights'], found['momenta']
    names = [key for key in weights[0] if f'teacher.{key}' in weights[0] and key.endswith(('weight', 'bias'))]
    teacher = {key: weights[0][f'teacher.{key}'].double() for key in names}
    for momentum, student in zip(momenta, weights[1:], strict=True):
        teacher = {key: momentum * teacher[key] + (1 - momentum) * student[key].double() for key in names}
    assert len(momenta) == 5 and found['losses'].isfinite().all()
    for key in names:
        torch.testing.assert_close(weights[-1][f'teacher.{key}'].double(), teacher[key], atol=1e-6, rtol=0, msg=key)
    assert {value.dtype for value in found['state_dict'].values()} == {torch.float32, torch.int64}
    rounded = [torch.equal(weights[-1][key], weights[-1][key].bfloat16().float()) for key in names]
    assert not all(rounded), 'the checkpoint holds the float32 masters'


def test_a_consolidated_file_evaluates_as_the_run_did_in_place(states, tmp_path):
    """k-NN beside a run under ZeRO-3 in two processes, and afterwards in one from the file."""
    from torch.utils.data import Subset

    from mmairl.evaluation.backbone import load_backbone
    from mmairl.evaluation.features import Extraction, extract
    from mmairl.evaluation.knn import knn_accuracy
    from mmairl.registry import DATASETS

    said = consolidate(states[1] / 'measured', tmp_path / 'weights.pth')
    assert 'tensors of iter_5.pth' in said
    assert set(load(tmp_path / 'weights.pth')) == {'meta', 'state_dict'}
    backbone = load_backbone(script.config('byol', str(tmp_path / 'run'), small=False), tmp_path / 'weights.pth')
    settings = Extraction((0.0,) * 3, (1.0,) * 3, device='cpu')
    data = [DATASETS.build(copy.deepcopy(script.DATA[part])) for part in ('train', 'test')]
    train, test = (extract(backbone, Subset(part, range(len(part))), settings) for part in data)
    assert knn_accuracy(train, test, [20], device='cpu')[20] == states[0]['measured']['knn']


def test_a_checkpoint_of_two_processes_is_taken_up_by_one_in_any_stage_and_in_none(states, tmp_path, run_processes):
    run_processes(1, SCRIPT, 'load', tmp_path / 'found.pth', states[1])
    saved = load_checkpoint(states[1] / 'zero3_whole' / 'iter_6.pth')
    found = load(tmp_path / 'found.pth')
    said = found.pop('refused')
    assert 'an optimizer with 1 parameters in 1 group and momentum, and this run has one with' in said['optimizer']
    assert re.search('DeepSpeed refuses the strategy .*reduce_buckets', said['misspelt'])
    assert torch.cuda.is_available() or 'fp16 is not supported on your device' in said['float16']
    assert len(found) == 5
    for strategy, taken_up in found.items():
        for part in ('state_dict', 'optimizer', 'param_schedulers'):
            assert differing(saved[part], taken_up[part], f'{strategy}.{part}') == []


def test_a_killed_process_is_replaced_and_the_run_ends_as_one_that_nobody_touched(states, tmp_path):
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2', '--max-restarts=1']
    path = os.pathsep.join([str(SCRIPT.parents[2]), str(SCRIPT.parent)])
    done = subprocess.run(
        [*command, str(SCRIPT), 'killed', str(tmp_path / 'found.pth'), str(tmp_path)],
        env={**os.environ, 'PYTHONPATH': path, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert re.search(r'exitcode: -9', done.stderr)
    resuming.assert_the_same_run(states[1] / 'zero3_whole' / 'iter_6.pth', tmp_path / 'killed' / 'iter_6.pth')


def test_a_user_types_one_word(tmp_path):
    options = ['train_cfg.max_epochs=1', 'train_dataloader.dataset.count=64', 'total_batch_size=32']
    options += ['model.queue.length=64', 'default_hooks.checkpoint.interval=1', 'default_hooks.health.interval=1']
    command = ['tools/dist_train.sh', 'configs/demo/mocov2plus_shapes.py', '2', '--strategy', 'zero3']
    done = subprocess.run(
        [*command, '--work-dir', str(tmp_path), '--cfg-options', *options],
        cwd=SCRIPT.parents[2],
        env={**os.environ, 'PYTHON': sys.executable, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    weights = load_checkpoint(tmp_path / 'epoch_1.pth')['state_dict']
    assert weights['backbone.conv1.weight'].dim() == 4 and weights['teacher.backbone.conv1.weight'].dim() == 4


def test_a_config_takes_a_strategy_by_one_line(tmp_path):
    (tmp_path / 'mine.py').write_text(
        "_base_ = ['mmairl::byol_lars_r50_200e.py', 'mmairl::_base_/strategies/zero3_offload.py']"
    )
    strategy = launch.load_config(str(tmp_path / 'mine.py')).strategy
    assert strategy == launch.strategy_named('zero3_offload') and strategy.zero_optimization.stage == 3


WRONG = {
    'a stage that there is not': (dict(type='ZeroStrategy', zero_optimization=dict(stage=4)), 'stage=4 is not one of'),
    "another engine's shards": (dict(type='DeepSpeedStrategy'), "'DeepSpeedStrategy' is not one that keeps LARS"),
    'a disk for memory': (
        dict(type='ZeroStrategy', zero_optimization=dict(stage=3, offload_param=dict(device='nvme'))),
        "device='nvme' is not supported",
    ),
}


@pytest.mark.parametrize('strategy,sentence', WRONG.values(), ids=list(WRONG))
def test_a_wrong_strategy_is_one_sentence(tmp_path, strategy, sentence):
    with pytest.raises(UserError, match=sentence):
        launch.train(script.config('byol_lars', str(tmp_path), strategy))


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    from mmairl.sharding import strategy

    monkeypatch.delattr(strategy, 'deepspeed')
    with pytest.raises(UserError, match='wants DeepSpeed, which is not installed: pip install'):
        launch.train(script.config('byol', str(tmp_path), 'zero2'))


def test_a_strategy_that_there_is_not_is_one_sentence():
    with pytest.raises(UserError, match="no strategy 'zero4'; did you mean 'zero"):
        launch.strategy_named('zero4')


def test_a_folder_of_shards_is_refused(tmp_path):
    (tmp_path / 'epoch_3.pth').mkdir()
    (tmp_path / 'epoch_3.pth' / 'zero_pp_rank_0_mp_rank_00_optim_states.pt').touch()
    cfg = script.config('byol', str(tmp_path / 'run'), resume=True, load_from=str(tmp_path / 'epoch_3.pth'))
    with pytest.raises(UserError, match='is a folder of shards'):
        launch.train(cfg)
    with pytest.raises(UserError, match="holds DeepSpeed's own shards"):
        consolidate(tmp_path / 'epoch_3.pth', tmp_path / 'out.pth')


def test_lars_refuses_weights_that_another_engine_has_cut_up():
    from mmairl.optim import LARS

    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.device_mesh, weight.grad = 'of FSDP2', torch.ones(4, 4)
    with pytest.raises(UserError, match='FSDP gives it parts'):
        LARS([weight], lr=0.1).step()
