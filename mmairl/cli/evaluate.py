"""Measure a network: tools/evaluate.py {knn,linear,logreg,svm,finetune} CONFIG CKPT, or --init {random,pixels}.

CONFIG is the one it was pre-trained by, or one of configs/evaluation for another data set. CKPT is of any known project, or a
released model such as torchvision:resnet50.
"""

import argparse
import dataclasses
from pathlib import Path

import mmairl  # noqa: F401  before torch, whose threads it sets up

# isort: split
from mmengine.dist import is_main_process

from mmairl.checkpoints.load import is_released
from mmairl.cli.flags import ConfigOptions, above_zero, count, device, positive, seed
from mmairl.config import PREFIX, load_config
from mmairl.engine.checks import check_parts
from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.evaluation.identity import SOURCES, difference, key_of
from mmairl.evaluation.knn import TEMPERATURE
from mmairl.evaluation.protocol import (
    BASELINES,
    BY_TRAINING,
    ON_FEATURES,
    default_device,
    default_workers,
    evaluate,
    settings_for,
)
from mmairl.io import output, read_json, write_json
from mmairl.report.evaluation_page import write_evaluation_page
from mmairl.report.table import print_results
from mmairl.signals import stop_processes


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('protocol', choices=[*ON_FEATURES, *BY_TRAINING])
    parser.add_argument('config')
    parser.add_argument('checkpoint', nargs='?', help='the checkpoint to measure; or give --init')
    parser.add_argument('--init', choices=BASELINES, help='measure a baseline in place of a checkpoint')
    parser.add_argument('--part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--prefix', help='read the backbone below this beginning of the keys; found by default')
    parser.add_argument(
        '--k',
        dest='ks',
        type=positive,
        nargs='+',
        metavar='K',
        help="knn: numbers of neighbours (20 200, or the config's)",
    )
    parser.add_argument('--temperature', type=above_zero, default=TEMPERATURE, help='knn: of the votes')
    parser.add_argument('--recipe', help='linear, finetune: one of configs/_base_/recipes, or the path of a config')
    parser.add_argument(
        '--sweep',
        action=argparse.BooleanOptionalAction,
        help="linear: many rates and decays in one pass, the best tested (or as the config's evaluation.sweep says)",
    )
    parser.add_argument(
        '--seed', type=seed, help="of a classifier that is trained, svm's folds, logreg's held-out images (0)"
    )
    parser.add_argument('--standardise', action='store_true', help='logreg: features of mean 0 and deviation 1')
    parser.add_argument('--low-shot', action='store_true', help='svm: with few positive images a class, too')
    parser.add_argument(
        '--near-duplicates',
        action='store_true',
        help='knn, logreg, svm: count test images that a training image is nearly the same as; score without them, too',
    )
    parser.add_argument(
        '--remeasure', action='store_true', help='measure again and replace the stored features, run and scores'
    )
    parser.add_argument('--work-dir', type=Path, help='linear, finetune: where the run lives, and is resumed from')
    parser.add_argument('--cache', type=Path, default=Path('work_dirs/features'), help='where features are kept')
    parser.add_argument('--no-cache', action='store_const', const=None, dest='cache', help='keep no features')
    parser.add_argument(
        '--device', type=device, default=default_device(), help='knn, logreg, svm: what features are computed on'
    )
    parser.add_argument('--workers', type=count, default=default_workers(), help='processes that load images')
    parser.add_argument('--out', type=Path, help='JSON to write; by default beside the checkpoint')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm'], default='none')
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions, default={}, help='overrides, as k=v')
    return parser.parse_args()


def default_out(args: argparse.Namespace) -> Path:
    """CKPT_PART_PROTOCOL.json beside the checkpoint; another data set than the pre-training's is named, too."""
    config = Path(args.config.removeprefix(PREFIX))
    data = f'_{config.stem}' if config.parent.name == 'evaluation' else ''
    if args.init or is_released(args.checkpoint):
        subject = args.init or args.checkpoint.replace(':', '_')
        return Path('work_dirs') / Path(args.config).stem / f'{subject}_{args.protocol}.json'
    checkpoint = Path(args.checkpoint)
    return checkpoint.with_name(f'{checkpoint.stem}_{args.part}_{args.protocol}{data}.json')


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if bool(args.checkpoint) == bool(args.init):
        raise UserError('give either a checkpoint or --init random / --init pixels, not both and not neither')
    register()
    cfg = load_config(args.config, args.cfg_options)
    out = args.out or default_out(args)
    output(out, args.checkpoint, args.config)
    args.work_dir = args.work_dir or (out.with_suffix('') if out.suffix else out.with_name(f'{out.name}_run'))
    settings = settings_for(**vars(args))
    check_parts(cfg, ('model', 'evaluation'))
    result = evaluate(cfg, args.protocol, args.init or args.checkpoint, args.part, settings, prefix=args.prefix)
    if is_main_process():
        write(args, result, out)
    stop_processes()


def write(args: argparse.Namespace, result, out: Path) -> None:
    """Print the scores before anything that can fail, then keep them."""
    features = f', features {result.details["features"]}' if 'features' in result.details else ''
    print_results([result], f'in percent, {Path(args.config).stem}{features}')
    if args.out is None and out.is_file():  # by other settings, or on other images: both are kept
        there = read_json(out).get('identity') or {}
        if difference(there, result.identity, but=('weights', 'code', SOURCES)):
            out = out.with_name(f'{out.stem}_{key_of(result.identity)}.json')
    record = dict(protocol=args.protocol, config=args.config, checkpoint=args.checkpoint, part=args.part)
    write_json(out, {**record, **dataclasses.asdict(result)})
    print(f'written to {out}, and with what else was measured there to {write_evaluation_page(out.parent)}')


if __name__ == '__main__':
    main()
