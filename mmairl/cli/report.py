"""One page of all that tools/evaluate.py left in some folders, of a run's health, of several runs, of the views that a
config makes, or a map of images.

tools/report.py FOLDER... [--plot X Y] [--out DIR]
tools/report.py views CONFIG [--root DIR] [--out PAGE]
tools/report.py health WORK_DIR [--out PAGE]
tools/report.py compare RUN RUN... [--out PAGE]
tools/report.py map CHECKPOINT... --images DIR [--colours CSV COLUMN] [--patches N] [--out PAGE]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import ConfigOptions, count, device, positive, seed
from mmairl.config import load_config
from mmairl.engine.checks import check_config
from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import output
from mmairl.report.compare_page import write_compare_page
from mmairl.report.evaluation_page import records_in, write_evaluation_page
from mmairl.report.health_page import write_health_page
from mmairl.report.views_page import write_views_page


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'folders',
        nargs='+',
        help="folders of results; or 'views', 'health', 'compare' or 'map' and what is named above",
    )
    parser.add_argument(
        '--plot',
        nargs=2,
        action='append',
        default=[],
        metavar=('X', 'Y'),
        help='one score against another, by their names',
    )
    parser.add_argument('--out', default='work_dirs/report', help='the folder of the page')
    return parser.parse_args()


def health(arguments: Sequence[str]) -> Path:
    parser = argparse.ArgumentParser(prog='report.py health', description="The health page of a run's latest start.")
    parser.add_argument('work_dir', help='of a training run with a HealthHook')
    parser.add_argument('--out', help='the page (default: WORK_DIR/health.html)')
    args = parser.parse_args(arguments)
    return write_health_page(args.work_dir, args.out or Path(args.work_dir) / 'health.html')


def views(arguments: Sequence[str]) -> Path:
    parser = argparse.ArgumentParser(prog='report.py views', description='Some images with their views, before a run.')
    parser.add_argument('config', help='a config that pre-trains, such as configs/mocov2plus_r18_folder_100e.py')
    parser.add_argument('--root', help='the folder of images, in place of train_dataloader.dataset.root')
    parser.add_argument('--views', help='satellite, microscopy, medical_grey or documents, in place of its own')
    parser.add_argument('--seed', type=seed, default=0, help='which images, and which draws')
    parser.add_argument('--out', help='the page (default: work_dirs/views/CONFIG.html)')
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions, help='override config keys, as key=value')
    args = parser.parse_args(arguments)
    register()
    named = {'train_dataloader.dataset.root': args.root, 'train_dataloader.dataset.views': args.views}
    options = {key: value for key, value in named.items() if value}
    cfg = load_config(args.config, {**options, **(args.cfg_options or {})})
    check_config(cfg)
    out = output(args.out or f'work_dirs/views/{Path(args.config).stem}.html', args.config)
    return write_views_page(cfg, out, args.seed)


def compare(arguments: Sequence[str]) -> Path:
    parser = argparse.ArgumentParser(prog='report.py compare', description='Runs beside each other.')
    parser.add_argument('runs', nargs='+', help='work dirs of training runs, two or more')
    parser.add_argument('--out', default='work_dirs/compare.html', help='the page (default: work_dirs/compare.html)')
    args = parser.parse_args(arguments)
    return write_compare_page(args.runs, args.out)


def image_map(arguments: Sequence[str]) -> Path:
    from mmairl.report.map_page import map_images

    parser = argparse.ArgumentParser(prog='report.py map', description='What a network finds alike among any images.')
    parser.add_argument('checkpoint', nargs='+', help='of a run of ours or of any project that tools/evaluate.py reads')
    parser.add_argument(
        '--images',
        required=True,
        nargs='+',
        help='a folder with or without classes, or an archive of tools/pack.py; several are coloured by where an image is from',
    )
    parser.add_argument('--colours', nargs=2, metavar=('CSV', 'COLUMN'), help='its first column names the images')
    parser.add_argument('--patches', type=count, default=0, help='images whose cells or patches are compared, too')
    parser.add_argument('--part', choices=('student', 'teacher'), default='student')
    parser.add_argument('--config', help='of a network that is no ResNet')
    parser.add_argument('--size', type=positive, help="the side of the images' central crop (default: the training's)")
    parser.add_argument('--batch', type=positive, default=64, help='images at a time')
    parser.add_argument('--workers', type=count, default=0, help='processes that load images')
    parser.add_argument('--device', type=device, help='default: the GPU, where there is one')
    parser.add_argument('--seed', type=seed, default=0, help='of the random weights, the maps and the groups')
    parser.add_argument('--out', default='work_dirs/map.html', help='the page (default: work_dirs/map.html)')
    args = parser.parse_args(arguments)
    output(args.out, *args.checkpoint, args.config, *args.images, *(args.colours or ()))
    args.images = args.images[0] if len(args.images) == 1 else args.images
    return map_images(**vars(args))


def evaluation() -> Path:
    args = parse_args()
    records = records_in(*args.folders)
    if not records:
        raise UserError(f'no results in {", ".join(args.folders)}; measure something with tools/evaluate.py first')
    known = sorted({name for record in records for name in record.scores})
    for name in {name for pair in args.plot for name in pair} - set(known):
        raise UserError(f"no result has the score '{name}'; there are {', '.join(known)}")
    return write_evaluation_page(args.out, args.plot, args.folders)


@one_sentence_errors
def main() -> None:
    pages = dict(health=health, views=views, map=image_map, compare=compare)
    made = pages.get(sys.argv[1]) if len(sys.argv) > 1 else None  # a folder of such a name is given as ./health
    print(made(sys.argv[2:]) if made else evaluation())


if __name__ == '__main__':
    main()
