"""A study, from its YAML to its page: python tools/study.py configs/studies/ladder.yaml --scale demo

Plans, trains and measures what is not there yet, and writes study.json, page.html, table.md and table.tex. What is finished
is not done again, whenever and however often the study is interrupted.
"""

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import mmairl  # noqa: F401  before torch, which takes seconds

# isort: split
import torch
from msgspec.structs import replace
from rich.console import Console

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the projects beside the tools
from mmairl.cli.flags import count, positive, seed
from mmairl.config import home, walk
from mmairl.engine.run import register
from mmairl.errors import UserError, closest, one_sentence_errors
from mmairl.evaluation.identity import is_absent
from mmairl.hardware import cores
from mmairl.io import read_json, write_text
from mmairl.report.table import print_table
from mmairl.study.collect import collect
from mmairl.study.cost import Cost, cost
from mmairl.study.external import factors, form, require_networks, stated_factors
from mmairl.study.fairness import at_scale, compare, require_fair
from mmairl.study.pages.index_page import write_studies_page
from mmairl.study.pages.study_page import write_study_page
from mmairl.study.pages.study_tables import latex, markdown
from mmairl.study.run_study import complete, look_into, until_decided
from mmairl.study.runs import Run, lay_out, measure_again, plan_runs
from mmairl.study.scale import Scale, read_scale
from mmairl.study.slurm import Cluster, plain_commands, read_cluster, read_queue, status_in, submit
from mmairl.study.spec import Study, catalogue, read_study
from mmairl.study.statistics.compare_rows import Comparison
from mmairl.study.statistics.power import more_runs, plan_seeds
from mmairl.study.statistics.sequential import USUAL, begin
from mmairl.study.task_hours import hours_of_tasks
from mmairl.study.task_names import is_local, require_known
from mmairl.study.trials import runs_of_each, trial_counts
from mmairl.transfer.tasks import TASKS, lacking, require_platform

