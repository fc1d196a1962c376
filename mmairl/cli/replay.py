"""Replay parts of a run from its checkpoints: mmairl replay RUN {--check K, --step N [--views] [--per-image]}.

The state of a run depends only on config, seed and step, so a replay must be equal to the run bit for bit. --check replays K
random stretches of iterations between stored checkpoints, and repeats evaluations whose results are next to the checkpoints.
--step replays the run from the nearest earlier checkpoint to one iteration and writes a page about this iteration. With
--cfg-options, the page also shows the same iteration with these options. Nothing is written to RUN.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mmairl.cli.flags import add_config_options, add_switch, parser_of, positive, seed
from mmairl.errors import UserError

if TYPE_CHECKING:
    from mmairl.engine.replay import Verdict


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('replay', __doc__)
    parser.add_argument(
        'run', type=Path, metavar='RUN', help='replay the training run in this work dir'
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        '--check',
        type=positive,
        metavar='K',
        help='replay K random stretches and compare them with the run; required without --step (default: none)',
    )
    what.add_argument(
        '--step',
        type=positive,
        metavar='N',
        help='replay iteration N; required without --check (default: none)',
    )
    add_switch(
        parser,
        '--views',
        '--step: show the views, and the random values that their transforms sampled (default: off)',
    )
    add_switch(
        parser,
        '--per-image',
        '--step: show loss, gradient and nearest keys of each image (default: off)',
    )
    parser.add_argument(
        '--out',
        type=Path,
        help='--step: write this page (default: work_dirs/replay/RUN_N.html)',
    )
    add_config_options(parser)
    parser.add_argument(
        '--seed',
        type=seed,
        default=0,
        help='--check: set the seed for the choice of stretches (default: 0)',
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    from mmairl.engine.run import register

    register()
    if args.check:
        check_run(args.run, args.check, args.seed)
    else:
        show_step(args)


def check_run(run: Path, count: int, seed: int) -> None:
    """Replay stretches and repeat evaluations. Print a verdict for each, and raise if any result differs from the run."""
    from mmairl.engine.replay import MISMATCH, check_stretch, choose_stretches, stretches_of
    from mmairl.evaluation.features import show_progress

    stretches = stretches_of(run)
    if not stretches:
        raise UserError(
            f"--check: the run has no stretch that can be replayed ('{run}'); train it until it saves a further checkpoint "
            '(checkpoints that are saved after a signal do not count)',
            code='no-stretch',
        )
    chosen = choose_stretches(stretches, count, seed)
    cost = sum(stretch.end.iteration - stretch.first for stretch in chosen)
    total = stretches[-1].end.iteration - stretches[0].first
    print(f'replaying {cost} of {total} iterations', flush=True)
    verdicts = []
    replays = show_progress(
        (check_stretch(run, stretch) for stretch in chosen), 'stretches', len(chosen)
    )
    for verdict in chain(replays, check_evaluations(run)):
        print(
            f'{verdict.what}: {verdict.status}{verdict.reason and ": "}{verdict.reason}', flush=True
        )
        verdicts.append(verdict)
    share = len(chosen) / len(stretches)
    print(
        f'{len(chosen)} of {len(stretches)} stretches were replayed, so a deviation in only one stretch is found with a '
        f'probability of {100 * share:.0f} %'
    )
    differing = [verdict.what for verdict in verdicts if verdict.status == MISMATCH]
    if differing:
        raise UserError(
            f"{run}: {len(differing)} of {len(verdicts)} replays differ from the run ('{differing[0]}'); do not rely on the "
            "run's results",
            code='not-reproduced',
        )


def show_step(args: argparse.Namespace) -> None:
    from mmairl.engine.replay_step import replay_step, start_of
    from mmairl.report.replay_page import ParameterRecorder, write_replay_page

    start = start_of(args.run, args.step)
    first = start.iteration if start else 0
    count = args.step - first + bool(args.cfg_options)
    print(f'replaying {count} iterations from iteration {first}', flush=True)
    recorder = ParameterRecorder()
    records = replay_step(args.run, args.step, args.cfg_options, recorder)
    out = args.out or Path('work_dirs/replay') / f'{args.run.resolve().name}_{args.step}.html'
    change = ', '.join(f'{key}={value}' for key, value in args.cfg_options.items())
    views = recorder.parameters(records[0]) if args.views else None
    page = write_replay_page(out, records, change, args.per_image, views)
    print(f'written to {page}')


def check_evaluations(run: Path) -> Iterator['Verdict']:
    """Repeat the evaluations whose results are next to the run's checkpoints, with the run's config, and compare scores."""
    from mmairl.engine.fork import Fork
    from mmairl.engine.replay import MISMATCH, NOT_COMPARABLE, REPRODUCED, Verdict
    from mmairl.evaluation.identity import difference
    from mmairl.evaluation.protocol import evaluate
    from mmairl.report.evaluation_page import records_in

    cfg = Fork(run).config()
    for record in records_in(run):
        # Results of baselines have no checkpoint. They do not depend on the run.
        if record.checkpoint is None:
            continue
        what = f'{record.protocol} of {record.checkpoint}'
        checkpoint = run / Path(record.checkpoint).name
        if not checkpoint.is_file():
            yield Verdict(what, NOT_COMPARABLE, 'the checkpoint no longer exists')
            continue
        result = evaluate(cfg, record.protocol, checkpoint, record.part)
        other = difference(record.identity or {}, result.identity)
        if other:
            yield Verdict(what, NOT_COMPARABLE, other)
        elif record.scores == result.scores:
            yield Verdict(what, REPRODUCED)
        else:
            yield Verdict(what, MISMATCH, f'{record.scores} is stored, {result.scores} is measured')
