"""Keep what evaluation and transfer read of a training checkpoint: python tools/consolidate.py work_dirs/RUN out.pth."""

import argparse
from pathlib import Path

from mmairl.engine.checkpoint import consolidate
from mmairl.errors import one_sentence_errors


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('src', type=Path, help="a training checkpoint, or a run's folder, whose newest is taken")
    parser.add_argument('dst', type=Path)
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse()
    print(consolidate(args.src, args.dst))


if __name__ == '__main__':
    main()
