"""Processes on GPUs or on CPUs, by the same code path."""

import os
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
    if launcher == 'none' or torch.cuda.is_available() or dist.is_initialized():
        return
    if launcher == 'slurm':
        os.environ.setdefault('RANK', os.environ['SLURM_PROCID'])
        os.environ.setdefault('WORLD_SIZE', os.environ['SLURM_NTASKS'])
        os.environ.setdefault('LOCAL_RANK', os.environ['SLURM_LOCALID'])
    dist.init_process_group('gloo')


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
