"""Run a study, which compares configs over several seeds: mmairl study configs/studies/ladder.yaml --scale demo.

The command trains and evaluates the runs that are missing, and writes study.json, page.html, table.md and table.tex. After an
interruption, the same command resumes. Finished runs are not repeated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import add_switch, count, parser_of, positive, seed
from mmairl.errors import UserError

NOT_WITH_REMEASURE = ('status', 'dry_run', 'power', 'print_commands', 'collect', 'until_decided')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('study', __doc__)
    parser.add_argument(
        'study',
        type=Path,
        nargs='?',
        help='run this study, such as configs/studies/ladder.yaml (default: list the built-in studies)',
    )
    add_switch(parser, '--list', 'print the built-in studies as a table and exit')
    parser.add_argument(
        '--scale',
        default='in1k',
        help='choose data, network and length of runs by a scale of configs/studies/_scales, such as demo, cifar or in100, '
        'or by a YAML file (default: in1k)',
    )
    parser.add_argument(
        '--seeds',
        type=seed,
        nargs='+',
        help="run these seeds (default: the study's seeds, or the scale's seeds if the scale has more)",
    )
    parser.add_argument(
        '--tasks', nargs='+', help="evaluate with these tasks (default: the study's or the scale's)"
    )
    parser.add_argument(
        '--out', type=Path, help='write to this folder (default: work_dirs/studies/STUDY_SCALE)'
    )
    add_switch(
        parser,
        '--remeasure',
        'evaluate finished runs again and replace their scores, but keep their weights (default: off)',
    )
    add_machines(parser)
    add_ways_to_stop(parser)
    return parser.parse_args(arguments)


def add_machines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group('machines')
    group.add_argument(
        '--gpus',
        type=count,
        metavar='N',
        help='use N GPUs; with --slurm, 0 requests nodes without GPUs (default: all GPUs of this machine)',
    )
    group.add_argument(
        '--per-run',
        type=positive,
        default=1,
        metavar='N',
        help='use N GPUs for each run, or N CPU processes if there is no GPU (default: 1)',
    )
    group.add_argument(
        '--jobs',
        type=positive,
        metavar='N',
        help='run N runs at a time (default: the number of GPUs, or of cores if there is no GPU, divided by --per-run)',
    )
    group.add_argument(
        '--slurm',
        metavar='PARTITION',
        help='submit the runs as jobs to this partition (default: run them here)',
    )
    group.add_argument(
        '--cluster',
        type=Path,
        metavar='FILE',
        help='submit the runs to a cluster that this profile describes, see docs/how-to/studies.md (default: run them here)',
    )
    add_switch(
        group,
        '--print-commands',
        'print a command line for each run, to use with another scheduler, and exit (default: start the runs)',
    )


def add_ways_to_stop(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group('planning and progress')
    add_switch(group, '--dry-run', 'execute the configs, print the plan, check fairness and exit')
    group.add_argument(
        '--rate',
        type=float,
        metavar='IMAGES',
        help='assume this number of images per second and device in the plan (default: the rate of the scale)',
    )
    add_switch(
        group, '--status', 'print the state of each run and exit; can be used while the study runs'
    )
    add_switch(
        group,
        '--collect',
        'write the page about the finished runs and exit (default: run missing runs first)',
    )
    add_switch(
        group,
        '--power',
        'print the smallest effects that the finished seeds can detect and exit (default: run the study)',
    )
    group.add_argument(
        '--effect',
        type=float,
        help="--power: print how many seeds are required to detect this effect (default: the study's margin)",
    )
    add_switch(
        group,
        '--until-decided',
        'add seeds until every comparison of the primary score shows a difference or equivalence (default: run a fixed number '
        'of seeds)',
    )
    group.add_argument(
        '--most',
        type=positive,
        metavar='RUNS',
        help='--until-decided: train at most RUNS runs, including search trials (default: enough for '
        '12 seeds of each row)',
    )


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    if args.remeasure and (
        other := next((name for name in NOT_WITH_REMEASURE if getattr(args, name)), None)
    ):
        flag = f'--{other.replace("_", "-")}'
        raise UserError(
            f'--remeasure: cannot be combined with {flag}; leave one of them out',
            code='remeasure-conflict',
        )
    if args.until_decided and (args.slurm or args.cluster):
        raise UserError(
            '--until-decided: cannot be combined with --slurm or --cluster, because it waits for runs; leave one of them out',
            code='until-decided-slurm',
        )
    if args.list or args.study is None:
        from mmairl.config import home
        from mmairl.study.spec import catalogue

        print(catalogue(home() / 'configs' / 'studies'), end='')
    else:
        run(args)


def run(args: argparse.Namespace) -> None:
    # These imports come after the parsing of arguments, because importing torch and OpenMMLab takes seconds.
    from mmairl.engine.run import register
    from mmairl.study import commands

    register()
    if args.dry_run:
        print('loading the configs of the study, which executes their Python code')
    prepared = commands.prepare_study(
        args.study, args.scale, args.seeds, args.tasks, args.out, args.rate
    )
    if args.collect and not prepared.out.is_dir():
        raise UserError(
            f'--collect: no such folder ({prepared.out}); set --out to the folder of the study',
            code='no-study-folder',
        )
    if args.print_commands:
        commands.print_commands(prepared, args.per_run)
        return
    for line in prepared.rows_left_out:
        commands.say(line)
    if args.status:
        commands.show_status(prepared.planned_runs())
        return
    jobs = jobs_of(args)
    commands.show_plan(prepared, jobs * args.per_run)
    if args.dry_run:
        commands.show_forms(prepared)
        return
    if args.power:
        commands.show_power(prepared, args.effect)
        return
    if not args.collect:
        commands.require_platforms(prepared)
    if args.until_decided:
        runs = commands.run_until_decided(prepared, args.most, jobs, args.per_run, args.collect)
    elif args.collect:
        runs = prepared.planned_runs()
    else:
        runs = prepared.laid_out_runs(args.remeasure)
        if args.slurm or args.cluster:
            commands.submit_jobs(prepared, runs, args.per_run, args.slurm, args.cluster, args.gpus)
            return
        commands.run_locally(runs, jobs, args.per_run)
    commands.write_results(prepared, runs)


def jobs_of(args: argparse.Namespace) -> int:
    """Return how many runs to run at the same time."""
    import torch

    from mmairl.hardware import cores

    gpus = torch.cuda.device_count() if args.gpus is None else args.gpus
    return args.jobs or max(1, (gpus or cores()) // args.per_run)
