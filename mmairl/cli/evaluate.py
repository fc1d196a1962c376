"""Evaluate a checkpoint by k-NN, a linear or fine-tuned classifier, logistic regression, SVMs, dense probes or retrieval.

CONFIG is the config of the pre-training, or a config in configs/evaluation for another data set. CKPT is a checkpoint in any
known format, or a released model such as torchvision:resnet50. --init evaluates a baseline instead. A config can register
more protocols through custom_imports.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmairl.cli.flags import (
    ConfigOptions,
    above_zero,
    add_config_options,
    add_launcher,
    add_part,
    add_prefix,
    add_switch,
    count,
    device,
    parser_of,
    positive,
    seed,
)
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmengine import Config

    from mmairl.evaluation.protocol import Protocol, Result

PROTOCOLS = (
    'knn',
    'logreg',
    'svm',
    'linear',
    'finetune',
    'segment',
    'depth_probe',
    'retrieval',
    'uniformity',
    'norms',
)
BASELINES = ('random', 'pixels')
# The arguments that are not settings of a protocol.
GENERAL = (
    'protocol',
    'config',
    'checkpoint',
    'init',
    'part',
    'prefix',
    'out',
    'cfg_options',
    'settings',
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('evaluate', __doc__)
    parser.add_argument(
        'protocol',
        help=f'choose the protocol: {", ".join(PROTOCOLS)}, or one that the config registers',
    )
    parser.add_argument('config', help='use the model and the data sets of this config')
    parser.add_argument(
        'checkpoint',
        nargs='?',
        metavar='CKPT',
        help='evaluate this checkpoint; required without --init',
    )
    parser.add_argument(
        '--init',
        choices=BASELINES,
        help='evaluate random weights or raw pixels as a baseline, instead of a checkpoint (default: none)',
    )
    add_part(parser)
    add_prefix(parser)
    parser.add_argument(
        '--out',
        type=Path,
        help='write the scores to this JSON file (default: next to the checkpoint; for a baseline or a released model, in '
        'work_dirs/CONFIG)',
    )
    add_config_options(parser)
    # For an absent argument, the protocol's default applies. An argument that only other protocols have is an error.
    add_settings(
        parser.add_argument_group('settings of protocols', argument_default=argparse.SUPPRESS)
    )
    add_resources(parser.add_argument_group('resources', argument_default=argparse.SUPPRESS))
    return parser.parse_args(arguments)


def add_settings(group: Any) -> None:
    """Add the options for settings that can change a score."""
    group.add_argument(
        '--k',
        '--ks',
        dest='ks',
        type=positive,
        nargs='+',
        metavar='K',
        help="knn: set one or more values of k, the number of neighbors (default: the config's, or 20 200)",
    )
    group.add_argument(
        '--temperature',
        type=above_zero,
        help='knn: set the temperature of the votes (default: 0.07)',
    )
    group.add_argument(
        '--recipe',
        help='linear, finetune: train with this recipe, a name in configs/_base_/recipes or a config file (default: the recipe '
        'that CONFIG names, else the default recipe of the protocol)',
    )
    group.add_argument(
        '--sweep',
        action=argparse.BooleanOptionalAction,
        help='linear: train classifiers with many learning rates and weight decays at once, and test the best of them '
        '(default: evaluation.sweep of the config)',
    )
    group.add_argument(
        '--seed',
        type=seed,
        help='logreg, svm, linear, finetune, segment, depth_probe: set the random seed (default: 0)',
    )
    add_switch(
        group,
        '--standardise',
        'logreg: scale features to mean 0 and standard deviation 1 (default: off)',
    )
    group.add_argument(
        '--settings',
        nargs='+',
        action=ConfigOptions,
        default={},
        metavar='NAME=VALUE',
        help='set other settings of the protocol by name (default: none)',
    )


def add_resources(group: Any) -> None:
    """Add the options that cannot change a score."""
    add_switch(
        group,
        '--remeasure',
        'evaluate again, and replace the stored features, training run and scores (default: off)',
    )
    group.add_argument(
        '--work-dir',
        type=Path,
        help='linear, finetune: store the training run in this folder, or resume the run in this folder (default: next to '
        '--out)',
    )
    group.add_argument(
        '--cache',
        type=Path,
        default=Path('work_dirs/features'),
        help='all protocols except linear, finetune and norms: store features in this folder (default: work_dirs/features)',
    )
    group.add_argument(
        '--no-cache',
        action='store_const',
        const=None,
        dest='cache',
        help='do not store features (default: store them in the folder of --cache)',
    )
    group.add_argument(
        '--device',
        type=device,
        help='all protocols except linear, finetune and norms: compute on this device (default: the GPU if any)',
    )
    group.add_argument(
        '--workers',
        type=count,
        help='load images in this many processes (default: up to 8 with a GPU, else 0)',
    )
    add_launcher(group)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    if bool(args.checkpoint) == bool(args.init):
        raise UserError(
            'evaluate: expected a checkpoint, --init random or --init pixels; give exactly one of them',
            code='subject',
        )
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmengine.dist import is_main_process

    from mmairl.config import load_config
    from mmairl.engine.checks import check_parts
    from mmairl.engine.run import register
    from mmairl.evaluation.protocol import evaluate
    from mmairl.io import output
    from mmairl.signals import stop_processes

    register()
    cfg = load_config(args.config, args.cfg_options)
    use_released_network(cfg, args)
    out = args.out or default_out(args)
    output(out, args.checkpoint, args.config)
    settings = settings_of(args, out, cfg)
    check_parts(cfg, ('model', 'evaluation'))
    result = evaluate(
        cfg, args.protocol, args.init or args.checkpoint, args.part, settings, prefix=args.prefix
    )
    if is_main_process():
        write_result(args, result, out)
    stop_processes()


def use_released_network(cfg: 'Config', args: argparse.Namespace) -> None:
    """If the checkpoint is a model of a hub, replace the backbone and the normalization in the config by those of the model."""
    from mmairl.checkpoints.read import read_backbone
    from mmairl.checkpoints.released import is_hub

    if args.checkpoint and is_hub(args.checkpoint):
        backbone = read_backbone(args.checkpoint, prefix=args.prefix)
        cfg.model.backbone = backbone.network
        images = backbone.input
        cfg.model.data_preprocessor.update(mean=list(images.mean), std=list(images.std))


def settings_of(args: argparse.Namespace, out: Path, cfg: 'Config') -> 'Protocol':
    """Return the protocol, with its settings from the command line and the config."""
    from mmairl.evaluation.protocol import default_device, default_workers, settings_for

    work_dir = out.with_suffix('') if out.suffix else out.with_name(f'{out.name}_run')
    settings = dict(work_dir=work_dir, device=default_device(), workers=default_workers())
    settings.update({name: value for name, value in vars(args).items() if name not in GENERAL})
    if repeated := sorted(settings.keys() & args.settings.keys()):
        raise UserError(
            f"--settings: an option already sets this setting ('{repeated[0]}'); use --{repeated[0].replace('_', '-')} instead",
            code='setting-twice',
        )
    return settings_for(args.protocol, cfg, **settings, **args.settings)


def default_out(args: argparse.Namespace) -> Path:
    """Return the default output path, which is CKPT_PART_PROTOCOL[_DATA].json next to the checkpoint.

    PART is the value of --part. DATA is the name of the config if the config is in configs/evaluation. For a baseline or a
    released model, which has no folder, the path is work_dirs/CONFIG/NAME_PROTOCOL.json with the name of the baseline or model.
    """
    from mmairl.checkpoints.released import is_released
    from mmairl.config import PREFIX

    config = Path(args.config.removeprefix(PREFIX))
    data = f'_{config.stem}' if config.parent.name == 'evaluation' else ''
    if args.init or is_released(args.checkpoint):
        subject = args.init or args.checkpoint.replace(':', '_').replace('/', '_')
        return Path('work_dirs') / Path(args.config).stem / f'{subject}_{args.protocol}.json'
    checkpoint = Path(args.checkpoint)
    return checkpoint.with_name(f'{checkpoint.stem}_{args.part}_{args.protocol}{data}.json')


def write_result(args: argparse.Namespace, result: 'Result', out: Path) -> None:
    """Print the scores, then write them to a file. They are printed first, because writing can fail."""
    import dataclasses

    from mmairl.evaluation.identity import SOURCES, difference, key_of
    from mmairl.io import read_json, write_json
    from mmairl.report.evaluation_page import results_table, write_evaluation_page

    features = f', features {result.details["features"]}' if 'features' in result.details else ''
    print(results_table([result]).text(f'in percent, {Path(args.config).stem}{features}'))
    # If the file contains the result for other settings or images, write to another file.
    if args.out is None and out.is_file():
        saved = read_json(out).get('identity') or {}
        if difference(saved, result.identity, ignored=('weights', 'code', SOURCES)):
            out = out.with_name(f'{out.stem}_{key_of(result.identity)}.json')
    record = dict(
        protocol=args.protocol, config=args.config, checkpoint=args.checkpoint, part=args.part
    )
    write_json(out, {**record, **dataclasses.asdict(result)})
    page = write_evaluation_page(out.parent)
    print(f'the scores are in {out}, and the page of all results in this folder is {page}')
