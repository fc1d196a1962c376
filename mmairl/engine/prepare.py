"""Prepare a process and a config for a training run."""

import fcntl
import math
import os
import socket
from pathlib import Path
from typing import IO

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import get_world_size, is_main_process
from mmengine.registry import init_default_scope

from mmairl.data.preprocess import preprocessing_of
from mmairl.engine.checkpoint import trust_mmengine_checkpoints
from mmairl.engine.checks import check_config
from mmairl.engine.distributed import start_processes
from mmairl.engine.speed import set_fast_keys
from mmairl.engine.strategy import strategy_of
from mmairl.errors import UserError
from mmairl.hardware import cores, keep_freed_memory
from mmairl.io import explained_disk_errors
from mmairl.registry import OPTIM_WRAPPERS
from mmairl.signals import ARGUMENTS

# If a run waits longer than this number of seconds for a batch, it ends with an error.
WAIT = 600


def register() -> None:
    """Make `mmairl` the default scope, so that mmengine finds the types in mmairl's configs.

    Unless OMP_NUM_THREADS is set, also limit torch to one thread per core of this process.
    """
    init_default_scope('mmairl')
    if 'OMP_NUM_THREADS' not in os.environ and torch.get_num_threads() > cores():
        torch.set_num_threads(cores())


def prepare(cfg: Config) -> None:
    """Join the processes of a run, and set the keys of its config that follow from other keys."""
    register()
    trust_mmengine_checkpoints()
    check_config(cfg)
    dist_cfg = cfg.get('env_cfg', {}).get('dist_cfg', {})
    start_processes(cfg.get('launcher', 'none'), dist_cfg.get('timeout'))
    if strategy := strategy_of(cfg):
        strategy.complete(cfg)
    complete_optimizer(cfg.optim_wrapper)
    share_batch(cfg, get_world_size())
    scale_learning_rate(cfg)
    drop_unreachable_schedules(cfg)
    set_fast_keys(cfg)
    # Checkpoints state how images are prepared, so that all commands prepare them in the same way.
    cfg.preprocessing = preprocessing_of(cfg)
    # In deterministic mode, torch requires this variable for matrix products on a GPU.
    if cfg.get('randomness', {}).get('deterministic'):
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    keep_workers(cfg.train_dataloader)
    if not torch.cuda.is_available():
        keep_freed_memory()


def complete_optimizer(wrapper: ConfigDict) -> None:
    """Set the wrapper's type, and the keys of the optimizer for which the wrapper has a default."""
    wrapper.setdefault('type', 'AutocastOptimWrapper')
    defaults = getattr(OPTIM_WRAPPERS.get(str(wrapper.type)), 'default_optimizer', {})
    given = wrapper.get('optimizer') or {}
    if given.get('type') in (None, defaults.get('type')):
        wrapper.optimizer = {**defaults, **given}


def share_batch(cfg: Config, processes: int) -> None:
    """Set the batch size of one process, `train_dataloader.batch_size`, to its share of `total_batch_size`.

    The total is divided among the processes and, with gradient accumulation, among the batches of an optimizer step. If the
    config already sets the batch size of one process, as OpenMMLab's configs do, the total is computed from it instead.
    """
    total = cfg.get('total_batch_size')
    steps = cfg.optim_wrapper.get('accumulative_counts', 1)
    parts = processes * steps
    if cfg.train_dataloader.get('batch_size') is not None:
        cfg.total_batch_size = cfg.train_dataloader.batch_size * parts
        return
    if total is None:
        raise UserError(
            'total_batch_size: the config sets no batch size; set this key, or set train_dataloader.batch_size, '
            'the batch size of one process',
            code='no-batch-size',
        )
    if total < 1 or total % parts:
        raise UserError(
            f"total_batch_size: '{total}' images cannot be divided equally among {processes} processes x {steps} accumulated "
            'steps; change total_batch_size or the number of processes',
            code='indivisible-batch',
        )
    cfg.train_dataloader.batch_size = total // parts


def scale_learning_rate(cfg: Config) -> None:
    """Scale the learning rate with the total batch size. mmengine ignores gradient accumulation."""
    scale = cfg.get('auto_scale_lr') or {}
    if scale.get('enable'):
        cfg.optim_wrapper.optimizer.lr *= cfg.total_batch_size / scale.base_batch_size
        scale.enable = False


def drop_unreachable_schedules(cfg: Config) -> None:
    """Drop schedules that start at or after the end of a shortened run, because mmengine rejects them."""
    ends = {True: cfg.train_cfg.get('max_epochs'), False: cfg.train_cfg.get('max_iters')}
    schedules = cfg.get('param_scheduler')
    if isinstance(schedules, list):
        cfg.param_scheduler = [
            schedule
            for schedule in schedules
            if schedule.get('begin', 0) < (ends[schedule.get('by_epoch', True)] or math.inf)
        ]


def keep_workers(loader: ConfigDict) -> None:
    """Keep the data workers alive between epochs, and limit the time that a run waits for a batch.

    Without workers, turn both settings off, because torch rejects them.
    """
    if loader.get('num_workers'):
        loader.setdefault('timeout', WAIT)
        loader.setdefault('persistent_workers', True)
    else:
        loader.update(timeout=0, persistent_workers=False)


def lock(folder: str) -> IO[str] | None:
    """Lock a work dir, so that no second run uses it, and return the file that holds the lock.

    Only the first process of a run locks the folder. The lock ends when the file is closed.
    """
    if not is_main_process():
        return None
    path = Path(folder) / '.lock'
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open('a+')
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise UserError(
            f'{folder}: another run is using this folder ({file.read()}); wait for that run, stop it, or choose another '
            f'folder with {ARGUMENTS["folder"]}',
            code='work-dir-in-use',
        ) from None
    file.truncate(0)
    file.write(f'process {os.getpid()} on {socket.gethostname()}')
    file.flush()
    return file
