"""From a config to a finished run: `train` is what tools/train.py, the demo and the tests all call."""

import fcntl
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import all_gather_object, broadcast_object_list, get_world_size, is_main_process
from mmengine.logging import print_log
from mmengine.registry import init_default_scope

from mmairl.config import PREFIX, load_config, walk
from mmairl.data.preprocess import float32_precision
from mmairl.engine.checkpoint import Start, choose_start, trust_mmengine_checkpoints
from mmairl.engine.checks import check_config
from mmairl.engine.runner import Runner
from mmairl.engine.speed import set_fast_keys
from mmairl.errors import UserError, building, without_secrets
from mmairl.hardware import cache, cores, keep_freed_memory, unusable_gpu
from mmairl.io import appending, explained_disk_errors
from mmairl.registry import RUNNERS

WAIT = 600  # seconds: a read that hangs for ever ends the run with a sentence


def register() -> None:
    """Make `mmairl` the scope in which types are looked up, and take no more threads than this process has cores."""
    init_default_scope('mmairl')
    if torch.get_num_threads() > cores():
        torch.set_num_threads(cores())


def strategy_named(name: str) -> ConfigDict:
    """Return the strategy of `configs/_base_/strategies/NAME.py`, for `--strategy NAME`."""
    return load_config(f'{PREFIX}_base_/strategies/{name}.py').strategy


def share_batch(cfg: Config, processes: int) -> None:
    """Divide `total_batch_size`, what the paper's schedule is tied to, among processes and accumulated steps.

    A `train_dataloader.batch_size` that is set is what OpenMMLab's users mean by it, a process's share, and wins.
    """
    total, steps = cfg.get('total_batch_size'), cfg.optim_wrapper.get('accumulative_counts', 1)
    if cfg.train_dataloader.get('batch_size') is not None:
        cfg.total_batch_size = cfg.train_dataloader.batch_size * processes * steps
        return
    if total is None:
        raise UserError(
            'the config sets no batch; set total_batch_size, or train_dataloader.batch_size for one process'
        )
    if total < 1 or total % (processes * steps):
        times = f'{processes} processes' + (f' x {steps} accumulated steps' if steps > 1 else '')
        raise UserError(f'total_batch_size={total} cannot be divided among {times}; change one to divide the other')
    cfg.train_dataloader.batch_size = total // (processes * steps)


def keep_workers(loader: ConfigDict) -> None:
    """Keep data workers from epoch to epoch and wait WAIT seconds for a batch; torch refuses both where there are none."""
    chosen = dict(timeout=WAIT, persistent_workers=True)
    if loader.get('num_workers'):
        loader.update({key: loader.get(key, value) for key, value in chosen.items()})
    else:
        loader.update(timeout=0, persistent_workers=False)


def leave_out_late_schedules(cfg: Config) -> None:
    """A run cut short, as by `train_cfg.max_epochs=1`, may end before a schedule begins, which mmengine refuses."""
    if isinstance(cfg.get('param_scheduler'), list):
        lengths = {True: cfg.train_cfg.get('max_epochs'), False: cfg.train_cfg.get('max_iters')}
        ends = [lengths[schedule.get('by_epoch', True)] for schedule in cfg.param_scheduler]
        cfg.param_scheduler = [
            schedule
            for schedule, end in zip(cfg.param_scheduler, ends)
            if end is None or schedule.get('begin', 0) < end
        ]


