"""What a process must be told before it can join the others."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from mmairl.engine.distributed import TOLD, start_processes
from mmairl.errors import UserError


@pytest.mark.parametrize('launcher,script', [('pytorch', 'tools/dist_train.sh'), ('slurm', 'tools/slurm_train.sh')])
def test_a_launcher_that_was_named_and_did_not_start_the_process_is_one_sentence(monkeypatch, launcher, script):
    for name in TOLD[launcher]:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=f'--launcher {launcher} wants .* in the environment; start with {script}'):
        start_processes(launcher)


def test_slurm_without_its_tools_is_one_sentence(monkeypatch, tmp_path):
    for name in TOLD['slurm']:
        monkeypatch.setenv(name, '0')
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_PORT'):
        monkeypatch.setenv(name, '0')  # so that what is set meanwhile is taken back
    monkeypatch.delenv('MASTER_ADDR', raising=False)
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(UserError, match='scontrol, .* is not on the PATH; set MASTER_ADDR'):
        start_processes('slurm')


@pytest.fixture
def joined(monkeypatch) -> dict:
    """A machine of two GPUs, as far as one can tell without; what was asked of torch."""
    asked = {}
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(torch.cuda, 'set_device', lambda device: asked.update(device=device))
    monkeypatch.setattr(dist, 'init_process_group', lambda backend, **more: asked.update(backend=backend, **more))
    monkeypatch.delenv('TORCHELASTIC_RESTART_COUNT', raising=False)
    return asked


def test_gpus_are_joined_before_anything_asks_how_many_there_are(monkeypatch, joined):
    """mmengine joins them when it builds a runner: by then each process would have taken the whole batch."""
    for name in TOLD['pytorch']:
        monkeypatch.setenv(name, '1')
    start_processes('pytorch')
    assert joined == dict(device=1, backend='nccl')
    start_processes('pytorch', timeout=90)
    assert joined['timeout'] == timedelta(seconds=90)


def test_a_task_of_slurm_that_sees_one_gpu_takes_it(monkeypatch, joined):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_PORT'):
        monkeypatch.setenv(name, '')  # so that what is set meanwhile is taken back
        monkeypatch.delenv(name)
    for name, value in zip(TOLD['slurm'], ('5', '8', '5', 'node[1-2]')):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('MASTER_ADDR', 'node1')
    start_processes('slurm')
    assert joined == dict(device=0, backend='nccl') and os.environ['RANK'] == '5' and os.environ['WORLD_SIZE'] == '8'
    assert os.environ['LOCAL_RANK'] == '0', 'mmengine takes it for the number of the GPU'


def test_slurm_says_which_gpu_and_not_what_was_there_before(monkeypatch, joined):
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK'):
        monkeypatch.setenv(name, '0')
    for name, value in zip(TOLD['slurm'], ('1', '2', '1', 'node1')):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('MASTER_ADDR', 'node1')
    monkeypatch.setenv('MASTER_PORT', '1')
    start_processes('slurm')
    assert joined['device'] == 1


def test_more_processes_than_gpus_are_one_sentence(monkeypatch, joined):
    for name in TOLD['pytorch']:
        monkeypatch.setenv(name, '2')
    with pytest.raises(UserError, match='process 2 of this machine, counted from 0, finds 2 GPUs'):
        start_processes('pytorch')


def test_one_process_needs_to_be_told_nothing(monkeypatch):
    for name in TOLD['pytorch']:
        monkeypatch.delenv(name, raising=False)
    start_processes('none')
