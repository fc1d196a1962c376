"""Pre-train a model from a config: mmairl train configs/mocov2plus_r50_200e.py [--work-dir DIR] [--resume] ...

With --suggest, print a config for custom images instead.
"""

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmairl.cli.flags import add_config_options, add_launcher, add_switch, parser_of, positive, seed

if TYPE_CHECKING:
    from mmengine.config import Config
    from mmengine.runner import Runner

# Environment variables that torchrun, Slurm and mmairl/signals.sh set when they start the same command again.
RESTARTS = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT', 'MMAIRL_STARTED_AGAIN')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('train', __doc__)
    parser.add_argument(
        'config',
        nargs='?',
        help='train this config, such as configs/mocov2plus_r50_200e.py; required without --suggest',
    )
    add_run(parser)
    add_batch(parser)
    add_suggestion(parser)
    add_processes(parser)
    args = parser.parse_args(arguments)
    if args.suggest and args.config:
        parser.error(
            f"--suggest: cannot be combined with a config ('{args.config}'); choose a method by --method, such as --method byol"
        )
    if args.suggest and not (args.images or args.data):
        parser.error('--suggest requires the number of images; give --images N or --data DIR')
    if not args.suggest and not args.config:
        parser.error('give a config, or --suggest --images N to print one')
    return args


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--work-dir',
        help='write logs and checkpoints here (default: work_dir of the config if it is set, else work_dirs/CONFIG)',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='resume from CHECKPOINT, or without a value from the newest checkpoint in the work dir (default: start at step 0)',
    )
    add_switch(parser, '--amp', 'train in mixed precision (default: off)')
    parser.add_argument(
        '--strategy',
        metavar='NAME',
        help='split the states of the optimizer, and with some strategies also the gradients and the model, among processes: '
        'zero1, zero2, zero3, deepspeed1, deepspeed2, zero2_offload, ..., or a DeepSpeed config NAME.json (default: each '
        'process has a full copy)',
    )
    parser.add_argument(
        '--log',
        nargs='+',
        default=[],
        metavar='LOGGER',
        help='also log curves to wandb, mlflow or tensorboard (default: log files only)',
    )
    parser.add_argument(
        '--seed',
        type=seed,
        help='set the seed; two runs on a CPU with the same seed are equal bit for bit (default: random)',
    )
    add_config_options(parser)


def add_batch(parser: argparse.ArgumentParser) -> None:
    add_switch(
        parser,
        '--auto-scale-lr',
        'scale the learning rate to the batch size as auto_scale_lr of the config specifies (default: off)',
    )
    parser.add_argument(
        '--per-gpu',
        type=positive,
        metavar='N',
        help='process N images per GPU at a time, and accumulate gradients up to the total batch (default: no accumulation)',
    )


