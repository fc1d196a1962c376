"""Runs under DeepSpeed equal runs under DDP, can switch between strategies, and end in ordinary checkpoints."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import resume as resuming
from harness import sharding
from harness.compare import differing
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.engine import run
from mmairl.engine.checkpoint import consolidate, load_checkpoint
from mmairl.engine.sharding import strategy_of

ROOT = Path(__file__).parents[3]
needs_deepspeed = pytest.mark.skipif(
    find_spec('deepspeed') is None, reason='DeepSpeed is not installed (requirements/deepspeed.txt)'
)


@pytest.fixture(autouse=True)
def leave_group() -> Iterator[None]:
    """After each test, leave the process group that a strategy has joined."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes) -> tuple[dict, Path]:
    """Return what the runs of two processes saved, and the folder of these runs."""
    folder = tmp_path_factory.mktemp('deepspeed')
    run_processes(2, sharding.__file__, folder / 'found.pth', folder, 'deepspeed')
    return sharding.load(folder / 'found.pth'), folder


@needs_deepspeed
@pytest.mark.parametrize('case,strategy', sharding.EQUAL['deepspeed'])
def test_five_steps_equal_those_of_ddp(two, case, strategy):
    """The cases include accumulation, gradient clipping, skipped steps and mixed precision."""
    outcomes, _ = two
    sharding.assert_equal(outcomes[f'{case}/{strategy}'], outcomes[f'{case}/None'])


@needs_deepspeed
def test_resumed_run_equals_uninterrupted_run(two):
    whole, interrupted = (two[1] / part / 'iter_6.pth' for part in ('whole', 'interrupted'))
    resuming.assert_the_same_run(whole, interrupted)


@needs_deepspeed
def test_run_switches_strategies_in_the_middle(two):
    """The run takes two iterations each under DeepSpeed's stage 2, ZeroStrategy, DDP and DeepSpeed's stage 1."""
    switched, ddp = (load_checkpoint(two[1] / part / 'iter_8.pth') for part in ('switched', 'ddp'))
    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        sharding.assert_close(switched[part], ddp[part])


@needs_deepspeed
def test_nothing_is_compiled(two):
    """By itself, DeepSpeed would compile a collective for CPUs, which takes 90 s and fails if the path of the Python
    environment has a space.
    """
    assert two[0]['compiled'] == []


@needs_deepspeed
def test_one_process_resumes_checkpoint_of_two(two, tmp_path):
    path = two[1] / 'whole' / 'iter_6.pth'
    resumed, saved = sharding.resume_alone('mocov2plus', path, tmp_path, 'deepspeed1'), load_checkpoint(path)
    for part in ('state_dict', 'optimizer', 'param_schedulers'):
        assert differing(saved[part], resumed[part], part) == []


@needs_deepspeed
@pytest.mark.parametrize('stage', [2, 3])
def test_consolidated_folder_has_float32_weights(two, tmp_path, stage):
    folder = two[1] / f'stage{stage}' / 'epoch_1.pth'
    consolidate(folder, tmp_path / 'weights.pth')
    content = sharding.load(tmp_path / 'weights.pth')
    expected = sharding.load(two[1] / f'stage{stage}.pth')
    assert content['meta'] == dict(epoch=1)
    assert content['state_dict'].pop('1.count').tolist() == [1.0] * 3
    assert content['state_dict'].keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(content['state_dict'][key], value), key
    next(folder.glob('*rank_1*optim_states.pt')).unlink()
    with raises_code('bad-folder'):
        consolidate(folder, tmp_path / 'weights.pth')


