"""The command `mmairl train`."""

import math
import os
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mmairl.cli.command import How, Launcher, Options, Positive, Seed
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmengine.config import Config
    from mmengine.runner import Runner

# Environment variables that torchrun, Slurm and mmairl/signals.sh set when they start the same command again.
RESTARTS = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT', 'MMAIRL_STARTED_AGAIN')
# The environment variable in which each launcher states the number of processes.
PROCESSES = {'pytorch': 'WORLD_SIZE', 'slurm': 'SLURM_NTASKS', 'none': ''}
Resume = Annotated[str, How(nargs='?', const='auto', metavar='CKPT')]


def train(
    config: str | None = None,
    *,
    work_dir: str | None = None,
    resume: Resume | None = None,
    amp: bool = False,
    strategy: str | None = None,
    per_gpu: Positive | None = None,
    auto_scale_lr: bool = False,
    seed: Seed | None = None,
    log: list[Literal['wandb', 'mlflow', 'tensorboard']] = (),
    launcher: Launcher = 'none',
    cfg_options: Options = {},  # noqa: B006  it is never changed
    suggest: str | None = None,
    method: str = 'mocov2plus',
    gpus: Positive = 1,
    channels: Positive | None = None,
    weights: str | None = None,
) -> None:
    """Pre-train a model from a config, such as configs/mocov2plus_r50_200e.py

    With --suggest, print a config for your own images instead.

    Args:
        config: train this config, such as configs/mocov2plus_r50_200e.py; required without --suggest
        work_dir: write logs and checkpoints here (default: work_dir of the config if it is set, else work_dirs/CONFIG)
        resume: resume from CKPT, or without a value from the newest checkpoint in the work dir (default: start at step 0)
        amp: train in mixed precision (default: off)
        strategy: divide the training state among the processes: zero1, zero2, zero3, deepspeed1, ... (default: full copies)
        per_gpu: process at most N images per GPU at a time, and accumulate gradients to the total batch (default: all at once)
        auto_scale_lr: scale the learning rate to the batch size as auto_scale_lr of the config specifies (default: off)
        seed: set the seed; two runs on a CPU with the same seed are equal bit for bit (default: random)
        log: also log curves to these services (default: log files only)
        launcher: set the launcher that started the processes of this run
        cfg_options: override config keys, such as optim_wrapper.optimizer.lr=0.1 (default: none)
        suggest: print a config for the images in this folder, with reasons for its values, and exit (default: train)
        method: --suggest: choose the method, such as byol or smocov2plus
        gpus: --suggest: set the number of GPUs
        channels: --suggest: read images with N channels from TIFF, PNG or NPY files (default: RGB)
        weights: --suggest: start from this checkpoint, or from a released model such as timm:NAME (default: from scratch)
    """
    if bool(config) == bool(suggest):
        raise UserError(
            'train: expected a config, or --suggest with a folder of images; give one of them',
            code='no-config',
        )
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmengine.dist import is_main_process

    from mmairl.config import load_config
    from mmairl.engine import run
    from mmairl.engine.checks import check_config
    from mmairl.signals import stop_processes

    if suggest:
        from mmengine.logging import MMLogger

        from mmairl.apis.suggest import suggest_for

        run.register()
        # The text may be redirected into a file, which must not contain log lines.
        with redirect_stdout(sys.stderr):
            MMLogger.get_current_instance()
            text = suggest_for(suggest, method, gpus=gpus, channels=channels, weights=weights)
        print(text)
        return
    cfg = load_config(config, cfg_options)
    check_config(cfg)
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'work_dirs/{Path(config).stem}'
    start_or_resume(cfg, resume)
    if amp:
        use_mixed_precision(cfg)
    if strategy:
        cfg.strategy = run.strategy_named(strategy)
    if per_gpu:
        accumulate(cfg, per_gpu, int(os.environ.get(PROCESSES[launcher], 1)))
    if auto_scale_lr:
        cfg.merge_from_dict({'auto_scale_lr.enable': True})
    if log:
        from mmairl.engine.logging import log_to

        log_to(cfg, list(log))
    if seed is not None:
        cfg.merge_from_dict({'randomness.seed': seed})
    runner = run.train(cfg, launcher)
    if is_main_process():
        print('\n'.join(result_lines(runner)))
    stop_processes()


def start_or_resume(cfg: 'Config', resume: str | None) -> None:
    """Set the keys of the config that choose the checkpoint to resume from."""
    restarted = any(int(os.environ.get(name, 0)) for name in RESTARTS)
    if resume == 'auto' or (restarted and not resume):
        cfg.resume = 'auto'
    elif resume:
        # A restarted run continues from its newest checkpoint.
        started = restarted and (Path(cfg.work_dir) / 'last_checkpoint').is_file()
        cfg.resume = 'auto' if started else True
        cfg.load_from = resume


def use_mixed_precision(cfg: 'Config') -> None:
    """Change the config to train in bfloat16, or in float16 on GPUs without bfloat16."""
    import torch

    if cfg.optim_wrapper.get('type', 'OptimWrapper') == 'OptimWrapper':
        cfg.optim_wrapper.type = 'AutocastOptimWrapper'
    bfloat16 = not torch.cuda.is_available() or torch.cuda.is_bf16_supported(
        including_emulation=False
    )
    cfg.optim_wrapper.dtype = 'bfloat16' if bfloat16 else 'float16'


def accumulate(cfg: 'Config', per_gpu: int, processes: int) -> None:
    """Accumulate gradients, so that the total batch stays the same if a process takes at most `per_gpu` images at a time."""
    cfg.train_dataloader.pop('batch_size', None)
    steps = math.ceil(cfg.total_batch_size / (processes * per_gpu))
    cfg.optim_wrapper.accumulative_counts = steps


def result_lines(runner: 'Runner') -> list[str]:
    """Return lines with the last checkpoint, and commands that work as the next step."""
    folder = Path(runner.work_dir)
    note = folder / 'last_checkpoint'
    lines = []
    if note.is_file():
        checkpoint = note.read_text().strip()
        lines.append(f'checkpoint {checkpoint}')
        # The config in the work dir contains the values of --cfg-options.
        config = folder / Path(runner.cfg.filename).name
        words = ['mmairl', 'evaluate', 'knn', str(config), checkpoint]
        if runner.cfg.get('custom_imports'):
            words = ['env', f'PYTHONPATH={Path(runner.cfg.filename).resolve().parent}', *words]
        scored = 'next: ' + shlex.join(words)
        if not runner.cfg.get('evaluation'):
            scored += ' --data labels  # if labels/CLASS has labeled images'
        lines.append(scored)
    if any('health' in name for name in runner.message_hub.log_scalars):
        lines.append('next: ' + shlex.join(['mmairl', 'report', 'health', runner.work_dir]))
    return lines
