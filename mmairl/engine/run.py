"""Train a config. The command line, the demo, studies and the Python API all call `train`."""

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
from mmairl.errors import UserError, building, printable, without_secrets
from mmairl.hardware import cache, cores, keep_freed_memory, unusable_gpu
from mmairl.io import appending, explained_disk_errors
from mmairl.registry import RUNNERS

WAIT = 600  # seconds without data after which a run ends with an error
# mmengine warns about its own file client at every checkpoint, and users cannot act on the warning.
USELESS_WARNINGS = ('"FileClient" will be', '"HardDiskBackend" is the alias')


def train(
    cfg: Config, launcher: str = 'none', fork: Fork | None = None, hooks: Sequence[Hook] = ()
) -> Runner:
    """Train a config. Checks run before the first step where possible.

    Args:
        cfg: The config. It is completed in place.
        launcher: 'none', 'pytorch' or 'slurm'.
        fork: The point of another run from which this run branches. Default: None.
        hooks: Hooks in addition to those of the config.

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
            for hook in runner.hooks:  # restore signal handlers and finish writing
                # A second failure on the same full disk must not hide the original error.
                with suppress(Exception):
                    hook.after_run(runner)
            raise
    return runner


def register() -> None:
    """Make `mmairl` the scope in which types are looked up.

    Also limit torch's threads to the cores of this process, unless OMP_NUM_THREADS is set.
    """
    init_default_scope('mmairl')
    if 'OMP_NUM_THREADS' not in os.environ and torch.get_num_threads() > cores():
        torch.set_num_threads(cores())


def join(cfg: Config, launcher: str) -> None:
    """Join the process group of the launcher. A second call does nothing."""
    if launcher != 'none':
        from mmairl.engine.distributed import start_processes  # not needed by a single process

        start_processes(launcher, cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout'))


def complete_config(cfg: Config, launcher: str) -> None:
    """Set the keys that follow from other keys and from the number of processes."""
    cfg.launcher = launcher
    if strategy := strategy_of(cfg):
        strategy.complete(cfg)
    share_batch(cfg, get_world_size())
    drop_unreachable_schedules(cfg)
    set_fast_keys(cfg)
    # Without this variable, torch raises at the first matrix product on a GPU.
    if cfg.get('randomness', {}).get('deterministic'):
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    keep_workers(cfg.train_dataloader)


def share_batch(cfg: Config, processes: int) -> None:
    """Divide `total_batch_size` among processes and accumulated batches.

    `train_dataloader.batch_size`, OpenMMLab's batch size of one process, takes precedence if it is set.
    """
    total = cfg.get('total_batch_size')
    steps = cfg.optim_wrapper.get('accumulative_counts', 1)
    if cfg.train_dataloader.get('batch_size') is not None:
        cfg.total_batch_size = cfg.train_dataloader.batch_size * processes * steps
        return
    if total is None:
        raise UserError(
            'total_batch_size: the config sets no batch size; set it, or train_dataloader.batch_size for one process',
            code='no-batch-size',
        )
    if total < 1 or total % (processes * steps):
        parts = f'{processes} processes' + (f' x {steps} accumulated steps' if steps > 1 else '')
        raise UserError(
            f"total_batch_size: the batch cannot be divided among {parts} ('{total}'); change one to divide the other",
            code='indivisible-batch',
        )
    cfg.train_dataloader.batch_size = total // (processes * steps)


def drop_unreachable_schedules(cfg: Config) -> None:
    """Drop schedules that start after the end of a shortened run, because mmengine rejects them."""
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
    """Keep data workers between epochs, and limit the wait for a batch; torch rejects both settings without workers."""
    if loader.get('num_workers'):
        loader.setdefault('timeout', WAIT)
        loader.setdefault('persistent_workers', True)
    else:
        loader.update(timeout=0, persistent_workers=False)


def build_runner(cfg: Config, start: RunStart | None = None) -> Runner:
    """Build a runner with all parts of the config, so that mistakes in the config appear here."""
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
    """Log device, batch layout and paths. Print them, too, if the log level is WARNING, which would hide them."""
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
        f'work dir {printable(cfg.work_dir)}'
    )
    level = logging.WARNING if unusable else logging.INFO
    terminal = runner.logger.handlers[0]
    if is_main_process() and level < terminal.level <= logging.WARNING:
        print(line, flush=True)
    runner.logger.log(level, line)


def data_paths(dataset: dict) -> Iterator[str]:
    """Yield the paths of a data set and of data sets inside it, from the keys that OpenMMLab and torchvision use."""
    for keys, value in walk(dataset):
        if value and keys and keys[-1] in ('root', 'data_root', 'ann_file'):
            for place in [value] if isinstance(value, (str, Path)) else value:
                yield (
                    without_secrets(place)
                    if '://' in str(place)
                    else printable(Path(place).absolute())
                )


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock a work dir until the run ends or its process dies. The first process locks it for all."""
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
                f'{folder}: another run is using it ({file.read()}); wait for that run, stop it, or set another --work-dir',
                code='work-dir-in-use',
            ) from None
        except OSError as error:  # some network file systems have no locks
            message = f'{folder} cannot be locked ({error.strerror}); start no second run there'
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
    if is_main_process():  # the name is random, so no file system can have cached its absence
        (Path(folder) / token[0]).touch()
    broadcast_object_list(token)
    blind = all_gather_object('' if (Path(folder) / token[0]).exists() else socket.gethostname())
    if is_main_process():
        (Path(folder) / token[0]).unlink()
    hosts = ', '.join(sorted({*blind} - {''}))
    if hosts:
        raise UserError(
            f'{folder}: this folder of the first process is not visible on {hosts}; set --work-dir to a folder that all '
            'machines share',
            code='work-dir-not-shared',
        )


@RUNNERS.register_module()
class PreparedRunner:
    """The `runner_type` of our configs, by which the training scripts of mmpretrain and others call `train`.

    Args:
        cfg: The config. `cfg.launcher` is 'none' unless set.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    @classmethod
    def from_cfg(cls, cfg: Config) -> 'PreparedRunner':
        return cls(cfg)

    def train(self) -> Runner:
        return train(self.cfg, self.cfg.get('launcher', 'none'))


def strategy_named(name: str) -> ConfigDict:
    """Return the strategy of `--strategy NAME`: configs/_base_/strategies/NAME.py, or a DeepSpeed config NAME.json."""
    if name.endswith('.json'):
        return ConfigDict(type='DeepSpeedStrategy', **read_config(name))
    return load_config(f'{PREFIX}_base_/strategies/{name}.py').strategy
