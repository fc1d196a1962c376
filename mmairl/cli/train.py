"""Pre-train from a config: python tools/train.py configs/mocov2plus_r50_200e.py [--work-dir D] [--resume] ..."""

import argparse
import os
from pathlib import Path

import mmairl  # noqa: F401  before torch, whose threads it sets up

# isort: split
import torch
from mmengine.config import Config
from mmengine.dist import get_world_size

from mmairl.cli.flags import ConfigOptions, positive, seed
from mmairl.config import load_config, write_config
from mmairl.engine.run import join, register, strategy_named, train
from mmairl.errors import one_sentence_errors
from mmairl.io import output
from mmairl.signals import stop_processes


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', nargs='?', help='a config file, such as configs/mocov2plus_r50_200e.py')
    parser.add_argument('--work-dir', help='where logs and checkpoints go (default: work_dirs/<config name>)')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='go on from CHECKPOINT, or without one from the newest in the work dir',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision')
    parser.add_argument(
        '--strategy', metavar='NAME', help='shard the run over its processes: zero1, zero2, zero3, zero2_offload, ...'
    )
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate to the actual batch')
    parser.add_argument(
        '--per-gpu', type=positive, help='images a GPU holds at once; the rest of the total batch is accumulated'
    )
    parser.add_argument(
        '--plan', type=positive, metavar='GPUS', help='print how GPUS x --per-gpu keep the schedule, and leave'
    )
    parser.add_argument(
        '--suggest', action='store_true', help='print a config for --images of your own, with its reasons, and leave'
    )
    parser.add_argument('--method', default='mocov2plus', help='--suggest: the framework, such as byol or smocov2plus')
    parser.add_argument('--images', type=positive, help='--suggest: how many there are')
    parser.add_argument('--gpus', type=positive, default=1, help='--suggest: how many there are')
    parser.add_argument(
        '--channels', type=positive, help='--suggest: of each image, read as it is stored (TIFF, PNG, NPY)'
    )
    parser.add_argument('--data', help='--suggest: the folder of images, to be counted and looked at for --views')
    parser.add_argument('--views', help='--suggest: satellite, microscopy, medical_grey or documents')
    parser.add_argument('--weights', help='--suggest: a checkpoint of any known project to start from')
    parser.add_argument(
        '--log', nargs='+', default=[], metavar='LOGGER', help='wandb, mlflow, tensorboard: where curves go as well'
    )
    parser.add_argument('--seed', type=seed, help='the seed; a CPU run with one repeats bit for bit')
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions, help='override config keys, as key=value')
    parser.add_argument(
        '--dump-config', metavar='FILE', help='write the config with its bases and options as YAML or JSON, and leave'
    )
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm'], default='none')
    parser.add_argument('--device', choices=['cpu'], help=argparse.SUPPRESS)  # as `mim train mmairl --gpus 0` says it
    parser.add_argument('--local_rank', '--local-rank', type=int, help='which old launchers say; others set LOCAL_RANK')
    args = parser.parse_args()
    if args.suggest and args.config:
        parser.error(
            f"--suggest writes a config and takes none; name the method by --method, such as '--method {args.config}'"
        )
    if args.suggest and not (args.images or args.data):
        parser.error('--suggest wants to know how many images you have; give --images N or --data DIR')
    if not args.suggest and not args.config:
        parser.error('give a config, or --suggest --images N to have one written')
    if args.device:
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
    if args.local_rank is not None:
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def apply(args: argparse.Namespace, cfg: Config) -> None:
    """Set the keys of the config that the flags stand for."""
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
    # Torchrun, Slurm or mmairl/signals.sh has started the same command again.
    counts = ('TORCHELASTIC_RESTART_COUNT', 'SLURM_RESTART_COUNT', 'MMAIRL_STARTED_AGAIN')
    restarted = any(int(os.environ.get(name, 0)) for name in counts)
    if restarted and not args.resume:
        args.resume = 'auto'
    if args.resume == 'auto':
        cfg.resume = 'auto'
    elif args.resume:
        cfg.resume, cfg.load_from = 'again' if restarted else True, args.resume
    if args.amp:
        if cfg.optim_wrapper.get('type', 'OptimWrapper') == 'OptimWrapper':
            cfg.optim_wrapper.type = 'AutocastOptimWrapper'
        bfloat16 = not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
        cfg.optim_wrapper.dtype = 'bfloat16' if bfloat16 else 'float16'
    if args.strategy:
        cfg.strategy = strategy_named(args.strategy)
    if args.auto_scale_lr:
        cfg.auto_scale_lr.enable = True
    if args.log:
        from mmairl.engine.logging import log_to

        log_to(cfg, args.log)
    if args.seed is not None:
        cfg.randomness.seed = args.seed


@one_sentence_errors
def main() -> None:
    args = parse()
    if args.suggest:
        from mmairl.apis.suggest import suggest, suggest_for  # which no training run needs

        register()
        how = dict(gpus=args.gpus, channels=args.channels, weights=args.weights, views=args.views)
        text = suggest_for(args.data, args.method, **how) if args.data else suggest(args.method, args.images, **how)
        print(text)
        return
    cfg = load_config(args.config, args.cfg_options)
    apply(args, cfg)
    if args.dump_config:
        write_config(cfg, output(args.dump_config, args.config))
        return
    if args.plan is not None or args.per_gpu is not None:
        from mmairl.apis.batch_layout import follow, plan  # which an ordinary run does not need
    if args.plan is not None:
        print(plan(cfg, args.plan, args.per_gpu or max(1, cfg.total_batch_size // args.plan))[1])
        return
    if args.per_gpu is not None:
        join(cfg, args.launcher)
        follow(cfg, plan(cfg, get_world_size(), args.per_gpu)[0])
    train(cfg, args.launcher)
    stop_processes()


if __name__ == '__main__':
    main()
