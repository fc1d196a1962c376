"""The steps of `mmairl study`, for the command line and for Python.

prepared = prepare_study('configs/studies/ladder.yaml', 'demo')
show_plan(prepared, devices=1)
runs = prepared.laid_out_runs()
run_locally(runs)
write_results(prepared, runs)
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from msgspec.structs import replace
from rich.console import Console

from mmairl.config import walk
from mmairl.errors import UserError, closest, printable
from mmairl.evaluation.identity import is_absent
from mmairl.io import read_json, write_text
from mmairl.report.table import print_table
from mmairl.study.collect import collect
from mmairl.study.cost import RunCost, cost
from mmairl.study.external import factor_form, require_networks, stated_factors, training_factors
from mmairl.study.fairness import at_scale, compare_configs, require_fair
from mmairl.study.fork_rows import fork_epoch, fork_points
from mmairl.study.planner import measure_again, plan_runs, prepare_runs
from mmairl.study.runs import Run
from mmairl.study.scale import Scale, network_names, read_scale
from mmairl.study.slurm import Cluster, plain_commands, read_cluster, read_queue, status_in, submit
from mmairl.study.spec import Study, read_study
from mmairl.study.statistics.compare_rows import Comparison
from mmairl.study.statistics.power import more_runs, plan_seeds
from mmairl.study.statistics.sequential import begin, open_rows
from mmairl.study.task_hours import hours_of_tasks
from mmairl.study.task_names import data_of, is_local, require_known
from mmairl.study.trials import runs_of_each, trial_counts
from mmairl.transfer.tasks import TASKS, lacking, require_platform

CONSOLE = Console(markup=False)
STUDIES = Path('work_dirs/studies')
DATA_KEYS = {'root', 'taxonomy', 'labels', 'names', 'list_file'}  # keys of data sets with paths


@dataclass(frozen=True)
class PreparedStudy:
    """A fair study at one scale.

    Args:
        study: The study, with the seeds to run.
        scale: The scale of its runs.
        configs: The config of each row that trains or is untrained, by the row's name.
        tasks: The tasks to measure.
        out: The folder of the runs and the page.
        rows_left_out: Why rows are left out at this scale, one line each.
        command: The command line of the study, without seeds.
    """

    study: Study
    scale: Scale
    configs: dict[str, Config]
    tasks: Sequence[str]
    out: Path
    rows_left_out: Sequence[str]
    command: Sequence[str]

    def planned_runs(self) -> list[Run]:
        """Return the runs without writing anything."""
        return plan_runs(self.study, self.configs, self.study.seeds, self.tasks, self.out)

    def laid_out_runs(self, remeasure: bool = False) -> list[Run]:
        """Return the runs after writing what each worker needs to its folder.

        Args:
            remeasure: Whether to discard the scores of finished runs, but not their weights.
        """
        runs = prepare_runs(self.study, self.configs, self.study.seeds, self.tasks, self.out)
        if remeasure:
            measure_again(runs)
        return runs


def prepare_study(
    path: Path | str,
    scale: str = 'in1k',
    seeds: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
    out: Path | None = None,
    rate: float | None = None,
) -> PreparedStudy:
    """Read a study, bring its configs to a scale and check that the comparison is fair.

    Args:
        path: The study's YAML file.
        scale: The name of a scale in configs/studies/_scales, or a YAML file.
        seeds: Seeds to use instead of the study's.
        tasks: Tasks to use instead of the study's.
        out: The folder to write. Default: work_dirs/studies/STUDY_SCALE.
        rate: Measured images per second and device of the scale's `rate_of`, for the plan's hours.

    Raises:
        UserError: If the study is invalid, names an unknown task, or two rows differ in an undeclared setting.
    """
    study = read_study(path)
    sizes = read_scale(scale)
    if rate:
        sizes = with_rate(sizes, rate)
    built_in = not scale.endswith('.yaml')
    if built_in and sizes.name not in study.tasks and (near := closest(sizes.name, study.tasks)):
        raise UserError(
            f"{path} has no `tasks` for the scale '{sizes.name}'{near}", code='no-tasks-for-scale'
        )
    study = replace(study, seeds=tuple(seeds or seeds_at(sizes, study)))
    tasks = tasks or study.tasks.get(sizes.name) or sizes.tasks
    folder = out or STUDIES / f'{study.name}_{sizes.name}'
    study, configs, rows_left_out = at_scale(study, sizes, tasks)
    sizes = replace(sizes, text=sizes.text.replace('{network}', network_names(configs.values())))
    require_known(tasks)  # after the configs, which may register protocols
    require_fair(compare_configs(study, configs))
    command = ['mmairl', 'study', str(path), '--scale', scale]
    command += ['--out', str(out)] if out else []
    return PreparedStudy(study, sizes, configs, tasks, folder, rows_left_out, command)


def seeds_at(scale: Scale, study: Study) -> Sequence[int]:
    """Return the seeds of a study at a scale, which may require more of them.

    Searches have numbers instead of seeds, and external checkpoints cannot be trained from more seeds.
    """
    is_fixed = study.search or any(row.weights for row in study.rows)
    too_few = len(study.seeds) < len(scale.seeds)
    return scale.seeds if too_few and not is_fixed else study.seeds


def with_rate(scale: Scale, rate: float) -> Scale:
    """Return a scale with a measured rate. Transfer tasks become faster by the same factor."""
    seconds = {task: each * scale.rate / rate for task, each in scale.step_seconds.items()}
    return replace(scale, rate=rate, rate_source='given by --rate', step_seconds=seconds)


def say(line: str) -> None:
    """Print a line without colors."""
    CONSOLE.print(printable(line), highlight=False)


def print_commands(prepared: PreparedStudy, per_run: int = 1) -> None:
    """Print one line for each run, for schedulers other than Slurm."""
    for line in plain_commands(prepared.laid_out_runs(), per_run):
        print(line)


def show_plan(prepared: PreparedStudy, devices: int) -> None:
    """Print the runs, hours and disk space of each row, the search, the design, and missing images."""
    study, scale = prepared.study, prepared.scale
    runs = runs_of_rows(prepared)
    with CONSOLE.status('counting the work of each model'):
        costs = costs_of_rows(prepared)
    if forks := [row.name for row in study.rows if row.fork]:
        of_forks = sum(costs[name].hours * runs[name] for name in forks)
        say(
            f'{len(forks)} of {len(study.rows)} rows are forks: each continues the run of another row, its trunk, and costs '
            f'only its remaining epochs, together about {of_forks:.1f} device hours. Effects of forks hold from the fork '
            'point on.'
        )
    rows = []
    hours = 0.0
    gigabytes = 0.0
    for row in study.rows:
        number = runs[row.name]
        of_row = costs[row.name].times(number)
        hours += of_row.hours
        gigabytes += of_row.gigabytes
        factor = row.factor
        if row.fork:
            factor += f' (from epoch {fork_epoch(row, prepared.configs)} of {row.fork.of})'
        numbers = [f'{of_row.epochs:g}', f'{of_row.hours:.2f}', f'{of_row.gigabytes:.2f}']
        rows.append((row.name, [factor, str(number), *numbers]))
    columns = ('changes', 'runs', 'epochs', 'device hours', 'GB')
    print_table(columns, rows, f'{study.title}: {scale.text}', head='row')
    trials = trial_counts(study, prepared.configs) if study.search else {}
    if trials:
        counts = ', '.join(f'{name}: {count}' for name, count in trials.items())
        say(
            f'{len(study.seeds)} searches with a budget of {study.search.budget:g} runs of the cheapest row; trials of each '
            f'search: {counts}. It ends with a fresh run of its best trial and a run of the row as published.'
        )
    if study.design:
        say(f'{study.design.words}: {study.design.confusion}')
    say(
        f'pre-training takes about {hours:.1f} device hours, {hours / devices:.1f} h on {devices} of them, and '
        f'{gigabytes:.1f} GB; at {scale.rate:g} images a second and device ({scale.rate_source})'
    )
    # Trials are measured by the search criterion only.
    seeds = len(study.seeds)
    measured = {name: number - seeds * trials.get(name, 0) for name, number in runs.items()}
    show_task_hours(prepared, measured)
    if absent := missing_images(prepared):
        say(f'missing images: {", ".join(absent)}')


def runs_of_rows(prepared: PreparedStudy) -> dict[str, int]:
    """Return the number of runs of each row."""
    per_seed = runs_of_each(prepared.study, prepared.configs)
    runs = {name: len(prepared.study.seeds) * count for name, count in per_seed.items()}
    for row in prepared.study.rows:
        if row.untrained or row.weights:
            runs[row.name] = len(row.weights) or 1
    return runs


def costs_of_rows(prepared: PreparedStudy) -> dict[str, RunCost]:
    """Return the cost of one run of each row."""
    costs = {}
    for row in prepared.study.rows:
        if row.weights:
            costs[row.name] = RunCost(0, 0, 0)
            continue
        kept = fork_points(row, prepared.study.rows, prepared.configs)
        spent = cost(prepared.configs[row.name], prepared.scale, more_checkpoints=len(kept))
        if not row.trains:
            spent = RunCost(0, 0, spent.gigabytes)
        elif row.fork:
            spent = spent.after(fork_epoch(row, prepared.configs))
        costs[row.name] = spent
    return costs


def show_task_hours(prepared: PreparedStudy, measured: dict[str, int]) -> None:
    hours, unknown = hours_of_tasks(
        prepared.study, prepared.configs, prepared.tasks, prepared.scale, measured
    )
    known = ', '.join(f'{task} {spent:.1f} h' for task, spent in hours.items()) or 'not known'
    rest = f'; not known beforehand: {", ".join(sorted(unknown))}' if unknown else ''
    say(f'tasks take in addition, by the work on their images: {known}{rest}')


def missing_images(prepared: PreparedStudy) -> list[str]:
    """Return the folders and lists of images that rows or tasks require and that do not exist on this machine."""
    configs = [*prepared.configs.values(), *filter(None, map(data_of, prepared.tasks))]
    places = set()
    for cfg in configs:
        for keys, value in walk(cfg.to_dict()):
            if isinstance(value, str) and not DATA_KEYS.isdisjoint(keys):
                places.add(value)
    absent = {place for place in places if is_absent({'root': place})}
    for task in prepared.tasks:
        if not is_local(task):
            absent.update(str(path) for path in lacking(TASKS[task], Path()))
    return sorted(absent)


def show_forms(prepared: PreparedStudy) -> None:
    """Print, for each row with external weights, a form in which to state its factors."""
    study, configs = prepared.study, prepared.configs
    require_networks(study.rows, configs)
    by_name = {row.name: row for row in study.rows}
    for row in study.rows:
        if row.weights:
            base = by_name.get(row.against, row)
            compared = (
                stated_factors(base) if base.weights else training_factors(configs[base.name])
            )
            print(f'\n{factor_form(row, compared)}')


def show_status(runs: list[Run]) -> None:
    """Print the state of each run, by its folder and by Slurm's queue."""
    queue = None
    if shutil.which('squeue'):
        try:
            queue = read_queue(runs)
        except UserError as error:  # a machine that only has Slurm's commands
            say(f'{error}; showing the folders of the runs only')
    states = [(run, *status_in(queue, run)) for run in runs]
    for run, state, reason in states:
        line = f'{run.name}: {state}: {reason}' if reason else f'{run.name}: {state}'
        CONSOLE.print(printable(line), highlight=False, soft_wrap=True)
    counts = Counter(state for _, state, _ in states)
    print('; '.join(f'{number} {state}' for state, number in counts.most_common()))