def add_suggestion(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group('--suggest')
    add_switch(
        group,
        '--suggest',
        'print a config for custom images, with reasons for its values, and exit (default: train)',
    )
    group.add_argument(
        '--method',
        default='mocov2plus',
        help='--suggest: choose the method, such as byol or smocov2plus (default: mocov2plus)',
    )
    group.add_argument(
        '--images',
        type=positive,
        metavar='N',
        help='--suggest: set the number of images; required without --data, ignored with --data (default: none)',
    )
    group.add_argument(
        '--gpus',
        type=positive,
        default=1,
        metavar='N',
        help='--suggest: set the number of GPUs (default: 1)',
    )
    group.add_argument(
        '--channels',
        type=positive,
        metavar='N',
        help='--suggest: read images with N channels from TIFF, PNG or NPY files (default: RGB)',
    )
    group.add_argument(
        '--data',
        metavar='DIR',
        help='--suggest: count the images in DIR and, without --views, choose the views that suit them (default: none)',
    )
    group.add_argument(
        '--views',
        help='--suggest: use the views for a kind of images: satellite, microscopy, medical_grey or documents (default: the '
        'views that suit the images in --data; without --data, the views of the method)',
    )
    group.add_argument(
        '--weights',
        metavar='CKPT',
        help='--suggest: start from this checkpoint, or from a released model such as timm:NAME (default: from scratch)',
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    add_launcher(parser, default='none')
    # OpenMMLab's `mim train mmairl --gpus 0` passes --device, so it must be accepted.
    parser.add_argument('--device', choices=['cpu'], help=argparse.SUPPRESS)
    parser.add_argument(
        '--local_rank',
        '--local-rank',
        type=int,
        help='set the local rank, which old launchers pass (default: the environment variable LOCAL_RANK)',
    )


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    if args.device:
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
    if args.local_rank is not None:
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if args.suggest:
        print_suggestion(args)
        return

    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmengine.dist import get_world_size, is_main_process

    from mmairl.config import load_config
    from mmairl.engine.run import join, train
    from mmairl.signals import stop_processes

    cfg = load_config(args.config, args.cfg_options)
    apply(args, cfg)
    if args.per_gpu is not None:
        from mmairl.apis.batch_layout import follow, plan

        join(cfg, args.launcher)
        follow(cfg, plan(cfg, get_world_size(), args.per_gpu)[0])
    runner = train(cfg, args.launcher)
    if is_main_process():
        print(result_lines(runner, args.config))
    stop_processes()


def result_lines(runner: 'Runner', config: str | None) -> str:
    """Return lines with the final loss, the last checkpoint, and the commands that users run next."""
    work_dir = Path(runner.work_dir)
    hub = runner.message_hub
    lines = []
    if 'train/loss' in hub.log_scalars:
        loss = hub.get_scalar('train/loss').current()
        lines.append(f'final loss {loss:.4g} after {runner.iter} steps')
    return '\n'.join([*lines, *next_commands(work_dir, config)])


def next_commands(work_dir: Path, config: str | None) -> list[str]:
    """Return lines with the last checkpoint of a run, and with commands to evaluate it and to report the health of the run."""
    lines = []
    note = work_dir / 'last_checkpoint'
    if note.is_file():
        checkpoint = note.read_text().strip()
        evaluate = ['mmairl', 'evaluate', 'knn', config or 'CONFIG', checkpoint]
        lines.append(f'checkpoint {checkpoint}')
        lines.append(f'next: {shlex.join(evaluate)}')
    lines.append(f'next: {shlex.join(["mmairl", "report", "health", str(work_dir)])}')
    return lines


def print_suggestion(args: argparse.Namespace) -> None:
    from mmairl.apis.suggest import suggest, suggest_for
    from mmairl.engine.run import register

    register()
    options = dict(gpus=args.gpus, channels=args.channels, weights=args.weights, views=args.views)
    if args.data:
        print(suggest_for(args.data, args.method, **options))
    else:
        print(suggest(args.method, args.images, **options))


def apply(args: argparse.Namespace, cfg: 'Config') -> None:
    """Change the config as the flags of the command line specify."""
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
    restarted = any(int(os.environ.get(name, 0)) for name in RESTARTS)
    if restarted and not args.resume:
        args.resume = 'auto'
    if args.resume == 'auto':
        cfg.resume = 'auto'
    elif args.resume:
        cfg.resume = 'again' if restarted else True
        cfg.load_from = args.resume
    if args.amp:
        use_mixed_precision(cfg)
    if args.strategy:
        from mmairl.engine.run import strategy_named

        cfg.strategy = strategy_named(args.strategy)
    if args.auto_scale_lr:
        cfg.auto_scale_lr.enable = True
    if args.log:
        from mmairl.engine.logging import log_to

        log_to(cfg, args.log)
    if args.seed is not None:
        cfg.randomness.seed = args.seed


def use_mixed_precision(cfg: 'Config') -> None:
    """Change the config to train in bfloat16, or in float16 on GPUs without bfloat16."""
    import torch

    if cfg.optim_wrapper.get('type', 'OptimWrapper') == 'OptimWrapper':
        cfg.optim_wrapper.type = 'AutocastOptimWrapper'
    bfloat16 = not torch.cuda.is_available() or torch.cuda.is_bf16_supported(
        including_emulation=False
    )
    cfg.optim_wrapper.dtype = 'bfloat16' if bfloat16 else 'float16'
