"""Train the model that a config describes. The command line, the demo, studies and the Python API all call `train`."""

import fcntl
import logging
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import all_gather_object, broadcast_object_list, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import init_default_scope

from mmairl.config import PREFIX, load_config, walk
from mmairl.data.preprocess import float32_precision
from mmairl.engine.checkpoint import RunStart, choose_start, trust_mmengine_checkpoints
from mmairl.engine.checks import check_config
from mmairl.engine.fork import Fork, start_branch
from mmairl.engine.logging import keep_run
from mmairl.engine.runner import Runner
from mmairl.engine.sharding import read_config, strategy_of
from mmairl.engine.speed import set_fast_keys
from mmairl.errors import UserError, building
from mmairl.hardware import cache, cores, keep_freed_memory, unusable_gpu
from mmairl.io import appending, explained_disk_errors
from mmairl.registry import RUNNERS

# If a run waits longer than this number of seconds for a batch, it ends with an error.
WAIT = 600
# mmengine warns about its own file client at every checkpoint, and users cannot act on the warning.
USELESS_WARNINGS = ('"FileClient" will be', '"HardDiskBackend" is the alias')


def train(
    cfg: Config, launcher: str = 'none', fork: Fork | None = None, hooks: Sequence[Hook] = ()
) -> Runner:
    """Train the model that a config describes. Most mistakes raise an error before the first step.

    Args:
        cfg: The config. It is changed in place: keys that follow from other keys are set, such as the batch size per process.
        launcher: The program that started the processes: 'none' (a single process), 'pytorch' or 'slurm'.
        fork: The point of another run from which this run continues, with changed options. Default: None (no other run).
        hooks: Hooks to register in addition to those of the config.

    Returns:
        The runner after its last step.

    Raises:
        UserError: If the config, the data or the checkpoint to resume from is invalid.
    """
    register()
    trust_mmengine_checkpoints()
    check_config(cfg)
    join(cfg, launcher)
    complete_config(cfg, launcher)
    if not torch.cuda.is_available():
        keep_freed_memory()
    precision = (cfg.get('fast') or {}).get('precision')
    with explained_disk_errors(cfg.work_dir), locked(cfg.work_dir), float32_precision(precision):
        require_shared(cfg.work_dir)
        start = choose_start(cfg) if fork is None else start_branch(cfg, fork)
        keep_run(cfg, start.run)
        runner = build_runner(cfg, start)
        for hook in hooks:
            runner.register_hook(hook)
        start.begin(Path(cfg.work_dir))
        try:
            runner.train()
        except BaseException:
            # `after_run` restores signal handlers and finishes writing checkpoints.
            for hook in runner.hooks:
                # If the disk is full, `after_run` may fail, too. The user must still see the original error.
                with suppress(Exception):
                    hook.after_run(runner)
            raise
    return runner


def register() -> None:
    """Make `mmairl` the default scope, so that mmengine finds the types in mmairl's configs.

    Unless OMP_NUM_THREADS is set, also limit torch to one thread per core of this process.
    """
    init_default_scope('mmairl')
    if 'OMP_NUM_THREADS' not in os.environ and torch.get_num_threads() > cores():
        torch.set_num_threads(cores())


