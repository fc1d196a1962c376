"""Run the tasks of the papers' transfer tables on one checkpoint: mmairl transfer CKPT [--tasks knn,linear,voc07,...].

Tasks whose data is missing are skipped, and the missing folders are listed. After an interruption, the same command resumes.
The resulting table compares the scores with published scores.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import add_part, parser_of, positive
from mmairl.errors import UserError

DEFAULT = 'knn,linear,voc07,voc0712,coco_c4,coco_fpn,cityscapes'
TASKS = (
    *DEFAULT.split(','),
    'coco_fpn_msbreg',
    'voc2012_seg',
    'scenes_det',
    'scenes_det_plain',
    'scenes_seg',
    'nyuv2',
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('transfer', __doc__)
    parser.add_argument('checkpoint', help='start from this checkpoint in any known format')
    parser.add_argument(
        '--tasks',
        help=f'run this comma-separated list of tasks; the known tasks are {", ".join(TASKS)} (default: {DEFAULT})',
    )
    add_part(parser)
    parser.add_argument(
        '--gpus',
        type=positive,
        default=1,
        metavar='N',
        help='use N GPUs, or N CPU processes if there is no GPU (default: 1)',
    )
    parser.add_argument(
        '--normrescale',
        metavar='ANCHOR',
        help='first rescale the backbone to the weight norms of the checkpoint ANCHOR (default: keep the weights)',
    )
    parser.add_argument(
        '--beside',
        default='mocov2plus_sgd',
        metavar='ROW',
        help='compare with this row of Tab. 1 and 2 of Huang et al. 2022, or with TABLE/ROW of another table (default: '
        'mocov2plus_sgd)',
    )
    parser.add_argument(
        '--work-dir',
        type=Path,
        help='write the runs and the table here (default: work_dirs/transfer/RUN_CKPT_PART)',
    )
    parser.add_argument(
        '--data',
        type=Path,
        default=Path('.'),
        help='read the data sets in the folder DATA/data (default: DATA is the current folder)',
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)

    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.engine.run import register
    from mmairl.report.table import save_table
    from mmairl.study.published import row
    from mmairl.transfer import tasks
    from mmairl.transfer.execute import Place, run_task, write_start

    register()
    names = tasks.chosen(args.tasks, rescaled=args.normrescale is not None)
    published = row(args.beside)
    absent = {
        name: paths for name in names if (paths := tasks.lacking(tasks.TASKS[name], args.data))
    }
    for name, paths in absent.items():
        print(
            f'{name}: skipped, because {", ".join(str(path.absolute()) for path in paths)} is missing'
        )
    present = [name for name in names if name not in absent]
    if not present:
        raise UserError(
            '--tasks: the data of all tasks is missing (the lines above list the folders); set --data, or create the folders, '
            'for example as links to your data',
            code='no-task-data',
        )
    tasks.require_platform(present)
    work_dir = args.work_dir or Path('work_dirs/transfer') / run_name(args)
    place = Place(args.data.absolute(), work_dir, args.gpus)
    start, depth = write_start(args.checkpoint, args.part, args.normrescale, place)
    # Building all configs first raises errors before hours are spent on the first task.
    for name in present:
        tasks.task_config(name, depth)
    measured: dict[str, float] = {}
    for name in present:
        measured |= run_task(name, start, depth, place)
    columns = [column for name in names for column in tasks.TASKS[name].scores]
    rows = [(column, measured.get(column), published.get(column)) for column in columns]
    show(rows, args.beside)
    print(save_table(('column', 'measured', f'published, {args.beside}'), rows, work_dir / 'table'))


def run_name(args: argparse.Namespace) -> str:
    """Return RUN_CKPT_PART, or RUN_CKPT_PART_normrescale if the backbone is rescaled.

    PART is the value of --part. The name of the run is included, because checkpoints of different runs have the same file
    names.
    """
    source = Path(args.checkpoint).absolute()
    suffix = '_normrescale' if args.normrescale else ''
    return f'{source.parent.name}_{source.stem}_{args.part}{suffix}'


def show(rows: list[tuple[str, float | None, float | None]], beside: str) -> None:
    """Print a table of measured and published scores. The cells of missing scores are blank."""
    from mmairl.report.table import print_table
    from mmairl.transfer.tasks import TASKS

    cells_by_column = []
    for column, ours, theirs in rows:
        digits = 1 if column not in TASKS['nyuv2'].plain else 3
        difference = None if None in (ours, theirs) else ours - theirs
        cells = [
            '' if value is None else f'{value:.{digits}f}' for value in (ours, theirs, difference)
        ]
        cells_by_column.append((column, cells))
    title = 'transfer, in percent (except nyuv2_rms and nyuv2_rel)'
    print_table(('measured', f'published, {beside}', 'difference'), cells_by_column, title)
