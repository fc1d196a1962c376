"""Compare representations: mmairl analyze {norms,cka,geometry,measures,patches} CKPT... [--config CONFIG] [--out DIR].

norms     plot the weight norms of each checkpoint (Fig. 3a of Huang et al. 2022); requires no images
cka       compare two checkpoints, or student and teacher, stage by stage (Fig. 3b), or more checkpoints in a heat map
geometry  measure alignment, uniformity, rank, spectrum and invariances, and draw a map and nearest neighbors
measures  compute RankMe, LiDAR, alpha-ReQ, uniformity, alignment, ... on training images, without using labels
patches   draw the features of uncropped test images: principal components as colors, and the attention of a ViT's last layer

CONFIG defines the images, as in `mmairl evaluate`. It also defines the network, but cka, geometry and measures detect a ResNet
from the weights in CKPT. CKPT is a checkpoint in any known format, or a released model such as torchvision:resnet50. Most
analyses write a page, figures as PNG and SVG, and numbers as CSV; patches writes a single PNG.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmairl.cli.flags import (
    add_config_options,
    add_loading,
    add_part,
    add_switch,
    parser_of,
    positive,
    seed,
)
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmengine import Config


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('analyze', __doc__)
    parser.add_argument(
        'instrument',
        choices=['norms', 'cka', 'geometry', 'measures', 'patches'],
        help='choose one of the analyses above',
    )
    parser.add_argument('checkpoints', nargs='+', metavar='CKPT', help='analyze these checkpoints')
    parser.add_argument(
        '--config',
        help='use the images, mean and std of this config; required except for norms (default: none)',
    )
    add_part(parser)
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/analysis'),
        help='write here (default: work_dirs/analysis)',
    )
    parser.add_argument(
        '--layer',
        choices=['backbone', 'projector', 'predictor'],
        default='backbone',
        help='geometry: measure the output of this layer (default: backbone)',
    )
    parser.add_argument(
        '--stage',
        default='pooled',
        help='cka of more than two checkpoints: choose the stage for the heat map (default: pooled)',
    )
    add_switch(
        parser,
        '--recalibrate',
        'recompute batch norm statistics, which is required after `mmairl normrescale` (default: off)',
    )
    parser.add_argument(
        '--images',
        type=positive,
        metavar='N',
        help='use at most N images (default: 5000; measures: 25600; patches: 8)',
    )
    parser.add_argument(
        '--size',
        type=positive,
        default=448,
        metavar='PIXELS',
        help='patches: resize the shorter side of images to about this size (default: 448)',
    )
    add_loading(parser, '--batch-size')
    parser.add_argument(
        '--seed', type=seed, default=0, help='geometry: set the seed of the map (default: 0)'
    )
    add_config_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    paths = named(args.checkpoints)
    subjects = {name: (path, args.part) for name, path in paths.items()}

    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.report import analysis_pages

    if args.instrument == 'norms':
        from mmairl.checkpoints.read import read_backbone

        networks = {name: read_backbone(*subject) for name, subject in subjects.items()}
        print(analysis_pages.norms_page(networks, args.out))
        return
    if not args.config:
        raise UserError(
            f'{args.instrument}: requires images; give --config, such as the config of the pre-training',
            code='no-images',
        )

    from mmairl.analysis.subjects import Images
    from mmairl.config import load_config
    from mmairl.engine.checks import check_parts
    from mmairl.engine.run import register
    from mmairl.evaluation.protocol import default_device

    register()
    cfg = load_config(args.config, args.cfg_options)
    check_parts(cfg, ('model', 'evaluation'))
    if args.instrument == 'patches':
        print(_draw_patches(subjects, cfg, args))
        return
    settings = dict(
        batch_size=args.batch_size, workers=args.workers, device=args.device or default_device()
    )
    if args.instrument == 'measures':
        from mmairl.analysis.measures import IMAGES

        number = args.images or IMAGES
        print(
            analysis_pages.measures_page(
                subjects, cfg, number, settings, args.recalibrate, args.out
            )
        )
        return
    images = Images(cfg, args.images or 5000, **settings)
    if args.instrument == 'geometry':
        subjects = {name: (*subject, args.layer) for name, subject in subjects.items()}
        print(analysis_pages.geometry_page(subjects, images, args.recalibrate, args.out, args.seed))
        return
    if len(subjects) == 1:
        subjects = {part: (args.checkpoints[0], part) for part in ('student', 'teacher')}
    print(analysis_pages.cka_page(subjects, images, args.stage, args.recalibrate, args.out))


def _draw_patches(
    subjects: Mapping[str, tuple[str, str]], cfg: 'Config', args: argparse.Namespace
) -> Path:
    from mmairl.analysis.patch_pictures import patch_picture, whole_images
    from mmairl.evaluation.backbone import load_backbone
    from mmairl.io import output, replacing

    path = output(args.out / 'patches.png')
    backbones = {name: load_backbone(cfg, *subject) for name, subject in subjects.items()}
    image = patch_picture(backbones, list(whole_images(cfg, args.images or 8, args.size)), cfg)
    with replacing(path) as temporary:
        image.save(temporary, 'PNG')
    return path


def named(paths: list[str]) -> dict[str, str]:
    """Return a dictionary of the paths. The keys are file names if these are unique, else folder and file names, else paths."""
    from mmairl.checkpoints.released import is_released

    short = [path if is_released(path) else Path(path).stem for path in paths]
    if len(set(short)) < len(short):
        short = [f'{Path(path).parent.name}/{name}' for path, name in zip(paths, short)]
    if len(set(short)) < len(short):
        short = list(paths)
    if len(set(short)) < len(short):
        raise UserError(
            'analyze: a checkpoint is listed twice; list each checkpoint once',
            code='checkpoint-twice',
        )
    return dict(zip(short, paths))
