"""Copy the weights of a training checkpoint to a smaller file: mmairl consolidate work_dirs/RUN out.pth.

The file does not contain the states of optimizer, schedules and random generators. Evaluation and transfer can read it, but a
run cannot resume from it.
"""

from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import parser_of


def main(arguments: Sequence[str]) -> None:
    parser = parser_of('consolidate', __doc__)
    parser.add_argument(
        'src',
        type=Path,
        help='read this training checkpoint, or the newest checkpoint in this work dir',
    )
    parser.add_argument('dst', type=Path, help='write this file')
    args = parser.parse_args(arguments)

    # This import comes after the parsing of arguments, because importing torch takes seconds.
    from mmairl.engine.checkpoint import consolidate

    print(consolidate(args.src, args.dst))
