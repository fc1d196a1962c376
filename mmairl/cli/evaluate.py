"""Score a model on labeled images: evaluate.py PROTOCOL CONFIG CKPT, or --init random or pixels.

PROTOCOL is knn, logreg, svm, linear or finetune, or one that CONFIG registers by custom_imports.
CONFIG is the config of the pre-training, or one of configs/evaluation for another data set.
CKPT is a checkpoint of any known project, or a released model such as torchvision:resnet50.
"""

import argparse
from pathlib import Path
from typing import Any

from mmairl.cli.flags import ConfigOptions, above_zero, count, device, positive, seed

# Options that become settings of the protocol. An option that is not given keeps the protocol's default.
SETTINGS = (
    'ks',
    'temperature',
    'standardise',
    'low_shot',
    'near_duplicates',
    'recipe',
    'sweep',
    'seed',
    'device',
    'workers',
    'launcher',
    'remeasure',
    'cache',
    'work_dir',
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('protocol', help='knn, logreg, svm, linear, finetune, or one that CONFIG registers')
    parser.add_argument('config')
    parser.add_argument('checkpoint', nargs='?', help='the checkpoint to score; or use --init')
    parser.add_argument('--init', choices=['random', 'pixels'], help='score a baseline instead of a checkpoint')
    parser.add_argument('--part', choices=['student', 'teacher'], default='student', help='network to score (student)')
    parser.add_argument('--prefix', help="first part of the backbone's keys in the checkpoint (found by default)")
    parser.add_argument('--out', type=Path, help='JSON file to write (next to the checkpoint)')
    parser.add_argument(
        '--cfg-options', nargs='+', action=ConfigOptions, default={}, help='override config keys, as k=v'
    )
    _add_settings(parser.add_argument_group('settings', argument_default=argparse.SUPPRESS))
    _add_resources(parser.add_argument_group('resources', argument_default=argparse.SUPPRESS))
    return parser.parse_args()


def _add_settings(group: Any) -> None:
    group.add_argument(
        '--k',
        '--ks',
        dest='ks',
        type=positive,
        nargs='+',
        metavar='K',
        help='knn: use K neighbors (evaluation.ks of the config, or 20 200)',
    )
    group.add_argument('--temperature', type=above_zero, help='knn: divide similarities by this (0.07)')
    group.add_argument('--standardise', action='store_true', help='logreg: scale features to mean 0 and deviation 1')
    group.add_argument('--low-shot', action='store_true', help='svm: also train with few positive images per class')
    group.add_argument(
        '--near-duplicates',
        action='store_true',
        help='knn, logreg, svm: count test images that nearly equal a training image, and also score without them',
    )
    group.add_argument('--recipe', help='linear, finetune: use one of configs/_base_/recipes, or the path of a config')
    group.add_argument(
        '--sweep',
        action=argparse.BooleanOptionalAction,
        help='linear: train a head for each rate and decay in one run, and test the best (evaluation.sweep of the config)',
    )
    group.add_argument('--seed', type=seed, help='seed trained classifiers, folds and held-out images (0)')
    group.add_argument(
        '--settings',
        nargs='+',
        action=ConfigOptions,
        default={},
        metavar='NAME=VALUE',
        help='set any setting of the protocol by its name, such as one without an option of its own',
    )


def _add_resources(group: Any) -> None:
    group.add_argument(
        '--remeasure', action='store_true', help='measure again and replace stored features, run and scores'
    )
    group.add_argument(
        '--work-dir', type=Path, help='linear, finetune: keep the run here and resume it (next to --out)'
    )
    group.add_argument(
        '--cache',
        type=Path,
        default=Path('work_dirs/features'),
        help='knn, logreg, svm: store features here (%(default)s)',
    )
    group.add_argument('--no-cache', action='store_const', const=None, dest='cache', help='store no features')
    group.add_argument('--device', type=device, help='compute features on this device (the GPU, or cpu)')
    group.add_argument('--workers', type=count, help='load images with this many processes (8 with a GPU, else 0)')
    group.add_argument('--launcher', choices=['none', 'pytorch', 'slurm'], help='start processes this way (none)')


def main() -> None:
    """Run the command line."""
    args = parse_args()
    # Heavy imports come after parsing, so that --help and errors in arguments are fast.
    from mmairl.errors import one_sentence_errors

    one_sentence_errors(lambda: run(args))()


def run(args: argparse.Namespace) -> None:
    from mmengine.dist import is_main_process

    from mmairl.config import load_config
    from mmairl.engine.checks import check_parts
    from mmairl.engine.run import register
    from mmairl.errors import UserError
    from mmairl.evaluation.protocol import default_device, default_workers, evaluate, settings_for
    from mmairl.io import output
    from mmairl.signals import stop_processes

    if bool(args.checkpoint) == bool(args.init):
        raise UserError(
            'evaluate: expected either a checkpoint or --init random or --init pixels; give one of them',
            code='no-subject',
        )
    register()
    cfg = load_config(args.config, args.cfg_options)
    out = args.out or default_out(args)
    output(out, args.checkpoint, args.config)
    work_dir = out.with_suffix('') if out.suffix else out.with_name(f'{out.name}_run')
    options = dict(work_dir=work_dir, device=default_device(), workers=default_workers())
    options.update({name: value for name, value in vars(args).items() if name in SETTINGS})
    settings = settings_for(args.protocol, **options, **args.settings)
    check_parts(cfg, ('model', 'evaluation'))
    result = evaluate(cfg, args.protocol, args.init or args.checkpoint, args.part, settings, prefix=args.prefix)
    if is_main_process():
        write(args, result, out)
    stop_processes()


def default_out(args: argparse.Namespace) -> Path:
    """Return CKPT_PART_PROTOCOL.json next to the checkpoint, with the name of a config of configs/evaluation."""
    from mmairl.checkpoints.load import is_released
    from mmairl.config import PREFIX

    config = Path(args.config.removeprefix(PREFIX))
    if args.init or is_released(args.checkpoint):
        subject = args.init or args.checkpoint.replace(':', '_')
        return Path('work_dirs') / Path(args.config).stem / f'{subject}_{args.protocol}.json'
    data = f'_{config.stem}' if config.parent.name == 'evaluation' else ''
    checkpoint = Path(args.checkpoint)
    return checkpoint.with_name(f'{checkpoint.stem}_{args.part}_{args.protocol}{data}.json')


def write(args: argparse.Namespace, result: Any, out: Path) -> None:
    """Print the scores, before anything that can fail, then write them and the page of the folder."""
    from dataclasses import asdict

    from mmairl.evaluation.identity import SOURCES, difference, key_of
    from mmairl.io import read_json, write_json
    from mmairl.report.evaluation_page import write_evaluation_page
    from mmairl.report.table import print_results

    features = f', features {result.details["features"]}' if 'features' in result.details else ''
    print_results([result], f'in percent, {Path(args.config).stem}{features}')
    if args.out is None and out.is_file():
        stored = read_json(out).get('identity') or {}
        # Results of other settings or images are kept under names of their own.
        if difference(stored, result.identity, but=('weights', 'code', SOURCES)):
            out = out.with_name(f'{out.stem}_{key_of(result.identity)}.json')
    record = dict(protocol=args.protocol, config=args.config, checkpoint=args.checkpoint, part=args.part)
    write_json(out, {**record, **asdict(result)})
    print(f'written to {out}; all results of this folder: {write_evaluation_page(out.parent)}')


if __name__ == '__main__':
    main()
