"""Look into representations: tools/analyze.py {norms,cka,geometry,measures} CKPT... [--config CONFIG] [--out DIR].

norms     weight norms of each checkpoint (Fig. 3a), from the files alone
cka       two checkpoints stage by stage (Fig. 3b), one checkpoint's student and teacher, or many as a heat map
geometry  alignment, uniformity, rank, spectrum, a map, neighbours, and what each network has learned to ignore
measures  numbers that need no labels: RankMe, LiDAR, alpha-ReQ, uniformity, alignment, ..., on training images

CONFIG names the images, as for tools/evaluate.py, and the network where it is no ResNet. A checkpoint is of any known project,
or a released model such as torchvision:resnet50. Everything is saved as PNG, SVG and CSV, and as a page.
"""

import argparse
from pathlib import Path

import mmairl  # noqa: F401  before torch, whose threads it sets up

# isort: split
from mmairl.analysis.measures import IMAGES
from mmairl.analysis.subjects import Images
from mmairl.checkpoints.read import read_backbone
from mmairl.cli.flags import ConfigOptions, count, device, positive, seed
from mmairl.config import load_config
from mmairl.engine.checks import check_parts
from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.evaluation.protocol import default_device
from mmairl.report import analysis_pages


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('instrument', choices=['norms', 'cka', 'geometry', 'measures'])
    parser.add_argument('checkpoints', nargs='+')
    parser.add_argument('--config', help='the images to look at, and their statistics')
    parser.add_argument('--part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/analysis'))
    parser.add_argument('--lines', action='store_true', help='cka: the first beside each other one, stage by stage')
    parser.add_argument('--stage', default='pooled', help='cka of many checkpoints: the stage that is compared')
    parser.add_argument(
        '--full', action='store_true', help='cka of two: also over all images at once, biased, as published'
    )
    parser.add_argument('--recalibrate', action='store_true', help="BN statistics anew, as NormRescale's output needs")
    parser.add_argument('--images', type=positive, help='at most this many (default: 5000; measures: 25600)')
    parser.add_argument('--batch-size', type=positive, default=64)
    parser.add_argument('--workers', type=count, default=0)
    parser.add_argument('--device', type=device, default=default_device())
    parser.add_argument('--seed', type=seed, default=0)
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions, default={}, help='overrides, as k=v')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    subjects = {name: (path, args.part) for name, path in named(args.checkpoints).items()}
    if args.instrument == 'norms':
        networks = {name: read_backbone(*subject) for name, subject in subjects.items()}
        print(analysis_pages.norms_page(networks, args.out))
        return
    if not args.config:
        raise UserError(f'{args.instrument} looks at images: give --config, such as the one of the pre-training')
    register()
    cfg = load_config(args.config, args.cfg_options)
    check_parts(cfg, ('model', 'evaluation'))
    how = dict(batch_size=args.batch_size, workers=args.workers, device=args.device)
    if args.instrument == 'measures':
        print(analysis_pages.measures_page(subjects, cfg, args.images or IMAGES, how, args.recalibrate, args.out))
        return
    images = Images(cfg, args.images or 5000, **how)
    if args.instrument == 'cka':
        if len(subjects) == 1:
            subjects = {part: (args.checkpoints[0], part) for part in ('student', 'teacher')}
        if args.lines:
            print(analysis_pages.cka_lines_page(subjects, images, args.recalibrate, args.out))
            return
        print(analysis_pages.cka_page(subjects, images, args.stage, args.full, args.recalibrate, args.out))
    else:
        print(analysis_pages.geometry_page(subjects, images, args.recalibrate, args.out, args.seed))


def named(paths: list[str]) -> dict[str, str]:
    """Each path under the shortest name that tells it from the others: a file's, or with the folder's before it."""
    short = [Path(path).stem if not path.startswith('torchvision:') else path for path in paths]
    if len(set(short)) < len(short):
        short = [f'{Path(path).parent.name}/{name}' for path, name in zip(paths, short)]
    if len(set(short)) < len(short):
        short = list(paths)
    if len(set(short)) < len(short):
        raise UserError('a checkpoint is given twice; give each once')
    return dict(zip(short, paths))


if __name__ == '__main__':
    main()