def show_power(prepared: PreparedStudy, effect: float | None = None) -> None:
    """Print, for each comparison, the effect that its seeds can detect and the number of seeds that `effect` requires.

    Args:
        prepared: A study with finished runs.
        effect: The effect in question. Default: the study's margin of equivalence.
    """
    study = prepared.study
    path = prepared.out / 'study.json'
    if not path.is_file():
        raise UserError(
            f"--power: '{path}' does not exist; run the study first, because --power reads the spreads of finished runs",
            code='power-without-runs',
        )
    effect = effect or study.equivalence
    record = read_json(path)
    labels = {metric['key']: metric['label'] for metric in record['metrics']}
    for key, fit in record.get('attribution', {}).items():
        more = None
        if fit['spread']:
            more = more_runs(effect, fit['spread'], fit['runs'], study.design, fit['blocks'])
        answer = 'unknown' if more is None else f'{more} more'
        line = f"{labels[key]}: {fit['runs']} runs; required for a factor's effect of {effect:g}: "
        print(line + answer)
    columns = ('spread', 'seeds', 'detectable effect', f'seeds for an effect of {effect:g}')
    if not study.design:
        for key, family in record.get('comparisons', {}).items():
            planned = plan_seeds([Comparison(**fields) for fields in family], effect)
            print_table(columns, [(row, numbers) for row, *numbers in planned], labels[key])
    say(
        'The power is 80 %, with the correction for all comparisons of a score. The spreads are estimated from these seeds.'
    )


