"""Each process gets its address, rank and GPU before it joins the process group."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness.errors import raises_code
from harness.processes import ended, free_port, wait_for
from torch import nn

from mmairl.engine.distributed import VARIABLES, DistributedModel, start_processes
from mmairl.engine.speed import lay_out


def test_launcher_without_its_variables_raises(monkeypatch):
    monkeypatch.delenv('SLURM_PROCID', raising=False)
    with raises_code('not-launched', 'SLURM_PROCID, .*slurm_train.sh'):
        start_processes('slurm')


@pytest.fixture
def launched(monkeypatch) -> Callable[..., None]:
    """Return a function that sets the variables of a launcher. `values` has one value for each variable, or one
    value for all of them.
    """

    def launched(launcher: str, *values: str, **others: str) -> None:
        for name in VARIABLES['pytorch']:
            # Monkeypatch records no deletion of a variable that is not set. Without a record, it would not
            # remove variables that the code under test sets.
            monkeypatch.setenv(name, '')
            monkeypatch.delenv(name)
        names = VARIABLES[launcher]
        for name, value in (dict(zip(names, values if len(values) > 1 else values * len(names))) | others).items():
            monkeypatch.setenv(name, value)

    return launched


def test_slurm_without_scontrol_raises(launched, tmp_path):
    launched('slurm', '0', PATH=str(tmp_path))
    with raises_code('no-scontrol'):
        start_processes('slurm')


@pytest.fixture
def joined(monkeypatch) -> dict:
    """Make torch report two GPUs, and return a dict of the arguments of `set_device` and `init_process_group`."""
    arguments = {}
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(torch.cuda, 'set_device', lambda device: arguments.update(device=device))
    monkeypatch.setattr(dist, 'init_process_group', lambda backend, **more: arguments.update(backend=backend, **more))
    monkeypatch.delenv('TORCHELASTIC_RESTART_COUNT', raising=False)
    return arguments


def test_process_selects_its_gpu_before_joining(launched, joined):
    """mmengine would join the group only when it builds a runner. mmairl joins earlier, because it needs the number of
    processes to divide the batch.
    """
    launched('pytorch', '1')
    start_processes('pytorch')
    second = torch.device('cuda', 1)
    assert joined == dict(device=second, device_id=second, backend='nccl')
    start_processes('pytorch', timeout=90)
    assert joined['timeout'] == timedelta(seconds=90)


@pytest.mark.parametrize('gpus,task', [(1, '5'), (2, '1')])
def test_slurm_task_selects_its_gpu(monkeypatch, launched, joined, gpus, task):
    """Slurm's values replace RANK, WORLD_SIZE and LOCAL_RANK even if these variables are already set."""
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: gpus)
    before = dict(RANK='0', WORLD_SIZE='0', LOCAL_RANK='0', MASTER_ADDR='node1', MASTER_PORT='1')
    launched('slurm', task, task, '0', '8', 'node[1-2]', **before)
    start_processes('slurm')
    device = torch.device('cuda', gpus - 1)
    assert joined == dict(device=device, device_id=device, backend='nccl')
    assert os.environ['RANK'] == task and os.environ['WORLD_SIZE'] == '8'
    assert os.environ['LOCAL_RANK'] == str(gpus - 1), (
        'LOCAL_RANK, by which mmengine selects a GPU, is not the index of this GPU'
    )


def test_each_step_of_slurm_has_its_own_port(launched, joined):
    """Several jobs, or several steps of a job, may run on the same machine."""
    ports = set()
    for job, step in (('1', '0'), ('1', '1'), ('2', '0')):
        launched('slurm', '0', '0', step, '8', 'n', MASTER_ADDR='node1', SLURM_JOB_ID=job)
        start_processes('slurm')
        ports.add(os.environ['MASTER_PORT'])
    assert len(ports) == 3


@pytest.mark.parametrize('gpus', [1, 2])
def test_more_processes_than_gpus_raise(monkeypatch, launched, joined, gpus):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: gpus)
    launched('pytorch', '2')
    with raises_code('no-gpu-for-process', f'torch finds {gpus} GPU'):
        start_processes('pytorch')


def test_channels_last_gradients_fit_their_buckets(recwarn):
    """If gradients had other strides than their buckets, DDP would warn and copy each of them.

    1 x 1 kernels are the difficult case, because their strides fit both memory layouts.
    """
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
    assert all(weight.grad.stride() == weight.stride() for weight in model.parameters())


SCRIPT = """
import contextlib, os, sys, time
from mmairl.engine.distributed import start_processes
start_processes('pytorch')
ours = [os.getpid(), os.getppid()]
sockets = []
for pid in ours:
    for fd in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(OSError):  # the descriptor of the listing is gone
            sockets.append(os.readlink(f'/proc/{pid}/fd/{fd}'))
for table in ('tcp', 'tcp6'):
    for line in open(f'/proc/net/{table}').readlines()[1:]:
        words = line.split()
        if words[3] == '0A' and f'socket:[{words[9]}]' in sockets:
            print('listens', words[1], flush=True)
print('process', os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_processes_of_one_machine_use_the_loopback(tmp_path):
    """The processes use the port from the environment, and end when the launcher is killed."""
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT)
    port = free_port()
    command = [sys.executable, '-m', 'mmairl.engine.launcher', '--nproc_per_node=1', str(script)]
    variables = {**os.environ, 'PORT': str(port), 'OMP_NUM_THREADS': '1'}
    launcher = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    addresses, rank = [], None
    for line in launcher.stdout:
        word, _, value = line.strip().partition(' ')
        if word == 'listens':
            addresses.append(value)
        if word == 'process':
            rank = value
            break
    assert f'0100007F:{port:04X}' in addresses
    assert all(address.startswith('0100007F:') for address in addresses), addresses
    launcher.kill()
    launcher.wait()
    wait_for(lambda: ended(rank))


# Each line is written at once. Otherwise, unbuffered output of both processes could be mixed within
# a line.
AGAIN = r"""
import os, sys
import torch, torch.distributed as dist
from mmairl.engine.distributed import start_processes
start_processes('pytorch')
if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 1:
    sys.exit(1)
joined = torch.ones(1)
dist.all_reduce(joined)
sys.stdout.write(f'joined {int(joined)}\n')
sys.stdout.flush()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_restarted_process_rejoins_the_group(tmp_path):
    (tmp_path / 'script.py').write_text(AGAIN)
    command = [sys.executable, '-m', 'mmairl.engine.launcher', '--nproc_per_node=2', '--max-restarts=1']
    process = subprocess.run([*command, tmp_path / 'script.py'], capture_output=True, text=True, timeout=600)
    assert process.returncode == 0 and process.stdout.count('joined 2') == 2, process.stdout + process.stderr