CONSOLE = Console(markup=False)
NOT_WITH_REMEASURE = ('status', 'dry_run', 'power', 'print_commands', 'collect', 'until_decided')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('study', type=Path, nargs='?', help='such as configs/studies/ladder.yaml')
    parser.add_argument('--list', action='store_true', help='the ready studies as a table, and leave')
    parser.add_argument('--index', type=Path, metavar='FOLDER', help='one page over all studies of a folder, and leave')
    parser.add_argument('--scale', default='in1k', help='one of configs/studies/_scales: demo, cifar, in100, in1k')
    parser.add_argument('--seeds', type=seed, nargs='+', help="in place of the study's")
    parser.add_argument('--tasks', nargs='+', help="in place of the study's")
    parser.add_argument(
        '--gpus', type=count, help='how many there are to use (default: all; 0 with --slurm: CPU nodes)'
    )
    parser.add_argument('--per-run', type=positive, default=1, metavar='N', help='GPUs (or CPU processes) of each run')
    parser.add_argument('--jobs', type=positive, help='runs beside each other (default: one for each --per-run GPUs)')
    parser.add_argument('--slurm', metavar='PARTITION', help='submit the runs as jobs in place of running them')
    parser.add_argument(
        '--cluster', type=Path, metavar='FILE', help="the same by a site's profile: see docs/studies.md"
    )
    parser.add_argument(
        '--print-commands', action='store_true', help='a line for each run for other schedulers, and leave'
    )
    parser.add_argument('--status', action='store_true', help='how far each run is, also while they run, and leave')
    parser.add_argument('--out', type=Path, help='default: work_dirs/studies/STUDY_SCALE')
    parser.add_argument('--dry-run', action='store_true', help='plan and check, and leave; this loads the configs')
    parser.add_argument('--power', action='store_true', help='what the seeds that are finished can see, and leave')
    parser.add_argument(
        '--effect', type=float, help="--power: the effect that is looked for (default: the study's margin)"
    )
    parser.add_argument('--until-decided', action='store_true', help='add seeds until every comparison is decided')
    parser.add_argument(
        '--most',
        type=positive,
        metavar='RUNS',
        help=f'--until-decided: at most RUNS runs, trials included (default: {USUAL} seeds or searches)',
    )
    parser.add_argument(
        '--remeasure',
        action='store_true',
        help='measure finished runs again and replace their scores; weights are kept',
    )
    parser.add_argument('--collect', action='store_true', help='write the page of what is there, and leave')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if args.index:
        print(f'the page is {write_studies_page(args.index)}')
        return
    if args.list or args.study is None:
        print(catalogue(home() / 'configs' / 'studies'), end='')
        return
    register()
    if args.remeasure and (other := next((name for name in NOT_WITH_REMEASURE if getattr(args, name)), None)):
        raise UserError(
            f'--remeasure does not go with --{other.replace("_", "-")}; leave one of them out',
            code='remeasure-conflict',
        )
    study, scale = read_study(args.study), read_scale(args.scale)
    out = args.out or Path('work_dirs/studies') / f'{study.name}_{scale.name}'
    if args.collect and not out.is_dir():
        raise UserError(f'there is no folder {out} to collect; give --out the folder of the study')
    if (
        not args.scale.endswith('.yaml')
        and scale.name not in study.tasks
        and (near := closest(scale.name, study.tasks))
    ):
        raise UserError(f"{args.study} has no `tasks` for the scale '{scale.name}'{near}")
    study = replace(study, seeds=tuple(args.seeds or scale.seeds or study.seeds))
    seeds, tasks = study.seeds, args.tasks or study.tasks.get(scale.name) or scale.tasks
    require_known(tasks)
    if args.dry_run:
        print('this loads the configs that the study names; configs are programs')
    study, configs, left_out = at_scale(study, scale, tasks)
    require_fair(compare(study, configs))
    if args.print_commands:
        for line in plain_commands(lay_out(study, configs, seeds, tasks, out), args.per_run):
            print(line)
        return
    for sentence in left_out:
        say(sentence)
    if args.status:
        show_status(plan_runs(study, configs, seeds, tasks, out))
        return
    show_plan(study, configs, scale, tasks, len(seeds), jobs_of(args) * max(1, args.per_run))
    if args.dry_run:
        require_networks(study.rows, configs)
        for row in study.rows:
            if row.weights:
                base = next((base for base in study.rows if base.name == row.against), row)
                beside = stated_factors(base) if base.weights else factors(configs[base.name])
                print(f'\n{form(row, beside)}')
        return
    if args.power:
        show_power(study, out / 'study.json', args.effect or study.equivalence)
        return
    if not args.collect:
        require_platform([task for task in tasks if not is_local(task)])
    devices, jobs = args.per_run, jobs_of(args)
    if args.until_decided:
        if args.slurm or args.cluster:
            raise UserError('--until-decided waits for each look, which jobs of Slurm do not; leave one of them out')
        plan = begin(out, study, seeds, args.most, sum(runs_of_each(study, configs).values()))
        finish = (lambda runs: None) if args.collect else lambda runs: complete(runs, jobs, devices, say)
        runs = until_decided(study, configs, scale, tasks, out, plan, finish, say)
    else:
        runs = (plan_runs if args.collect else lay_out)(study, configs, seeds, tasks, out)
    if args.remeasure:
        measure_again(runs)
    if args.slurm or args.cluster:
        cluster = read_cluster(args.cluster) if args.cluster else Cluster()
        wanted = dict(partition=args.slurm or cluster.partition, gres='none' if args.gpus == 0 else cluster.gres)
        submit(runs, args.per_run, out, replace(cluster, **wanted), say)
        return
    if not args.collect and not args.until_decided:
        complete(runs, jobs, devices, say)
    record = collect(study, configs, scale, runs, out, left_out)
    write_text(out / 'table.md', markdown(record))
    write_text(out / 'table.tex', latex(record))
    print(markdown(record))
    print(f'the page is {write_study_page(record, out / "page.html")}')
    for page in look_into(study, configs, runs, out):
        print(page)
    if failed := [run for run in runs if (run.folder / 'failed.txt').is_file() and not run.done]:
        raise UserError(
            f'{len(failed)} of {len(runs)} runs have failed, the first in {failed[0].folder} (see its log.txt)'
        )


def say(line: str) -> None:
    CONSOLE.print(line, highlight=False)