def require_platforms(prepared: PreparedStudy) -> None:
    """Raise if a task needs mmdet or mmseg and they are not installed."""
    require_platform([task for task in prepared.tasks if not is_local(task)])


def run_locally(runs: list[Run], jobs: int = 1, per_run: int = 1) -> None:
    """Complete the missing runs on this machine.

    Args:
        runs: The runs, laid out.
        jobs: The number of runs at a time.
        per_run: The number of GPUs or CPU processes of each run.
    """
    from mmairl.study.run_study import complete_runs  # slow to import; plans do without it

    complete_runs(runs, jobs, per_run, say)


def run_until_decided(
    prepared: PreparedStudy,
    most: int | None = None,
    jobs: int = 1,
    per_run: int = 1,
    collect_only: bool = False,
) -> list[Run]:
    """Add seeds until every comparison is decided or `most` runs are spent, and return all runs.

    Args:
        prepared: The study.
        most: The largest number of runs, trials included. Default: that of `statistics.sequential`.
        jobs: The number of runs at a time.
        per_run: The number of GPUs or CPU processes of each run.
        collect_only: Whether to analyze finished runs only and start none.
    """
    study = prepared.study
    runs_per_seed = sum(runs_of_each(study, prepared.configs).values())
    plan = begin(prepared.out, study, study.seeds, most, runs_per_seed)
    say(plan.words)
    last = max(study.seeds)
    seeds = [*study.seeds, *range(last + 1, last + 1 + plan.most - len(study.seeds))]
    rows = study.rows
    runs: list[Run] = []
    analyzed = 0
    for count, _ in plan.analyses:
        new_seeds = seeds[analyzed:count]
        planned = prepare_runs(study, prepared.configs, new_seeds, prepared.tasks, prepared.out)
        names = {row.name for row in rows}
        runs += [run for run in planned if run.row.name in names]
        analyzed = count
        if not collect_only:
            run_locally(runs, jobs, per_run)
        record = collect(study, prepared.configs, prepared.scale, runs, prepared.out)
        if not all(run.done for run in runs):
            break
        say(record['sequential']['looks'][-1])
        primary = record['comparisons'][record['metrics'][0]['key']]
        rows = open_rows(study, [Comparison(**comparison) for comparison in primary])
        if not rows:
            break
    return runs


