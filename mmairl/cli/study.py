"""Run a study, from its YAML file to its page: mmairl study configs/studies/ladder.yaml --scale demo.

Train and measure what is missing, and write study.json, page.html, table.md and table.tex. Finished runs are not repeated,
whenever and however often the study is interrupted.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmairl.cli.flags import count, parser_of, positive, seed
from mmairl.errors import UserError

NOT_WITH_REMEASURE = ('status', 'dry_run', 'power', 'print_commands', 'collect', 'until_decided')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of('study', __doc__)
    parser.add_argument(
        'study',
        type=Path,
        nargs='?',
        help='name the study, such as configs/studies/ladder.yaml (default: list studies)',
    )
    parser.add_argument(
        '--list', action='store_true', help='print the built-in studies as a table and exit'
    )
    parser.add_argument(
        '--index',
        type=Path,
        metavar='FOLDER',
        help='write one page about all studies of a folder and exit',
    )
    parser.add_argument(
        '--scale',
        default='in1k',
        help='choose one of configs/studies/_scales, such as demo, cifar, in100 or in1k, or a YAML file (default: in1k)',
    )
    parser.add_argument(
        '--seeds',
        type=seed,
        nargs='+',
        help="run these seeds (default: the study's, or the scale's if those are more)",
    )
    parser.add_argument(
        '--tasks', nargs='+', help="measure by these tasks (default: the study's or the scale's)"
    )
    parser.add_argument(
        '--out', type=Path, help='write here (default: work_dirs/studies/STUDY_SCALE)'
    )
    parser.add_argument(
        '--remeasure',
        action='store_true',
        help='measure finished runs again and replace their scores; weights are kept (default: off)',
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
        help='use N GPUs; with --slurm, 0 chooses CPU nodes (default: all GPUs of this machine)',
    )
    group.add_argument(
        '--per-run',
        type=positive,
        default=1,
        metavar='N',
        help='use N GPUs, or CPU processes, for each run (default: 1)',
    )
    group.add_argument(
        '--jobs',
        type=positive,
        metavar='N',
        help='run N runs at a time (default: one for each --per-run GPUs, or cores if there is no GPU)',
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
        help="submit the runs by a site's profile, see docs/how-to/studies.md (default: run them here)",
    )
    group.add_argument(
        '--print-commands',
        action='store_true',
        help='print one line for each run, for other schedulers, and exit (default: run them)',
    )


def add_ways_to_stop(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group('planning and progress')
    group.add_argument(
        '--dry-run',
        action='store_true',
        help='print the plan, check fairness and exit; this runs the configs',
    )
    group.add_argument(
        '--rate',
        type=float,
        metavar='IMAGES',
        help="plan by this measured number of images per second and device (default: the scale's)",
    )
    group.add_argument(
        '--status',
        action='store_true',
        help='print the state of each run and exit; runs may still be in progress',
    )
    group.add_argument(
        '--collect',
        action='store_true',
        help='write the page about the finished runs and exit (default: run the others)',
    )
    group.add_argument(
        '--power',
        action='store_true',
        help='print which effects the finished seeds can detect and exit (default: run)',
    )
    group.add_argument(
        '--effect',
        type=float,
        help="--power: state the effect in question (default: the study's margin)",
    )
    group.add_argument(
        '--until-decided',
        action='store_true',
        help='add seeds until every comparison is decided (default: run the seeds given)',
    )
    group.add_argument(
        '--most',
        type=positive,
        metavar='RUNS',
        help='--until-decided: spend at most RUNS runs, trials included (default: 12 seeds or searches)',
    )


def main(arguments: Sequence[str]) -> None:
    args = parse(arguments)
    if args.remeasure and (
        other := next((name for name in NOT_WITH_REMEASURE if getattr(args, name)), None)
    ):
        flag = f'--{other.replace("_", "-")}'
        raise UserError(
            f'--remeasure: not possible with {flag}; leave one of them out',
            code='remeasure-conflict',
        )
    if args.until_decided and (args.slurm or args.cluster):
        raise UserError(
            '--until-decided: not possible with Slurm, because it waits for the runs of each analysis; leave one out',
            code='until-decided-slurm',
        )
    if args.index:
        from mmairl.study.pages.index_page import write_studies_page

        print(f'the page is {write_studies_page(args.index)}')
    elif args.list or args.study is None:
        from mmairl.config import home
        from mmairl.study.spec import catalogue

        print(catalogue(home() / 'configs' / 'studies'), end='')
    else:
        run(args)


def run(args: argparse.Namespace) -> None:
    # Imported after the arguments are parsed, because torch and OpenMMLab take seconds.
    from mmairl.engine.run import register
    from mmairl.study import commands

    register()
    if args.dry_run:
        print('this loads the configs that the study names; configs are programs')
    prepared = commands.prepare_study(
        args.study, args.scale, args.seeds, args.tasks, args.out, args.rate
    )
    if args.collect and not prepared.out.is_dir():
        raise UserError(
            f'there is no folder {prepared.out} to collect; give --out the folder of the study',
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
    """Return the runs at a time: one for each share of the GPUs, or of the cores if there is no GPU."""
    import torch

    from mmairl.hardware import cores

    gpus = torch.cuda.device_count() if args.gpus is None else args.gpus
    return args.jobs or max(1, (gpus or cores()) // args.per_run)
