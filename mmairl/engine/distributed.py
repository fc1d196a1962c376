"""Processes on GPUs or on CPUs, by the same code path."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from mmengine.model import MMDistributedDataParallel
from torch import nn

from mmairl.errors import UserError
from mmairl.registry import MODEL_WRAPPERS
from mmairl.signals import end_with_parent

# The environment variables that a launcher sets for each process.
VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT'),
    'slurm': ('SLURM_PROCID', 'SLURM_LOCALID', 'SLURM_STEP_ID', 'SLURM_STEP_NUM_TASKS', 'SLURM_STEP_NODELIST'),
}
FIRST_PORT, PORTS = 15000, 16384  # below those that systems give to outgoing connections


def start_processes(launcher: str, timeout: float | None = None) -> None:
    """Join the process group, over NCCL with GPUs and over gloo without, before anything asks how many processes there are.

    mmengine would do it when it builds a runner, after the batch has been divided; finding a group, it leaves it.

    Args:
        launcher: 'none', 'pytorch' or 'slurm'.
        timeout: seconds that a process waits for the others in a collective; torch's own unless given.
    """
    if launcher == 'none' or dist.is_initialized():
        return
    if missing := [name for name in VARIABLES[launcher] if name not in os.environ]:
        script = 'slurm_train.sh' if launcher == 'slurm' else 'dist_train.sh or dist_evaluate.sh'
        raise UserError(
            f'--launcher {launcher} wants {", ".join(missing)} in the environment; start with {script} of tools/, '
            'or leave --launcher out for one process'
        )
    if launcher == 'slurm':
        _take_names_from_slurm()
    backend, settings = 'gloo', {} if timeout is None else dict(timeout=timedelta(seconds=timeout))
    if torch.cuda.is_available():
        if not dist.is_nccl_available():
            raise UserError(
                f'torch {torch.__version__} is built without NCCL, by which processes with a GPU each meet; install a torch '
                'with it, or leave --launcher out for one process'
            )
        backend = 'nccl'
        settings.update(device_id=_take_gpu(launcher))  # the GPUs connect here, not at the first step
    end_with_parent()
    if sys.platform == 'linux' and os.environ['MASTER_ADDR'] in ('127.0.0.1', 'localhost'):
        os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')  # one machine: nobody outside reaches what is exchanged
    if restarts := int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)):
        settings.update(_names_of_attempt(restarts))
    dist.init_process_group(backend, **settings)


def _take_gpu(launcher: str) -> torch.device:
    """The GPU of this process's number on the machine, or the only one that a task of Slurm may see."""
    number, count = int(os.environ['LOCAL_RANK']), torch.cuda.device_count()
    if number >= count and (count > 1 or launcher == 'pytorch'):
        raise UserError(
            f'process {number} of this machine, counted from 0, finds {count} GPUs; start as many as there are'
        )
    os.environ['LOCAL_RANK'] = str(min(number, count - 1))  # mmengine takes it for the GPU's number
    device = torch.device('cuda', min(number, count - 1))
    torch.cuda.set_device(device)
    return device


def _take_names_from_slurm() -> None:
    """Set torch's variables from those of the step that srun started; the job may be larger than the step."""
    for name, slurms in (('RANK', 'PROCID'), ('WORLD_SIZE', 'STEP_NUM_TASKS'), ('LOCAL_RANK', 'LOCALID')):
        os.environ[name] = os.environ[f'SLURM_{slurms}']
    # jobs may share a machine: each step has a port of its own, the same one in all its tasks
    step = int(os.environ.get('SLURM_JOB_ID', 0)) * 7 + int(os.environ['SLURM_STEP_ID'])
    os.environ.setdefault('MASTER_PORT', str(FIRST_PORT + step % PORTS))
    if 'MASTER_ADDR' not in os.environ:  # the first machine of the step, as mmengine finds it for GPUs
        hosts = ['scontrol', 'show', 'hostname', os.environ['SLURM_STEP_NODELIST']]
        try:
            os.environ['MASTER_ADDR'] = subprocess.check_output(hosts, text=True).split()[0]
        except FileNotFoundError:
            raise UserError(
                "Slurm's scontrol, which knows the first machine of the step, is not on the PATH; set MASTER_ADDR to its name"
            ) from None


def _names_of_attempt(restarts: int) -> dict:
    """Return a store with a prefix for each restart: torchrun's still holds the addresses of the processes before."""
    rank, world_size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    store = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), world_size, is_master=False)
    return dict(store=dist.PrefixStore(f'attempt {restarts}', store), rank=rank, world_size=world_size)


@MODEL_WRAPPERS.register_module()
class DistributedModel(MMDistributedDataParallel):
    """mmengine's DDP, which names a GPU per process, without the name where there is no GPU.

    Buffers are not broadcast: SyncBN keeps them equal, and the queue alone would be 64 MiB a step.
    """

    def __init__(self, module: nn.Module, device_ids: Sequence[int] | None = None, **kwargs) -> None:
        if next(module.parameters()).device.type == 'cpu':
            device_ids = None
        kwargs.setdefault('broadcast_buffers', False)
        kwargs.setdefault('gradient_as_bucket_view', True)
        super().__init__(module, device_ids=device_ids, **kwargs)
