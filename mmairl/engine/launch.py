"""From a config to a finished run: `train` is what tools/train.py, the demo and the tests all call."""

import difflib
import functools
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.dist import broadcast_object_list, get_world_size, is_main_process
from mmengine.logging import print_log
from mmengine.registry import init_default_scope

from mmairl import registry
from mmairl.configs import PREFIX, config_path, home
from mmairl.data.workers import explain_worker_failure
from mmairl.engine.checkpoint import load_checkpoint, trust_mmengine_checkpoints
from mmairl.engine.distributed import start_processes, stop_processes
from mmairl.engine.fast import settle
from mmairl.engine.newest import newest_checkpoint
from mmairl.engine.plain_files import read_plain_files_only
from mmairl.engine.preemption import REQUEUE, Preempted
from mmairl.engine.runner import Runner, StrategyRunner
from mmairl.engine.safe_config import is_data, read_config
from mmairl.errors import UserError
from mmairl.files import full_disk_explained

WORKER = 'mmairl.errors.UserError: '
WRONG_CALL = re.compile(r"(\w+)\.__init__\(\) (missing .+|got an unexpected keyword argument '(\w+)')")
# The top-level keys that mmengine's runner or this package reads; others are the config author's own variables.
KNOWN = [
    'model',
    'work_dir',
    'train_dataloader',
    'val_dataloader',
    'test_dataloader',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'auto_scale_lr',
    'optim_wrapper',
    'param_scheduler',
    'val_evaluator',
    'test_evaluator',
    'default_hooks',
    'custom_hooks',
    'data_preprocessor',
    'load_from',
    'resume',
    'launcher',
    'env_cfg',
    'log_processor',
    'log_level',
    'visualizer',
    'default_scope',
    'randomness',
    'experiment_name',
    'model_wrapper_cfg',
    'custom_imports',
    'total_batch_size',
    'fast',
    'evaluation',
    'strategy',
]


def one_sentence_errors(main: Callable[[], None]) -> Callable[[], None]:
    """Print a UserError as one line and leave with exit code 2; MMAIRL_TRACEBACK=1 shows where it was raised.

    A run that was told to stop leaves with 75, which asks for another try.
    """

    @functools.wraps(main)
    def run() -> None:
        try:
            main()
        except Preempted as stopped:
            if is_main_process():
                print(f'{stopped}; go on with --resume', file=sys.stderr)
            stop_processes()
            sys.exit(REQUEUE)
        except Exception as error:
            said = error if isinstance(error, UserError) else explain_worker_failure(error)
            if said is None or os.environ.get('MMAIRL_TRACEBACK'):
                raise
            # A data worker's error arrives as its whole traceback; its last line is the sentence.
            print(f'error: {str(said).strip().splitlines()[-1].removeprefix(WORKER)}', file=sys.stderr)
            sys.exit(2)

    return run


def register() -> None:
    """Make `mmairl` the scope in which types are looked up."""
    init_default_scope('mmairl')


def load_config(path: str, options: dict | None = None) -> Config:
    """The config with `--cfg-options` merged in; a misspelt key is an error, not a key that nothing reads.

    `mmairl::NAME.py` is one that comes with mmairl, wherever that is installed.
    """
    if path.startswith(PREFIX):
        path = str(config_path(path))
    if not Path(path).is_file():
        raise UserError(f'there is no config at {path}; see configs/ for those that come with mmairl')
    read_plain_files_only()  # a Python config may have a YAML base
    try:
        cfg = read_config(path) if is_data(path) else _run_config(path)
    except UserError:
        raise
    except (SyntaxError, NameError, KeyError, TypeError, FileNotFoundError, AttributeError) as error:
        raise UserError(f'the config {path} cannot be read: {error}') from error
    for key in options or {}:
        name = key.split('.')[0]
        if name not in cfg and name not in KNOWN:
            raise UserError(f"--cfg-options {key}: the config has no '{name}'{_closest(name, KNOWN)}")
    try:
        cfg.merge_from_dict(options or {})
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f'--cfg-options do not fit the config {path}: {error}') from error
    for name in cfg:
        if name not in KNOWN and _closest(name, KNOWN):
            raise UserError(f"the config {path} sets '{name}', which nothing reads{_closest(name, KNOWN)}")
    return cfg


def _run_config(path: str) -> Config:
    """A Python config: code that runs, by OpenMMLab's design. A folder of YAML must not be able to bring such code."""
    for folder in Path(path).resolve().parents:
        if (folder / 'projects').is_dir() and str(folder) not in sys.path:
            sys.path.append(str(folder))  # where a project's config imports its own parts from
    return Config.fromfile(path)


def _closest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"; did you mean '{close[0]}'?" if close else ''


