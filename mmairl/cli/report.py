"""Write a page about evaluation results, a study, the papers' claims, views, the health of a run, several runs, or images.

mmairl report FOLDER... [--plot X Y] [--out DIR]
mmairl report study DIR [--figures OUT]
mmairl report claims [DIR] [--out PAGE]
mmairl report views CONFIG [--root DIR] [--out PAGE]
mmairl report health WORK_DIR [--out PAGE]
mmairl report compare RUN RUN... [--out PAGE]
mmairl report map CHECKPOINT... --images DIR [--colours CSV COLUMN] [--patches N] [--out PAGE]

To read results in a folder that has the name of one of these pages, such as health, write ./health.
"""

from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import (
    add_config_options,
    add_loading,
    add_network,
    add_part,
    parser_of,
    positive,
    seed,
)
from mmairl.errors import UserError


def main(arguments: Sequence[str]) -> None:
    pages = dict(
        study=study, claims=claims, health=health, views=views, map=image_map, compare=compare_runs
    )
    if arguments and arguments[0] in pages:
        print(pages[arguments[0]](arguments[1:]))
    else:
        print(evaluation(arguments))


# Each function below imports modules after it has parsed its arguments, because importing torch and OpenMMLab takes seconds.


def evaluation(arguments: Sequence[str]) -> Path:
    parser = parser_of('report', __doc__)
    parser.add_argument(
        'folders',
        nargs='+',
        help='read the results in these folders (or use study, claims, views, health, compare or map as above)',
    )
    parser.add_argument(
        '--plot',
        nargs=2,
        action='append',
        default=[],
        metavar=('X', 'Y'),
        help='plot the score named Y against the score named X (default: no plot)',
    )
    parser.add_argument(
        '--out',
        default='work_dirs/report',
        help='write the page to this folder (default: work_dirs/report)',
    )
    args = parser.parse_args(arguments)

    from mmairl.report.evaluation_page import records_in, write_evaluation_page

    records = records_in(*args.folders)
    if not records:
        raise UserError(
            f'{", ".join(args.folders)}: no results; run `mmairl evaluate` first',
            code='no-results',
        )
    return write_evaluation_page(args.out, args.plot, args.folders)


def study(arguments: Sequence[str]) -> Path:
    parser = parser_of(
        'report study', 'Write the page of a finished study again, or figures for a paper.'
    )
    parser.add_argument(
        'folder', type=Path, help='read study.json in this folder, which `mmairl study` wrote'
    )
    parser.add_argument(
        '--figures',
        type=Path,
        metavar='OUT',
        help='instead of the page, write figures of the effects to this folder, at column width and at text width, as SVG, '
        'PDF and PNG, and tables of the effects as LaTeX, Markdown and CSV (default: write FOLDER/page.html)',
    )
    args = parser.parse_args(arguments)

    from mmairl.io import read_json
    from mmairl.study.pages.study_page import write_figures, write_study_page

    record = read_json(args.folder / 'study.json')
    if not args.figures:
        return write_study_page(record, args.folder / 'page.html')
    if not write_figures(record, args.figures):
        raise UserError(
            f'--figures: {args.folder} has no comparison; finish runs of at least two rows of the study',
            code='no-figures',
        )
    return args.figures


def claims(arguments: Sequence[str]) -> Path:
    parser = parser_of(
        'report claims',
        "Write a page about the papers' claims that mmairl's studies test, with the verdicts of finished studies.",
    )
    parser.add_argument(
        'folder',
        nargs='?',
        default='work_dirs/studies',
        help='read the studies in this folder (default: work_dirs/studies)',
    )
    parser.add_argument('--out', help='write this page (default: FOLDER/claims.html)')
    args = parser.parse_args(arguments)

    from mmairl.study.pages.claims_page import write_claims_page

    return write_claims_page(args.folder, args.out or Path(args.folder) / 'claims.html')


def health(arguments: Sequence[str]) -> Path:
    parser = parser_of('report health', 'Write the health page of a run.')
    parser.add_argument(
        'work_dir', help='read the work dir of a training run that used a HealthHook'
    )
    parser.add_argument('--out', help='write this page (default: WORK_DIR/health.html)')
    args = parser.parse_args(arguments)

    from mmairl.report.health_page import write_health_page

    return write_health_page(args.work_dir, args.out or Path(args.work_dir) / 'health.html')


def views(arguments: Sequence[str]) -> Path:
    parser = parser_of(
        'report views',
        'Write a page with some training images and their views, so that you can check the views before a run.',
    )
    parser.add_argument(
        'config', help='use this pre-training config, such as configs/mocov2plus_r18_folder_100e.py'
    )
    parser.add_argument('--root', help='read images here (default: train_dataloader.dataset.root)')
    parser.add_argument(
        '--views',
        help="use the views for a kind of images: satellite, microscopy, medical_grey or documents (default: the config's)",
    )
    parser.add_argument(
        '--seed',
        type=seed,
        default=0,
        help='set the seed for the choice of images and for their views (default: 0)',
    )
    parser.add_argument('--out', help='write this page (default: work_dirs/views/CONFIG.html)')
    add_config_options(parser)
    args = parser.parse_args(arguments)

    from mmairl.config import load_config
    from mmairl.engine.checks import check_config
    from mmairl.engine.run import register
    from mmairl.io import output
    from mmairl.report.views_page import write_views_page

    register()
    flags = {
        'train_dataloader.dataset.root': args.root,
        'train_dataloader.dataset.views': args.views,
    }
    options = {key: value for key, value in flags.items() if value}
    cfg = load_config(args.config, {**options, **args.cfg_options})
    check_config(cfg)
    out = output(args.out or f'work_dirs/views/{Path(args.config).stem}.html', args.config)
    return write_views_page(cfg, out, args.seed)


def compare_runs(arguments: Sequence[str]) -> Path:
    parser = parser_of('report compare', 'Write a page that compares training runs.')
    parser.add_argument('runs', nargs='+', help='read the work dirs of two or more training runs')
    parser.add_argument(
        '--out',
        default='work_dirs/compare.html',
        help='write this page (default: work_dirs/compare.html)',
    )
    args = parser.parse_args(arguments)

    from mmairl.report.compare_page import write_compare_page

    return write_compare_page(args.runs, args.out)


def image_map(arguments: Sequence[str]) -> Path:
    parser = parser_of(
        'report map', 'Write a page with a map of images, near-duplicates, outliers and groups.'
    )
    parser.add_argument(
        'checkpoint', help='compute features with this checkpoint in any known format'
    )
    parser.add_argument(
        '--images',
        required=True,
        nargs='+',
        help='map the images in these folders or archives of `mmairl pack`',
    )
    add_part(parser)
    add_network(parser)
    parser.add_argument(
        '--size',
        type=positive,
        metavar='PIXELS',
        help='set the side of the center crop (default: as in training if the checkpoint states it, else 224)',
    )
    add_loading(parser)
    parser.add_argument(
        '--seed',
        type=seed,
        default=0,
        help='set the seed of the map and of the groups (default: 0)',
    )
    parser.add_argument('--out', help='write this page (default: map.html next to the checkpoint)')
    args = parser.parse_args(arguments)

    from mmairl.io import output
    from mmairl.report.map_page import map_images

    args.out = args.out or Path(args.checkpoint).with_name('map.html')
    output(args.out, args.checkpoint, args.config, *args.images)
    if len(args.images) == 1:
        args.images = args.images[0]
    return map_images(**vars(args))
