"""A run starts only if it can train what its config states, and it never overwrites another run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import resume  # noqa: F401  registers Spoil
from harness.errors import raises_code
from mmengine.registry import RUNNERS

from mmairl.engine import run
from mmairl.engine.prepare import complete_optimizer, lock, scale_learning_rate, share_batch
from mmairl.engine.runner import Runner
from mmairl.errors import Diverged
from mmairl.signals import ARGUMENTS, prepare

WRONG = {
    'a missing section': (dict(train_cfg=None), 'not-a-training-config'),
    'a misspelled section': (dict(total_batch_sise=8), 'unknown-key'),
    'a misspelled key': ({'model.quee': 3}, 'bad-value'),
    'an unknown speed key': ({'fast.compil': True}, 'unknown-key'),
    'an unknown type': ({'model.backbone.type': 'ResNot'}, 'unknown-class'),
    'a wrong number': ({'optim_wrapper.optimizer.lr': -1.0}, 'bad-value'),
    'a queue that is too short': ({'model.queue.length': 4}, 'queue-too-short'),
    'an unknown precision': ({'fast.precision': 'int8'}, 'unknown-precision'),
    'checkpointing with batch norm': ({'fast.checkpointing': True}, 'checkpointing-batch-norm'),
    'SGD in the LARS wrapper': ({'optim_wrapper.type': 'LARSOptimWrapper'}, 'not-lars'),
    'a plateau without validation': (
        {'param_scheduler': [dict(type='ReduceOnPlateauLR', monitor='knn_accuracy')]},
        'no-validation',
    ),
    'a loss that is not finite': (
        dict(custom_hooks=[dict(type='Spoil', iterations=[1])]),
        'diverged',
    ),
    'widths that do not agree': ({'model.projector.in_channels': 24}, 'first-step'),
    'a missing checkpoint': (dict(load_from='missing.pth'), 'no-checkpoint'),
}


@pytest.mark.parametrize('case', WRONG)
def test_wrong_config_raises_before_the_first_checkpoint(toy_config, case):
    options, code = WRONG[case]
    cfg = toy_config(width=8)
    cfg.merge_from_dict(options)
    with raises_code(code):
        run.train(cfg)
    assert not list(Path(cfg.work_dir).glob('*.pth'))


@pytest.mark.parametrize(
    'interface, advice',
    [
        (lambda: None, 'resume=True.* out$'),
        (prepare, '--resume.* --work-dir$'),
    ],
    ids=['python', 'command'],
)
def test_new_run_in_a_folder_with_checkpoints_raises(toy_config, monkeypatch, interface, advice):
    for name, words in dict(resume='resume=True', folder='out').items():
        monkeypatch.setitem(ARGUMENTS, name, words)
    interface()
    cfg = toy_config(width=8, steps=2)
    run.train(cfg)
    before = {path: path.read_bytes() for path in Path(cfg.work_dir).glob('*.pth')}
    with raises_code('has-checkpoints', advice):
        run.train(toy_config(width=8, steps=2))
    assert before and before == {
        path: path.read_bytes() for path in Path(cfg.work_dir).glob('*.pth')
    }


LOCK = """
import sys, time
from mmairl.engine.prepare import lock
held = lock(sys.argv[1])
print('locked', flush=True)
time.sleep(600)
"""


def test_second_run_in_a_folder_raises(tmp_path):
    """Independent runs under srun have different values of SLURM_PROCID, so each of them must lock its folder."""
    environment = {**os.environ, 'SLURM_PROCID': '3'}
    command = [sys.executable, '-c', LOCK, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        assert 'locked\n' in iter(other.stdout.readline, '')
        with raises_code('work-dir-in-use', f'process {other.pid}'):
            lock(str(tmp_path))
        other.kill()
    lock(str(tmp_path)).close()


def test_start_prints_few_lines_and_writes_the_config(toy_config, capfd):
    cfg = toy_config(width=8, steps=2)
    runner = RUNNERS.build(cfg)
    assert isinstance(runner, Runner)
    runner.train()
    output, errors = capfd.readouterr()
    assert 1 <= len((output + errors).splitlines()) <= 10
    stored = json.loads((Path(runner.log_dir) / 'config.json').read_text())
    assert stored['total_batch_size'] == 8


def test_non_finite_loss_ends_the_run_and_keeps_the_checkpoint(toy_config):
    cfg = toy_config(width=8, steps=4, custom_hooks=[dict(type='Spoil', iterations=[3])])
    with pytest.raises(Diverged, match='iter_2.pth'):
        run.train(cfg)
    saved = torch.load(Path(cfg.work_dir) / 'iter_2.pth', weights_only=True)
    assert all(value.isfinite().all() for value in saved['state_dict'].values())
    assert not (Path(cfg.work_dir) / 'iter_3.pth').exists()


def test_batch_is_shared_among_processes_and_steps(toy_config):
    cfg = toy_config(batch=24, **{'optim_wrapper.accumulative_counts': 3})
    rate = cfg.optim_wrapper.optimizer.lr
    cfg.auto_scale_lr = dict(enable=True, base_batch_size=48)
    share_batch(cfg, 4)
    scale_learning_rate(cfg)
    assert cfg.train_dataloader.batch_size == 2
    assert cfg.optim_wrapper.optimizer.lr == rate / 2
    cfg.pop('total_batch_size')
    share_batch(cfg, 2)
    assert cfg.total_batch_size == 12
    cfg.train_dataloader.pop('batch_size')
    with raises_code('indivisible-batch'):
        share_batch(cfg, 5)


def test_lars_wrapper_builds_lars_by_default(toy_config):
    cfg = toy_config('byol_lars_r50_200e.py', width=8)
    cfg.optim_wrapper = dict(type='LARSOptimWrapper')
    complete_optimizer(cfg.optim_wrapper)
    assert cfg.optim_wrapper.optimizer == dict(type='LARS', lr=1.2, momentum=0.9, weight_decay=1e-6)
    runner = Runner.from_cfg(cfg)
    groups = runner.optim_wrapper.optimizer.param_groups
    assert len(groups) == 1 and groups[0]['eta'] == 0.001
