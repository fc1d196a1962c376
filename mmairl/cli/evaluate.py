"""Measure a checkpoint by k-NN, a linear or fine-tuned classifier, logistic regression or SVMs.

CONFIG is the config of the pre-training, or one of configs/evaluation for another data set. CKPT is a checkpoint of any known
project, or a released model such as torchvision:resnet50. --init measures a baseline instead.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmairl.cli.flags import above_zero, add_config_options, count, device, parser_of, positive, seed
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmairl.evaluation.protocol import Result

PROTOCOLS = ('knn', 'logreg', 'svm', 'linear', 'finetune')
BASELINES = ('random', 'pixels')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('evaluate', __doc__)
    parser.add_argument('protocol', choices=PROTOCOLS, help='choose the protocol')
    parser.add_argument('config', help='name the config of the model and of the data sets')
    parser.add_argument('checkpoint', nargs='?', metavar='CKPT', help='name the checkpoint; required without --init')
    parser.add_argument('--init', choices=BASELINES, help='measure a baseline instead of a checkpoint (default: none)')
    parser.add_argument(
        '--part', choices=['student', 'teacher'], default='student', help='choose the network (default: student)'
    )
    parser.add_argument('--prefix', help='read the backbone under this prefix of the keys (default: detect it)')
    parser.add_argument(
        '--k',
        dest='ks',
        type=positive,
        nargs='+',
        metavar='K',
        help="knn: set the numbers of neighbors (default: the config's, or 20 200)",
    )
    parser.add_argument('--temperature', type=above_zero, help='knn: set the temperature of the votes (default: 0.07)')
    parser.add_argument(
        '--recipe',
        help="linear, finetune: train by one of configs/_base_/recipes or by this config (default: the config's)",
    )
    parser.add_argument(
        '--sweep',
        action=argparse.BooleanOptionalAction,
        help="linear: train many rates and decays in one pass and test the best (default: the config's evaluation.sweep)",
    )
    parser.add_argument(
        '--seed', type=seed, help='seed the classifier, the folds of svm and the held-out images of logreg (default: 0)'
    )
    parser.add_argument(
        '--standardise', action='store_true', help='logreg: scale features to mean 0 and deviation 1 (default: off)'
    )
    parser.add_argument(
        '--low-shot', action='store_true', help='svm: also train on few positive images per class (default: off)'
    )
    parser.add_argument(
        '--near-duplicates',
        action='store_true',
        help='knn, logreg, svm: count test images nearly equal to a training image; also score without them (default: off)',
    )
    parser.add_argument(
        '--remeasure',
        action='store_true',
        help='measure again and replace the stored features, run and scores (default: off)',
    )
    parser.add_argument(
        '--work-dir', type=Path, help='linear, finetune: store the run here and resume it (default: next to --out)'
    )
    parser.add_argument(
        '--cache',
        type=Path,
        default=Path('work_dirs/features'),
        help='store features here (default: work_dirs/features)',
    )
    parser.add_argument(
        '--no-cache',
        action='store_const',
        const=None,
        dest='cache',
        help='store no features (default: store them in --cache)',
    )
    parser.add_argument(
        '--device', type=device, help='knn, logreg, svm: compute features on this device (default: the GPU if any)'
    )
    parser.add_argument(
        '--workers', type=count, help='load images in this many processes (default: up to 8 with a GPU, else 0)'
    )
    parser.add_argument('--out', type=Path, help='write the scores to this JSON file (default: next to the checkpoint)')
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm'],
        default='none',
        help='join the processes of this launcher (default: none)',
    )
    add_config_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    if bool(args.checkpoint) == bool(args.init):
        raise UserError(
            'give either a checkpoint or --init random / --init pixels, not both and not neither', code='subject'
        )
    # Imported after the arguments are parsed, because torch and OpenMMLab take seconds.
    from mmengine.dist import is_main_process

    from mmairl.config import load_config
    from mmairl.engine.checks import check_parts
    from mmairl.engine.run import register
    from mmairl.evaluation.protocol import default_device, default_workers, evaluate, settings_for
    from mmairl.io import output
    from mmairl.signals import stop_processes

    register()
    args.device = args.device or default_device()
    args.workers = default_workers() if args.workers is None else args.workers
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


def default_out(args: argparse.Namespace) -> Path:
    """Return CKPT_PART_PROTOCOL.json next to the checkpoint, with the data set's name unless it is the pre-training's."""
    from mmairl.checkpoints.load import is_released
    from mmairl.config_names import PREFIX

    config = Path(args.config.removeprefix(PREFIX))
    data = f'_{config.stem}' if config.parent.name == 'evaluation' else ''
    if args.init or is_released(args.checkpoint):
        subject = args.init or args.checkpoint.replace(':', '_')
        return Path('work_dirs') / Path(args.config).stem / f'{subject}_{args.protocol}.json'
    checkpoint = Path(args.checkpoint)
    return checkpoint.with_name(f'{checkpoint.stem}_{args.part}_{args.protocol}{data}.json')


def write(args: argparse.Namespace, result: 'Result', out: Path) -> None:
    """Print the scores before anything that can fail, then write them."""
    import dataclasses

    from mmairl.evaluation.identity import SOURCES, difference, key_of
    from mmairl.io import read_json, write_json
    from mmairl.report.evaluation_page import write_evaluation_page
    from mmairl.report.table import print_results

    features = f', features {result.details["features"]}' if 'features' in result.details else ''
    print_results([result], f'in percent, {Path(args.config).stem}{features}')
    if args.out is None and out.is_file():  # of other settings or images: keep both
        saved = read_json(out).get('identity') or {}
        if difference(saved, result.identity, but=('weights', 'code', SOURCES)):
            out = out.with_name(f'{out.stem}_{key_of(result.identity)}.json')
    record = dict(protocol=args.protocol, config=args.config, checkpoint=args.checkpoint, part=args.part)
    write_json(out, {**record, **dataclasses.asdict(result)})
    print(f'written to {out}, and with the other results there to {write_evaluation_page(out.parent)}')