def join(cfg: Config, launcher: str) -> None:
    """Be one of the processes that the launcher has started; a second call does nothing."""
    if launcher != 'none':
        from mmairl.engine.distributed import start_processes  # which one process does not need

        start_processes(launcher, cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout'))


def train(cfg: Config, launcher: str = 'none') -> Runner:
    """Train what the config says, with all that can be checked beforehand checked before the first step."""
    register()
    trust_mmengine_checkpoints()
    check_config(cfg)
    join(cfg, launcher)
    cfg.launcher = launcher
    share_batch(cfg, get_world_size())
    leave_out_late_schedules(cfg)
    set_fast_keys(cfg)
    if cfg.get('randomness', {}).get('deterministic'):  # without it, torch refuses the first product on a GPU
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    keep_workers(cfg.train_dataloader)
    if not torch.cuda.is_available():
        keep_freed_memory()
    precision = (cfg.get('fast') or {}).get('precision')
    with explained_disk_errors(cfg.work_dir), locked(cfg.work_dir), float32_precision(precision):
        require_shared(cfg.work_dir)
        start = choose_start(cfg)
        runner = build(cfg, start)
        start.begin(Path(cfg.work_dir))
        try:
            runner.train()
        except BaseException:
            for hook in runner.hooks:  # they give signals back, and finish what is being written
                with suppress(Exception):  # of writing to the same full disk; what ended the run is what is told
                    hook.after_run(runner)
            raise
    return runner


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold a work dir for this run, until it ends or its process dies; the first process of a run does it for all."""
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
                f'{folder} is in use by {file.read()}; wait until it ends, stop it, or give --work-dir another folder'
            ) from None
        except OSError as error:  # some network file systems have no locks
            print_log(
                f'{folder} cannot be locked ({error.strerror}): start no second run there', 'current', logging.WARNING
            )
        file.truncate(0)
        file.write(f'process {os.getpid()} on {socket.gethostname()}')
        file.flush()
        yield


def require_shared(folder: str) -> None:
    """Each process must see the folder where the first one writes what all of them go on from."""
    if get_world_size() == 1:
        return
    token = [f'.{secrets.token_hex(8)}']
    if is_main_process():  # a new name, which no file system can remember to be missing
        (Path(folder) / token[0]).touch()
    broadcast_object_list(token)
    lacking = all_gather_object('' if (Path(folder) / token[0]).exists() else socket.gethostname())
    if is_main_process():
        (Path(folder) / token[0]).unlink()
    if hosts := ', '.join(sorted({*lacking} - {''})):
        raise UserError(
            f'{folder} is not the same folder for all processes: {hosts} cannot see there what the first one has written; '
            'give --work-dir a folder that all machines share'
        )


@RUNNERS.register_module()
class PreparedRunner:
    """The `runner_type` of our configs, by which tools/train.py of mmpretrain and others start a run as `train` does."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg

    @classmethod
    def from_cfg(cls, cfg: Config) -> 'PreparedRunner':
        return cls(cfg)

    def train(self) -> Runner:
        return train(self.cfg, self.cfg.get('launcher', 'none'))


def places(dataset: dict) -> Iterator[str]:
    """Yield the paths of a data set and of those inside of it, by the keys that OpenMMLab and torchvision use."""
    for keys, value in walk(dataset):
        if value and keys and keys[-1] in ('root', 'data_root', 'ann_file'):
            for place in [value] if isinstance(value, (str, Path)) else value:
                yield without_secrets(place) if '://' in str(place) else str(Path(place).absolute())


def build(cfg: Config, start: Start | None = None) -> Runner:
    """The runner with everything that a config names already built, so that mistakes in it show here."""
    with building('the run'):
        runner = Runner.from_cfg(cfg)
    runner.start = start or Start()
    # mmengine tells of its own file client at every checkpoint, whatever the user does
    about = ('"FileClient" will be', '"HardDiskBackend" is the alias')
    runner.logger.addFilter(lambda record: not any(name in record.getMessage() for name in about))
    say_what_is_used(runner)
    with building('the run'):
        _ = runner.train_loop
        runner.prepare()
    return runner


def say_what_is_used(runner: Runner) -> None:
    """Log where and on what a run works, and print it where the log's level hides that."""
    cfg, device, unusable = runner.cfg, next(runner.model.parameters()).device.type, unusable_gpu()
    line = (
        f'{get_world_size()} x {device}{f", though there is a GPU ({unusable})" if unusable else ""}, each with '
        f'{torch.get_num_threads()} threads and {cfg.train_dataloader.get("num_workers", 0)} data workers on {cores()} cores; '
        f'total batch {cfg.total_batch_size} = {cfg.train_dataloader.batch_size} images x {get_world_size()} processes '
        f'x {cfg.optim_wrapper.get("accumulative_counts", 1)} accumulated steps; '
        f'data {" ".join(places(cfg.train_dataloader.dataset)) or "made here"}, cache {cache()}, work dir {cfg.work_dir}'
    )
    level, (terminal, *_) = logging.WARNING if unusable else logging.INFO, runner.logger.handlers
    if is_main_process() and terminal.level > level:
        print(line, flush=True)
    runner.logger.log(level, line)
