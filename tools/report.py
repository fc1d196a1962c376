"""One page of all that tools/evaluate.py left in some folders: tools/report.py FOLDER... [--plot X Y] [--out DIR]."""

import argparse
from pathlib import Path

from mmairl.engine.launch import one_sentence_errors
from mmairl.errors import UserError
from mmairl.report.evaluation import records_in, write_page


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folders', nargs='+')
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


@one_sentence_errors
def main() -> None:
    args = parse_args()
    records = records_in(*args.folders)
    if not records:
        raise UserError(f'no results in {", ".join(args.folders)}; measure something with tools/evaluate.py first')
    known = sorted({name for record in records for name in record['scores']})
    for name in {name for pair in args.plot for name in pair} - set(known):
        raise UserError(f"no result has the score '{name}'; there are {', '.join(known)}")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    print(write_page(args.out, args.plot, args.folders))


if __name__ == '__main__':
    main()