def join(cfg: Config, launcher: str) -> None:
    """Join the process group of the launcher. A second call does nothing."""
    if launcher != 'none':
        # This module is imported here, because a single process does not need it.
        from mmairl.engine.distributed import start_processes

        start_processes(launcher, cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout'))


def complete_config(cfg: Config, launcher: str) -> None:
    """Set the config keys whose values follow from other keys or from the number of processes."""
    cfg.launcher = launcher
    if strategy := strategy_of(cfg):
        strategy.complete(cfg)
    share_batch(cfg, get_world_size())
    drop_unreachable_schedules(cfg)
    set_fast_keys(cfg)
    # In deterministic mode, torch requires this variable for matrix products on a GPU.
    if cfg.get('randomness', {}).get('deterministic'):
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    keep_workers(cfg.train_dataloader)


def share_batch(cfg: Config, processes: int) -> None:
    """Set the batch size of one process, `train_dataloader.batch_size`, to its share of `total_batch_size`.

    The total is divided among the processes and, with gradient accumulation, among the batches of an optimizer step. If the
    config already sets the batch size of one process, as OpenMMLab's configs do, the total is computed from it instead.
    """
    total = cfg.get('total_batch_size')
    steps = cfg.optim_wrapper.get('accumulative_counts', 1)
    if cfg.train_dataloader.get('batch_size') is not None:
        cfg.total_batch_size = cfg.train_dataloader.batch_size * processes * steps
        return
    if total is None:
        raise UserError(
            'total_batch_size: the config sets no batch size; set this key, or set train_dataloader.batch_size, '
            'the batch size of one process',
            code='no-batch-size',
        )
    if total < 1 or total % (processes * steps):
        parts = f'{processes} processes' + (f' x {steps} accumulated steps' if steps > 1 else '')
        raise UserError(
            f"total_batch_size: '{total}' images cannot be divided equally among {parts}; change total_batch_size or the "
            'number of processes',
            code='indivisible-batch',
        )
    cfg.train_dataloader.batch_size = total // (processes * steps)


def drop_unreachable_schedules(cfg: Config) -> None:
    """Drop schedules that start at or after the end of a shortened run, because mmengine rejects them."""
    if not isinstance(cfg.get('param_scheduler'), list):
        return
    epochs = cfg.train_cfg.get('max_epochs')
    iterations = cfg.train_cfg.get('max_iters')
    reachable = []
    for schedule in cfg.param_scheduler:
        end = epochs if schedule.get('by_epoch', True) else iterations
        if end is None or schedule.get('begin', 0) < end:
            reachable.append(schedule)
    cfg.param_scheduler = reachable


def keep_workers(loader: ConfigDict) -> None:
    """Keep the data workers alive between epochs, and limit the time that a run waits for a batch.

    Without workers, turn both settings off, because torch rejects them.
    """
    if loader.get('num_workers'):
        loader.setdefault('timeout', WAIT)
        loader.setdefault('persistent_workers', True)
    else:
        loader.update(timeout=0, persistent_workers=False)


def build_runner(cfg: Config, start: RunStart | None = None) -> Runner:
    """Build a runner and every object that its config describes, so that mistakes in the config raise here."""
    with building('the run'):
        runner = Runner.from_cfg(cfg)
    runner.start = start or RunStart()
    runner.logger.addFilter(
        lambda record: not any(text in record.getMessage() for text in USELESS_WARNINGS)
    )
    log_run_summary(runner)
    with building('the run'):
        _ = runner.train_loop
        runner.prepare()
    return runner


def log_run_summary(runner: Runner) -> None:
    """Log the device, the batch layout and the paths of a run.

    At the log level WARNING, the terminal would not show the logged line, so it is also printed.
    """
    cfg = runner.cfg
    device = next(runner.model.parameters()).device.type
    unusable = unusable_gpu()
    processes = get_world_size()
    loader = cfg.train_dataloader
    line = (
        f'{processes} x {device}{f", though there is a GPU ({unusable})" if unusable else ""}, each with '
        f'{torch.get_num_threads()} threads and {loader.get("num_workers", 0)} data workers on {cores()} cores; '
        f'total batch {cfg.total_batch_size} = {loader.batch_size} images x {processes} processes '
        f'x {cfg.optim_wrapper.get("accumulative_counts", 1)} accumulated steps; '
        f'data {" ".join(data_paths(loader.dataset)) or "generated"}, cache {cache()}, '
        f'work dir {cfg.work_dir}'
    )
    level = logging.WARNING if unusable else logging.INFO
    terminal = runner.logger.handlers[0]
    if is_main_process() and level < terminal.level <= logging.WARNING:
        print(line, flush=True)
    runner.logger.log(level, line)


def data_paths(dataset: dict) -> Iterator[str]:
    """Yield the paths in the config of a data set, including the configs of nested data sets.

    A path is the value of `root`, `data_root` or `ann_file`, the keys that OpenMMLab and torchvision use.
    """
    for keys, value in walk(dataset):
        if value and keys and keys[-1] in ('root', 'data_root', 'ann_file'):
            for place in [value] if isinstance(value, (str, Path)) else value:
                yield (place if '://' in str(place) else Path(place).absolute())


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock a work dir, so that no second run uses it. The lock ends with the `with` block or with the process.

    Only the first process of a run takes the lock. For the other processes, this function does nothing.
    """
    if int(os.environ.get('RANK', os.environ.get('SLURM_PROCID', 0))):
        yield
        return
    path = Path(folder) / '.lock'
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = appending(path)
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(
                f'{folder}: another run is using this folder ({file.read()}); wait for that run, stop it, or set another '
                '--work-dir',
                code='work-dir-in-use',
            ) from None
        except OSError as error:  # Some network file systems do not support locks.
            message = f'{folder} cannot be locked ({error.strerror}); do not start a second run with this work dir'
            print_log(message, 'current', logging.WARNING)
        file.truncate(0)
        file.write(f'process {os.getpid()} on {socket.gethostname()}')
        file.flush()
        yield


def require_shared(folder: str) -> None:
    """Raise unless all processes see the same folder."""
    if get_world_size() == 1:
        return
    token = [f'.{secrets.token_hex(8)}']
    # The name is random, because a network file system may have cached that a file with a fixed name does not exist.
    if is_main_process():
        (Path(folder) / token[0]).touch()
    broadcast_object_list(token)
    blind = all_gather_object('' if (Path(folder) / token[0]).exists() else socket.gethostname())
    if is_main_process():
        (Path(folder) / token[0]).unlink()
    hosts = ', '.join(sorted({*blind} - {''}))
    if hosts:
        raise UserError(
            f'{folder}: the processes on {hosts} do not see this folder, where the first process writes; set --work-dir to a '
            'folder that all machines share',
            code='work-dir-not-shared',
        )


@RUNNERS.register_module()
class PreparedRunner:
    """Runner type that makes the training scripts of OpenMMLab's packages call `train` of this module.

    mmairl's configs set `runner_type` to this class, so tools/train.py of mmpretrain, for example, builds a PreparedRunner
    and calls its `train`.

    Args:
        cfg: The config. Its key `launcher` defaults to 'none'.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    @classmethod
    def from_cfg(cls, cfg: Config) -> 'PreparedRunner':
        return cls(cfg)

    def train(self) -> Runner:
        return train(self.cfg, self.cfg.get('launcher', 'none'))


def strategy_named(name: str) -> ConfigDict:
    """Return the config of the strategy that `--strategy NAME` selects.

    NAME is the name of a file in configs/_base_/strategies without its suffix, or the path of a DeepSpeed config (*.json).
    """
    if name.endswith('.json'):
        return ConfigDict(type='DeepSpeedStrategy', **read_config(name))
    return load_config(f'{PREFIX}_base_/strategies/{name}.py').strategy
