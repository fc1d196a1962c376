"""One checkpoint through the transfer tables: tools/transfer.py CKPT [--tasks knn,linear,voc07,...] [--gpus 8].

Tasks whose data is not there are named with where it was looked for. Called again, it goes on where it was. The table sets what
was measured beside what the paper prints for one pre-training.
"""

import argparse
from pathlib import Path

from mmairl.cli.flags import positive
from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.report.table import print_table, save_table
from mmairl.study.published import row
from mmairl.transfer.execute import Place, prepare, run_task
from mmairl.transfer.tasks import DEFAULT, TASKS, chosen, config_of, lacking, require_platform


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkpoint', help='of any known project')
    parser.add_argument('--tasks', help=f'some of {",".join(TASKS)} (default: {DEFAULT})')
    parser.add_argument('--part', choices=['student', 'teacher'], default='student')
    parser.add_argument('--gpus', type=positive, default=1, help='processes; without a GPU they run on the CPU')
    parser.add_argument('--normrescale', metavar='ANCHOR', help='rescale the backbone by this checkpoint first')
    parser.add_argument(
        '--beside', default='mocov2plus_sgd', help="the paper's row (Tab. 1, 2), or TABLE/ROW of another"
    )
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/transfer/RUN_CKPT_PART')
    parser.add_argument('--data', type=Path, default=Path('.'), help='the folder that has data/')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    register()
    names, published = chosen(args.tasks, rescaled=args.normrescale is not None), row(args.beside)
    absent = {name: paths for name in names if (paths := lacking(TASKS[name], args.data))}
    for name, paths in absent.items():
        print(f'{name}: left out, for {", ".join(str(path.absolute()) for path in paths)} is not there')
    present = [name for name in names if name not in absent]
    if not present:
        raise UserError('no task has its data; see above where it was looked for, and give --data or link data/')
    require_platform(present)
    suffix = '_normrescale' if args.normrescale else ''
    source = Path(args.checkpoint).absolute()  # of many runs the checkpoint has the same name, so the run is named, too
    name = f'{source.parent.name}_{source.stem}_{args.part}{suffix}'
    work_dir = args.work_dir or Path('work_dirs/transfer') / name
    place = Place(args.data.absolute(), work_dir, args.gpus)
    start, depth = prepare(args.checkpoint, args.part, args.normrescale, place)
    for name in present:  # before hours are spent on the first
        config_of(name, depth)
    measured: dict[str, float] = {}
    for name in present:
        measured |= run_task(name, start, depth, place)
    columns = [column for name in names for column in TASKS[name].scores]
    rows = [(column, measured.get(column), published.get(column)) for column in columns]
    show(rows, args.beside)
    print(save_table(('column', 'measured', f'published, {args.beside}'), rows, work_dir / 'table'))


def show(rows: list[tuple[str, float | None, float | None]], beside: str) -> None:
    """Print what was measured beside what was published; what is not there is blank."""
    shown = []
    for column, ours, theirs in rows:
        digits = 1 if column not in TASKS['nyuv2'].plain else 3
        difference = None if None in (ours, theirs) else ours - theirs
        cells = ['' if value is None else f'{value:.{digits}f}' for value in (ours, theirs, difference)]
        shown.append((column, cells))
    title = 'transfer, in percent (nyuv2_rms and nyuv2_rel: as they are)'
    print_table(('measured', f'published, {beside}', 'difference'), shown, title)


if __name__ == '__main__':
    main()
