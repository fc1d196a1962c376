"""Processes on GPUs or on CPUs, by the same code path."""

import os
import subprocess
from collections.abc import Sequence

import torch
import torch.distributed as dist
from mmengine.model import MMDistributedDataParallel
from torch import nn

from mmairl.registry import MODEL_WRAPPERS


def start_processes(launcher: str) -> None:
    """Join the process group over gloo where there is no GPU; with GPUs mmengine does it.

    mmengine's own start calls `torch.cuda.set_device` and skips itself when a group is there already.
    """
    restarts = int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0))
    if launcher == 'none' or dist.is_initialized() or (torch.cuda.is_available() and not restarts):
        return
    if launcher == 'slurm':
        os.environ.setdefault('RANK', os.environ['SLURM_PROCID'])
        os.environ.setdefault('WORLD_SIZE', os.environ['SLURM_NTASKS'])
        os.environ.setdefault('LOCAL_RANK', os.environ['SLURM_LOCALID'])
        os.environ.setdefault('MASTER_PORT', '29500')
        if 'MASTER_ADDR' not in os.environ:  # the first machine of the job, as mmengine finds it for GPUs
            hosts = ['scontrol', 'show', 'hostname', os.environ['SLURM_NODELIST']]
            os.environ['MASTER_ADDR'] = subprocess.check_output(hosts, text=True).split()[0]
    if restarts:
        _start_again(restarts)
    else:
        dist.init_process_group('gloo')


def _start_again(restarts: int) -> None:
    """Meet under names of this attempt: on one machine, torchrun's store still holds the addresses of the processes before."""
    rank, world_size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    store = dist.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), world_size, is_master=False)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    dist.init_process_group(
        'nccl' if torch.cuda.is_available() else 'gloo',
        store=dist.PrefixStore(f'attempt {restarts}', store),
        rank=rank,
        world_size=world_size,
    )


def stop_processes() -> None:
    """Leave the process group together: gloo's threads abort a process that exits while they still run."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


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