def jobs_of(args: argparse.Namespace) -> int:
    """One run for each share of the GPUs; without any, one for each core that a run's processes leave."""
    gpus = torch.cuda.device_count() if args.gpus is None else args.gpus
    return args.jobs or max(1, (gpus or cores()) // args.per_run)


def show_plan(study: Study, configs: dict, scale: Scale, tasks: Sequence[str], seeds: int, devices: int) -> None:
    costs = {row.name: Cost(0, 0, 0) if row.weights else cost(configs[row.name], scale) for row in study.rows}
    costs |= {row.name: Cost(0, 0, costs[row.name].gigabytes) for row in study.rows if not row.trains}
    trials = trial_counts(study, configs) if study.search else {}
    runs = {name: seeds * count for name, count in runs_of_each(study, configs).items()}
    runs |= {row.name: len(row.weights) or 1 for row in study.rows if row.untrained or row.weights}
    rows = []
    for row in study.rows:
        one_run, number = costs[row.name], runs[row.name]
        numbers = [f'{one_run.epochs:g}', f'{one_run.hours * number:.2f}', f'{one_run.gigabytes * number:.2f}']
        rows.append((row.name, [row.factor, str(number), *numbers]))
    columns = ('changes', 'runs', 'epochs', 'device hours', 'GB')
    print_table(columns, rows, f'{study.title}: {scale.text}', head='row')
    if trials:
        counts = ', '.join(f'{name}: {count}' for name, count in trials.items())
        say(
            f'{seeds} searches; trials in each, by the FLOPs of {study.search.budget:g} runs of the cheapest row: {counts}; '
            'each search ends with a fresh run of its best trial, and beside it the row runs as published'
        )
    if study.design:
        say(f'{study.design.words}: {study.design.confusion}')
    total, size = (sum(getattr(costs[name], part) * runs[name] for name in runs) for part in ('hours', 'gigabytes'))
    say(
        f'pre-training takes about {total:.1f} device hours, {total / devices:.1f} h on {devices} of them, and {size:.1f} GB; '
        f'at {scale.rate:g} images a second and device ({scale.rate_source})'
    )
    # trials by the criterion alone
    measured = {name: number - seeds * trials.get(name, 0) for name, number in runs.items()}
    hours, unknown = hours_of_tasks(study, configs, tasks, scale, measured)
    counted = ', '.join(f'{task} {spent:.1f} h' for task, spent in hours.items()) or 'not known'
    rest = f'; not known beforehand: {", ".join(sorted(unknown))}' if unknown else ''
    say(f'tasks take on top, by the work on their images: {counted}{rest}')
    values = [pair for cfg in configs.values() for pair in walk(cfg.to_dict())]
    places = {value for keys, value in values if 'root' in keys and isinstance(value, str)}
    absent = [place for place in places if is_absent({'root': place})]
    absent += [str(path) for task in tasks if not is_local(task) for path in lacking(TASKS[task], Path())]
    if absent:
        say(f'images that are not here: {", ".join(sorted({*absent}))}')


def show_status(runs: list[Run]) -> None:
    queue = None
    if shutil.which('squeue'):
        try:
            queue = read_queue(runs)
        except UserError as error:  # a machine that only has Slurm's commands
            say(f'{error}; this is by the folders of the runs alone')
    states = [(run, *status_in(queue, run)) for run in runs]
    for run, what, said in states:
        line = f'{run.name}: {what}{f": {said}" if said else ""}'
        CONSOLE.print(line, highlight=False, soft_wrap=True)
    counted = Counter(what for _, what, _ in states)
    print('; '.join(f'{number} {what}' for what, number in counted.most_common()))


def show_power(study: Study, path: Path, effect: float) -> None:
    """For each declared comparison what its seeds can see, and how many `effect` wants."""
    if not path.is_file():
        raise UserError(f'there is no {path}; --power reads the spreads of finished runs, so run the study first')
    record = read_json(path)
    labels = {metric['key']: metric['label'] for metric in record['metrics']}
    columns = ('spread', 'seeds', 'they see an effect of', f'seeds for an effect of {effect:g}')
    for key, fit in record.get('attribution', {}).items():
        more = more_runs(effect, fit['spread'], fit['runs'], study.design, fit['blocks']) if fit['spread'] else None
        said = 'cannot be said' if more is None else f'{more} more'
        print(f"{labels[key]}: {fit['runs']} runs; those that a factor's effect of {effect:g} wants: {said}")
    for key, family in record.get('comparisons', {}).items() if not study.design else ():
        planned = plan_seeds([Comparison(**fields) for fields in family], effect)
        print_table(columns, [(row, numbers) for row, *numbers in planned], labels[key])
    say(
        'found four times in five, corrected for the comparisons of a score; the spreads are estimates from these seeds'
    )


if __name__ == '__main__':
    main()
