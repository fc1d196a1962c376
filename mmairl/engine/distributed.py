"""Train in several processes, on GPUs or CPUs: join the process group and wrap the model."""

import os
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mmengine.model import MMDistributedDataParallel
from torch import nn

from mmairl.errors import explained
from mmairl.registry import MODEL_WRAPPERS

# Each Slurm step uses one of PORTS ports, starting at FIRST_PORT. All of them are below the ports that Linux uses for
# outgoing connections.
FIRST_PORT = 15000
PORTS = 16384
LOOPBACK = '/sys/class/net/lo'


def start_processes(launcher: str, timeout: float | None = None) -> None:
    """Join the process group, with NCCL on GPUs and with gloo on CPUs. A second call does nothing.

    mmengine would join the group when it builds a runner. That would be too late, because the batch is divided among the
    processes before the runner is built. mmengine's function also requires a GPU.

    Args:
        launcher: The program that started the processes: 'none' (a single process), 'pytorch' or 'slurm'.
        timeout: Seconds that a process waits for the others in a collective operation. Default: torch's timeout.

    Raises:
        UserError: If the launcher has not set its variables, or the processes cannot connect.
    """
    if launcher == 'none' or dist.is_initialized():
        return
    options: dict[str, Any] = {}
    if timeout is not None:
        options['timeout'] = timedelta(seconds=timeout)
    advice = 'start the command with a script in tools/, or omit --launcher for one process'
    what = f'--launcher {launcher}: the processes cannot connect'
    with explained(what, advice, code='not-launched'):
        if launcher == 'slurm':
            _set_variables_from_slurm()
        if os.environ['MASTER_ADDR'] in ('127.0.0.1', 'localhost') and Path(LOOPBACK).exists():
            # All processes are on this machine, so they do not listen on the network.
            os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
        backend = 'gloo'
        if torch.cuda.is_available():
            backend = 'nccl'
            # Slurm may make only one GPU visible to each process. mmengine reads this variable, too.
            number = int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()
            os.environ['LOCAL_RANK'] = str(number)
            # With `device_id`, the GPUs connect now instead of at the first step.
            options['device_id'] = torch.device('cuda', number)
            torch.cuda.set_device(number)
        dist.init_process_group(backend, **options)


def _set_variables_from_slurm() -> None:
    """Set torch's environment variables from those of Slurm.

    The variables of the Slurm step are used instead of those of the job, because a step may be only a part of its job.
    """
    os.environ['RANK'] = os.environ['SLURM_PROCID']
    os.environ['WORLD_SIZE'] = os.environ['SLURM_STEP_NUM_TASKS']
    os.environ['LOCAL_RANK'] = os.environ['SLURM_LOCALID']
    # Jobs may share a machine, so each step needs its own port. All processes of a step compute the same port.
    step = int(os.environ.get('SLURM_JOB_ID', 0)) * 7 + int(os.environ['SLURM_STEP_ID'])
    os.environ.setdefault('MASTER_PORT', str(FIRST_PORT + step % PORTS))
    # As in mmengine, the default address is the first machine of the step.
    if 'MASTER_ADDR' not in os.environ:
        hosts = ['scontrol', 'show', 'hostname', os.environ['SLURM_STEP_NODELIST']]
        os.environ['MASTER_ADDR'] = subprocess.check_output(hosts, text=True).split()[0]


@MODEL_WRAPPERS.register_module()
class DistributedModel(MMDistributedDataParallel):
    """mmengine's DistributedDataParallel, extended to models on the CPU.

    By default, buffers are not broadcast: SyncBN keeps them equal, and the queue of MoCo v2+ alone would add 64 MiB per step.

    Args:
        module: The model.
        device_ids: The GPU of this process. Ignored if the model is on the CPU.
        kwargs: Other arguments of MMDistributedDataParallel.
    """

    def __init__(
        self, module: nn.Module, device_ids: Sequence[int] | None = None, **kwargs
    ) -> None:
        if next(module.parameters()).device.type == 'cpu':
            device_ids = None
        kwargs.setdefault('broadcast_buffers', False)
        kwargs.setdefault('gradient_as_bucket_view', True)
        super().__init__(module, device_ids=device_ids, **kwargs)
