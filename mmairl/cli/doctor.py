"""Find remedies for a run whose health turned bad: mmairl doctor RUN [--steps N] [--repeats N].

The command continues the run from its last good checkpoint for a few hundred iterations: with each of several remedies, and
without a change as a control. It prints which remedies improve the health compared with the control. Health is the
state of the quantities that HealthHook logs. Nothing is written to RUN.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import parser_of, positive


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('doctor', __doc__)
    parser.add_argument(
        'run', type=Path, metavar='RUN', help='diagnose the training run in this work dir'
    )
    parser.add_argument(
        '--steps',
        type=positive,
        default=200,
        metavar='N',
        help='train for N iterations, or until N/2 iterations after the first bad sign if that is later (default: 200)',
    )
    parser.add_argument(
        '--repeats',
        type=positive,
        default=3,
        metavar='N',
        help='repeat each remedy N times; confidence intervals require at least 2 (default: 3)',
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    from mmairl.engine.doctor import Trial, by_likelihood, first_sign, remedies, treat
    from mmairl.engine.fork import Fork
    from mmairl.engine.health import advice
    from mmairl.engine.run import register
    from mmairl.evaluation.features import show_progress
    from mmairl.report.table import print_table

    register()
    sign = first_sign(args.run)
    choices = list(remedies(Fork(args.run).config()))
    if sign is None:
        print(f'{args.run}: no bad sign; see `mmairl report health {args.run}`')
        for remedy in choices:
            if remedy.specific:
                print(
                    f'unusual setting; to correct it, {remedy.words} (--cfg-options {remedy.flags})'
                )
        return
    trial = Trial(args.run, sign, args.steps)
    forks = (1 + len(choices)) * args.repeats
    print(f'first bad sign, at iteration {sign.iteration}: {advice(sign.quantity, sign.value)}')
    print(
        f'training {forks} branches of the run, each from iteration {trial.first + 1} to {trial.last}',
        flush=True,
    )
    rows = []
    outcomes = show_progress(treat(trial, args.repeats), 'remedies', len(choices))
    for outcome in by_likelihood(outcomes):
        verdict = outcome.error or ('helps' if outcome.helps else 'no clear effect')
        gain = f'{outcome.gain:.2f} ({outcome.low:.2f} to {outcome.high:.2f})'
        rows.append(
            (outcome.remedy.words, [verdict, '–' if outcome.error else gain, outcome.remedy.flags])
        )
    columns = ['verdict', 'gain in health (95 % interval)', '--cfg-options']
    print_table(columns, rows, 'Remedies, the likeliest first', head='remedy')
