"""Copy the weights of a training checkpoint to a smaller file: mmairl consolidate work_dirs/RUN out.pth.

The file has no optimizer, schedules and random states. Evaluation and transfer can read it, but a run cannot resume from it.
"""

from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import parser_of


def main(arguments: Sequence[str]) -> None:
    parser = parser_of('consolidate', __doc__)
    parser.add_argument(
        'src', type=Path, help='read this training checkpoint, or the newest one in this work dir'
    )
    parser.add_argument('dst', type=Path, help='write this file')
    args = parser.parse_args(arguments)

    # torch takes seconds to import.
    from mmairl.engine.checkpoint import consolidate

    print(consolidate(args.src, args.dst))