def strategy_named(name: str) -> ConfigDict:
    """What `--strategy NAME` means: the strategy of `configs/_base_/strategies/NAME.py`."""
    known = {path.stem: path for path in sorted((home() / 'configs' / '_base_' / 'strategies').glob('*.py'))}
    if name not in known:
        raise UserError(f"there is no strategy '{name}'{_closest(name, list(known))}; say one of {', '.join(known)}")
    return Config.fromfile(known[name]).strategy


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


def join(cfg: Config, launcher: str) -> None:
    """Be one of the processes that the launcher has started; a second call does nothing."""
    start_processes(launcher, cfg.get('env_cfg', {}).get('dist_cfg', {}).get('timeout'))


def train(cfg: Config, launcher: str = 'none') -> Runner | StrategyRunner:
    """Train what the config says, with all that can be checked beforehand checked before the first step."""
    register()
    trust_mmengine_checkpoints()
    join(cfg, launcher)
    cfg.launcher = launcher
    share_batch(cfg, get_world_size())
    settle(cfg)
    if not cfg.train_dataloader.get('num_workers'):
        cfg.train_dataloader.timeout = 0  # is for workers; torch refuses it without
    _choose_checkpoint(cfg)
    with full_disk_explained(cfg.work_dir):
        with explained():
            runner = build(cfg)
        try:
            runner.train()
        except BaseException:
            _clear_up(runner)
            raise
    return runner


def _clear_up(runner: Runner | StrategyRunner) -> None:
    """Let each hook end what it has begun: the progress bar, for one, would hide what is said next."""
    for hook in runner.hooks:
        with suppress(Exception):  # of writing to the same full disk; what ended the run is what is told
            hook.after_run(runner)


def build(cfg: Config) -> Runner | StrategyRunner:
    """The runner with everything that a config names already built, so that mistakes in it show here."""
    kind = StrategyRunner if cfg.get('strategy') else Runner
    runner = kind.from_cfg(cfg)
    runner.logger.addFilter(_about_this_run)
    print_log(
        f'total batch {cfg.total_batch_size} = {cfg.train_dataloader.batch_size} images x {get_world_size()} processes '
        f'x {cfg.optim_wrapper.get("accumulative_counts", 1)} accumulated steps',
        logger='current',
    )
    _ = runner.train_loop
    runner.prepare()
    return runner


def _about_this_run(record: logging.LogRecord) -> bool:
    """Keep out what mmengine says about its own file client at every checkpoint, whatever the user does."""
    return not any(name in record.getMessage() for name in ('"FileClient" will be', '"HardDiskBackend" is the alias'))


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Python and mmengine say about a wrong config key or type into one sentence; other errors pass."""
    try:
        yield
    except TypeError as error:
        if not (wrong := WRONG_CALL.search(str(error))):
            raise
        owner, unknown = wrong[1], wrong[3]
        if unknown is None:
            raise UserError(f'{owner} in the config lacks a key: {wrong[2]}') from error
        raise UserError(f"{owner} has no key '{unknown}'{_closest(unknown, _keys_of(owner))}") from error
    except KeyError as error:
        if not (wrong := re.match(r'(\S+) is not in the (\S+) registry', str(error.args[0]))):
            raise
        raise UserError(
            f"the config names '{wrong[1]}', which is not a registered {wrong[2]}; check its type"
        ) from error


def _keys_of(owner: str) -> list[str]:
    """The config keys of a registered class."""
    found = (box.get(owner) for box in vars(registry).values() if isinstance(box, registry.parent.Registry))
    return [key for kind in found if kind is not None for key in inspect.signature(kind).parameters]


def _choose_checkpoint(cfg: Config) -> None:
    """Settle what a run starts from before mmengine reads it, which would fail with a traceback."""
    if cfg.get('resume') and not cfg.get('load_from'):
        newest = [newest_checkpoint(cfg.work_dir) if is_main_process() else None]
        broadcast_object_list(newest)
        cfg.load_from = newest[0] and str(newest[0])
        if cfg.load_from is None:
            print_log(f'{cfg.work_dir} holds no checkpoint: starting from the beginning', logger='current')
            cfg.resume = False
    if cfg.get('load_from'):
        if Path(cfg.load_from).is_dir():
            raise UserError(
                f"{cfg.load_from} is a folder of shards, as mmengine's DeepSpeedStrategy writes them, which fit its processes "
                'only; put it together with the zero_to_fp32.py in it and give the file as load_from, without resume'
            )
        checkpoint = load_checkpoint(cfg.load_from)
        lacking = [part for part in ('meta', 'state_dict', 'optimizer') if part not in checkpoint]
        if cfg.get('resume') and lacking:
            raise UserError(
                f'{cfg.load_from} cannot be resumed from: it holds no {lacking[0]}; give a training checkpoint'
            )