@needs_deepspeed
def test_run_recovers_from_a_killed_process(two, tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / 'tests')])
    command = [sys.executable, '-m', 'mmairl.engine.launcher', '--nproc_per_node=2', '--max-restarts=1']
    process = subprocess.run(
        [*command, sharding.__file__, tmp_path],
        env={**os.environ, 'PYTHONPATH': path, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    resuming.assert_the_same_run(two[1] / 'whole' / 'iter_6.pth', tmp_path / 'iter_6.pth')


TINY = """
_base_ = 'mmairl::vit/mocov2plus_vit_s16_300e.py'
custom_imports = dict(imports=['harness.resume'])
arch = dict(embed_dims=32, num_layers=1, num_heads=2, feedforward_channels=32)
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpretrain.VisionTransformer',
        arch=arch,
        img_size=32,
        patch_size=8,
        out_type='cls_token',
    ),
    projector=dict(in_channels=32, hidden_channels=32),
    predictor=dict(hidden_channels=32),
    queue=dict(length=32),
)
total_batch_size = 16
view = [dict(type='RandomResizedCrop', size=32)]
dataset = dict(_delete_=True, type='Shapes', count=48, size=32, views=[view, view])
train_dataloader = dict(dataset=dataset, num_workers=0)
train_cfg = dict(max_epochs=2)
param_scheduler = []
default_hooks = dict(checkpoint=dict(interval=1))
"""
STOP = "custom_hooks = [dict(type='SignalAt', iteration=4, number=15)]"
IN_MMPRETRAIN = """
import sys, torch
from mmpretrain.models import VisionTransformer
arch = dict(embed_dims=32, num_layers=1, num_heads=2, feedforward_channels=32)
init = dict(type='Pretrained', checkpoint=sys.argv[1], prefix='backbone.')
model = VisionTransformer(arch, 32, 8, out_type='cls_token', init_cfg=init)
model.init_weights()
saved = torch.load(sys.argv[1], weights_only=True)['state_dict']
assert all(torch.equal(value, saved[f'backbone.{key}']) for key, value in model.state_dict().items())
assert 'mmairl' not in sys.modules
"""


@needs_deepspeed
def test_dist_train_stops_resumes_and_mmpretrain_loads(tmp_path):
    environment = {**os.environ, 'PYTHON': sys.executable, 'PYTHONPATH': str(ROOT / 'tests'), 'OMP_NUM_THREADS': '1'}

    def run_command(*command: object) -> int:
        log = (tmp_path / 'log.txt').open('w')
        return subprocess.run(command, env=environment, stdout=log, stderr=log, cwd=tmp_path, timeout=600).returncode

    for name, text in dict(stop=TINY + STOP, tiny=TINY).items():
        (tmp_path / f'{name}.py').write_text(text)
    strategy = ('2', '--strategy', 'deepspeed2', '--work-dir', tmp_path / 'run')
    train = ROOT / 'tools/dist_train.sh'
    assert run_command(train, 'stop.py', *strategy) == 75, (tmp_path / 'log.txt').read_text()[-3000:]
    assert run_command(train, 'tiny.py', *strategy, '--resume') == 0, (tmp_path / 'log.txt').read_text()[-3000:]
    log = (tmp_path / 'log.txt').read_text()
    assert 'resumed after' in log
    checkpoint = tmp_path / 'run' / 'epoch_2.pth'
    environment['PYTHONPATH'] = ''
    assert run_command(sys.executable, '-c', IN_MMPRETRAIN, checkpoint) == 0, (tmp_path / 'log.txt').read_text()[-3000:]


@needs_deepspeed
@pytest.mark.slow
def test_deepspeed_cpu_adam_equals_adamw(tmp_path):
    """DeepSpeed compiles this optimizer at its first use, which takes minutes."""
    optimizer = {'optim_wrapper.optimizer': {**sharding.ADAMW, 'type': 'DeepSpeedCPUAdam'}}
    plain = run.train(sharding.config('vit', str(tmp_path / 'plain'), None, 4)).model.state_dict()
    cfg = sharding.config('vit', str(tmp_path / 'cpu_adam'), 'deepspeed2_offload', 4, **optimizer)
    torch.testing.assert_close(dict(run.train(cfg).model.state_dict()), dict(plain), atol=1e-6, rtol=1e-5)


@needs_deepspeed
def test_failed_compilation_is_an_error(tmp_path, monkeypatch):
    from deepspeed.ops.op_builder import CPUAdamBuilder

    monkeypatch.setattr(CPUAdamBuilder, 'load', lambda _: torch.zeros(1).view(2))
    optimizer = {'optim_wrapper.optimizer': {**sharding.ADAMW, 'type': 'DeepSpeedCPUAdam'}}
    with raises_code('not-compiled'):
        run.train(sharding.config('vit', str(tmp_path), 'deepspeed2', **optimizer))


ZERO = dict(stage=2)
WRONG = [
    ('unsupported-stage', dict(zero_optimization=dict(stage=3))),
    ('unsupported-key', dict(zero_optimization=ZERO, scheduler=dict(type='WarmupLR'))),
    ('unsupported-key', dict(zero_optimization=dict(stage=2, round_robin_gradients=True))),
    ('unsupported-offload', dict(zero_optimization=dict(stage=2, offload_optimizer=dict(device='nvme')))),
    ('bad-json', dict(config=__file__)),
]


@pytest.mark.parametrize('code,settings', WRONG)
def test_unsupported_config_is_an_error(code, settings):
    with raises_code(code):
        strategy_of(Config(dict(strategy=dict(type='DeepSpeedStrategy', **settings))))


def test_strategy_deepspeed3_names_alternative():
    with raises_code('unsupported-stage', match='ZeroStrategy'):
        strategy_of(Config(dict(strategy=run.strategy_named('deepspeed3'))))


@needs_deepspeed
@pytest.mark.parametrize(
    'change,code',
    [
        ({'optim_wrapper.optimizer': dict(type='LARS', lr=1.0, _delete_=True)}, 'not-elementwise'),
        ({'optim_wrapper.clip_grad': dict(max_norm=1.0, norm_type=1)}, 'unknown-norm'),
    ],
)
def test_unsupported_optimizer_is_an_error(tmp_path, change, code):
    with raises_code(code):
        run.train(sharding.config('byol', str(tmp_path), 'deepspeed2', **change))


@pytest.mark.skipif(find_spec('deepspeed') is not None, reason='deepspeed is installed')
def test_missing_package_is_an_error(tmp_path):
    with raises_code('no-deepspeed'):
        run.train(sharding.config('byol', str(tmp_path), 'deepspeed2'))


def test_json_config_sets_keys_of_training(tmp_path):
    """For a key that is 'auto', the config of the run keeps its own value."""
    path = tmp_path / 'ds_config.json'
    keys = dict(
        train_batch_size=64,
        train_micro_batch_size_per_gpu='auto',
        gradient_accumulation_steps=4,
        gradient_clipping=0.5,
        bf16=dict(enabled=True),
        fp16=dict(enabled='auto'),
        steps_per_print=100,
        zero_optimization=ZERO,
    )
    path.write_text(json.dumps(keys))
    cfg = sharding.config('byol', str(tmp_path), run.strategy_named(str(path)))
    run.complete_config(cfg, 'none')
    wrapper = cfg.optim_wrapper
    assert cfg.total_batch_size == 64
    assert cfg.train_dataloader.batch_size == 16
    assert (wrapper.type, wrapper.dtype) == ('DeepSpeedOptimWrapper', 'bfloat16')
    assert (wrapper.accumulative_counts, wrapper.clip_grad) == (4, dict(max_norm=0.5))
    assert strategy_of(Config(dict(strategy=dict(type='DeepSpeedStrategy', config=str(path))))).zero == ZERO
