"""Replay parts of a run from its checkpoints: mmairl replay RUN --check K.

A run is a function of its config, its seed and its step. --check replays K random stretches between two kept checkpoints, and
the evaluations next to them, and compares the results bit for bit. Nothing is written to RUN.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mmairl.cli.flags import parser_of, positive, seed
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmairl.engine.replay import Verdict


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('replay', __doc__)
    parser.add_argument('run', type=Path, metavar='RUN', help='name the work dir of a training run')
    parser.add_argument(
        '--check',
        type=positive,
        metavar='K',
        required=True,
        help='replay K random stretches between checkpoints and compare them',
    )
    parser.add_argument(
        '--seed', type=seed, default=0, help='set the seed of the choice of stretches (default: 0)'
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    from mmairl.engine.run import register

    register()
    check_run(args.run, args.check, args.seed)


def check_run(run: Path, count: int, seed: int) -> None:
    """Print the verdict of each stretch and of each evaluation.

    Raises:
        UserError: If one of them is a mismatch.
    """
    from mmairl.engine.replay import MISMATCH, check_stretch, choose_stretches, stretches_of

    stretches = stretches_of(run)
    chosen = choose_stretches(stretches, count, seed)
    cost = sum(stretch.end.iteration - stretch.first for stretch in chosen)
    total = stretches[-1].end.iteration - stretches[0].first
    print(f'replaying {cost} of {total} iterations', flush=True)
    verdicts = []
    replays = (check_stretch(run, stretch) for stretch in chosen)
    for verdict in chain(replays, check_evaluations(run)):
        print(
            f'{verdict.what}: {verdict.status}{verdict.reason and ": "}{verdict.reason}', flush=True
        )
        verdicts.append(verdict)
    share = len(chosen) / len(stretches)
    print(
        f'{len(chosen)} of {len(stretches)} stretches were replayed: a change within one stretch is found with a '
        f'probability of {100 * share:.0f} %'
    )
    differing = [verdict.what for verdict in verdicts if verdict.status == MISMATCH]
    if differing:
        raise UserError(
            f'{run}: {len(differing)} of {len(verdicts)} replays differ from the run (first: {differing[0]}); do not '
            'rely on its results',
            code='not-reproduced',
        )


def check_evaluations(run: Path) -> Iterator['Verdict']:
    """Repeat the evaluations next to the checkpoints that use the run's own config, and compare their scores."""
    from mmairl.engine.fork import Fork
    from mmairl.engine.replay import MISMATCH, NOT_COMPARABLE, REPRODUCED, Verdict
    from mmairl.evaluation.identity import difference
    from mmairl.evaluation.protocol import evaluate
    from mmairl.report.evaluation_page import records_in

    cfg = Fork(run).config()
    for record in records_in(run):
        if record.checkpoint is None:  # a baseline
            continue
        what = f'{record.protocol} of {record.checkpoint}'
        checkpoint = run / Path(record.checkpoint).name
        if not checkpoint.is_file():
            yield Verdict(what, NOT_COMPARABLE, 'the checkpoint is gone')
            continue
        result = evaluate(cfg, record.protocol, checkpoint, record.part)
        other = difference(record.identity or {}, result.identity)
        if other:
            yield Verdict(what, NOT_COMPARABLE, other)
        elif record.scores == result.scores:
            yield Verdict(what, REPRODUCED)
        else:
            yield Verdict(what, MISMATCH, f'{record.scores} is stored, {result.scores} is measured')
