"""Each process gets its address, rank and GPU before it joins the process group."""

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness.errors import raises_code
from torch import nn

from mmairl.engine.distributed import DistributedModel, start_processes
from mmairl.engine.speed import lay_out

VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT'),
    'slurm': (
        'SLURM_PROCID',
        'SLURM_LOCALID',
        'SLURM_STEP_ID',
        'SLURM_STEP_NUM_TASKS',
        'SLURM_STEP_NODELIST',
    ),
}


@pytest.fixture
def launched(monkeypatch) -> Callable[..., None]:
    """Return a function that sets the variables of a launcher: one value for each, or one value for all of them."""

    def launched(launcher: str, *values: str, **others: str) -> None:
        for name in VARIABLES['pytorch']:
            # Monkeypatch removes a variable that the code under test sets only if it has recorded the variable.
            monkeypatch.setenv(name, '')
            monkeypatch.delenv(name)
        names = VARIABLES[launcher]
        for name, value in (
            dict(zip(names, values if len(values) > 1 else values * len(names))) | others
        ).items():
            monkeypatch.setenv(name, value)

    return launched


@pytest.fixture
def joined(monkeypatch) -> dict:
    """Make torch report two GPUs, and return a dict of the arguments of `set_device` and `init_process_group`."""
    arguments = {}
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(torch.cuda, 'set_device', lambda device: arguments.update(device=device))
    monkeypatch.setattr(
        dist,
        'init_process_group',
        lambda backend, **more: arguments.update(backend=backend, **more),
    )
    return arguments


def test_missing_variables_raise(monkeypatch):
    monkeypatch.delenv('SLURM_PROCID', raising=False)
    with raises_code('not-launched'):
        start_processes('slurm')


def test_process_selects_its_gpu_before_joining(launched, joined):
    launched('pytorch', '1')
    start_processes('pytorch', timeout=90)
    second = torch.device('cuda', 1)
    assert joined == dict(device=1, device_id=second, backend='nccl', timeout=timedelta(seconds=90))


@pytest.mark.parametrize('gpus,task', [(1, '5'), (2, '1')])
def test_slurm_task_selects_its_gpu(monkeypatch, launched, joined, gpus, task):
    """Slurm's values replace RANK, WORLD_SIZE and LOCAL_RANK even if these variables are already set."""
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: gpus)
    before = dict(RANK='0', WORLD_SIZE='0', LOCAL_RANK='0', MASTER_ADDR='node1', MASTER_PORT='1')
    launched('slurm', task, task, '0', '8', 'node[1-2]', **before)
    start_processes('slurm')
    assert joined['device'] == gpus - 1
    assert os.environ['RANK'] == task and os.environ['WORLD_SIZE'] == '8'
    assert os.environ['LOCAL_RANK'] == str(gpus - 1)


def test_each_step_of_slurm_has_its_own_port(launched, joined):
    ports = set()
    for job, step in (('1', '0'), ('1', '1'), ('2', '0')):
        launched('slurm', '0', '0', step, '8', 'n', MASTER_ADDR='node1', SLURM_JOB_ID=job)
        start_processes('slurm')
        ports.add(os.environ['MASTER_PORT'])
    assert len(ports) == 3


def test_channels_last_gradients_fit_their_buckets(recwarn):
    """If gradients had other strides than their buckets, DDP would warn and copy each of them."""
    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 1))
        lay_out(model, dict(channels_last=True))
        wrapped = DistributedModel(model)
        # The runner also changes the memory layout back and forth, to initialize the weights.
        model.to(memory_format=torch.contiguous_format)
        lay_out(model, dict(channels_last=True))
        images = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        for _ in range(2):
            wrapped(images).square().mean().backward()
    finally:
        dist.destroy_process_group()
    assert not [warning for warning in recwarn if 'bucket' in str(warning.message)]