def submit_jobs(
    prepared: PreparedStudy,
    runs: list[Run],
    per_run: int,
    partition: str | None,
    profile: Path | None,
    gpus: int | None,
) -> None:
    """Submit the runs to Slurm, by a partition or by a site's profile; 0 GPUs mean CPU nodes."""
    cluster = read_cluster(profile) if profile else Cluster()
    gres = 'none' if gpus == 0 else cluster.gres
    cluster = replace(cluster, partition=partition or cluster.partition, gres=gres)
    submit(runs, per_run, prepared.out, cluster, say)


def write_results(prepared: PreparedStudy, runs: list[Run]) -> dict[str, Any]:
    """Write study.json, table.md, table.tex and the pages of the finished runs, and return the record.

    Raises:
        UserError: If runs have failed; everything is written before.
    """
    from mmairl.study.pages.study_page import write_study_page  # slow to import, as above
    from mmairl.study.pages.study_tables import latex, markdown
    from mmairl.study.run_study import look_into

    out = prepared.out
    record = collect(
        prepared.study,
        prepared.configs,
        prepared.scale,
        runs,
        out,
        prepared.rows_left_out,
        prepared.command,
    )
    write_text(out / 'table.md', markdown(record))
    write_text(out / 'table.tex', latex(record))
    print(markdown(record))
    print(f'the page is {write_study_page(record, out / "page.html")}')
    for page in look_into(prepared.study, prepared.configs, runs, out):
        print(page)
    failed = [run for run in runs if (run.folder / 'failed.txt').is_file() and not run.done]
    if failed:
        raise UserError(
            f'{len(failed)} of {len(runs)} runs have failed; see log.txt in {failed[0].folder}, and run the command again',
            code='runs-failed',
        )
    return record
