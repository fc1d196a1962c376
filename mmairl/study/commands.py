"""The steps of `mmairl study`. Python programs can call them, too::

    mmairl.engine.run.register()
    prepared = prepare_study('configs/studies/ladder.yaml', 'demo')
    show_plan(prepared, devices=1)
    runs = prepared.laid_out_runs()
    run_locally(runs)
    write_results(prepared, runs)

A row of a study is one configuration, usually trained with several seeds. A run's worker is the process that trains and
measures the run. A scale is a set of changes that make all configs of a study smaller. A search tunes a row by trials, which
are runs with different options.
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
from mmairl.errors import UserError, closest
from mmairl.evaluation.identity import is_absent
from mmairl.io import read_json, write_text
from mmairl.report.table import print_table
from mmairl.study.collect import collect
from mmairl.study.cost import RunCost, checkpoint_bytes, cost
from mmairl.study.external import factor_form, known_factors, require_networks
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
# The keys of configs whose values are paths of data.
DATA_KEYS = {'root', 'taxonomy', 'labels', 'names', 'list_file'}


@dataclass(frozen=True)
class PreparedStudy:
    """A study that has passed the fairness check at one scale.

    Args:
        study: The study, with the seeds to run.
        scale: The scale of its runs.
        configs: The config of each row, by the row's name.
        tasks: The study's tasks at this scale.
        out: The folder of the runs and the study page.
        rows_left_out: A sentence about each row or factor that is left out at this scale.
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
        """Return the planned runs without writing to the study's folder."""
        return plan_runs(self.study, self.configs, self.study.seeds, self.tasks, self.out)

    def laid_out_runs(self, remeasure: bool = False) -> list[Run]:
        """Write each run's config and the request to its worker into the run's folder, and return the runs.

        Args:
            remeasure: If true, discard the scores of finished runs, so that they are measured again. Their weights stay.
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
    """Read a study, apply a scale to its configs and check that the comparison is fair.

    Args:
        path: The study's YAML file.
        scale: The name of a scale in configs/studies/_scales, or the path of a YAML file.
        seeds: The seeds to use instead of the study's.
        tasks: The tasks to use instead of the study's.
        out: The folder to write. Default: work_dirs/studies/STUDY_SCALE.
        rate: The measured training speed of one device in images per second, with the config that the scale names in
            `rate_of`. The plan computes hours from this rate. Default: the rate in the scale.

    Raises:
        UserError: If the study is invalid, if it names an unknown task, or if two rows differ in an undeclared setting.
    """
    study = read_study(path)
    sizes = read_scale(scale)
    if rate:
        sizes = with_rate(sizes, rate)
    built_in = not scale.endswith('.yaml')
    if built_in and sizes.name not in study.tasks and (near := closest(sizes.name, study.tasks)):
        raise UserError(
            f"{path}: `tasks` has no entry for the scale '{sizes.name}'{near}",
            code='no-tasks-for-scale',
        )
    study = replace(study, seeds=tuple(seeds or seeds_at(sizes, study)))
    tasks = tasks or study.tasks.get(sizes.name) or sizes.tasks
    folder = out or STUDIES / f'{study.name}_{sizes.name}'
    study, configs, rows_left_out = at_scale(study, sizes, tasks)
    sizes = replace(sizes, text=sizes.text.replace('{network}', network_names(configs.values())))
    # The tasks are checked after the configs are loaded, because configs may register further protocols.
    require_known(tasks)
    require_fair(compare_configs(study, configs))
    command = ['mmairl', 'study', str(path), '--scale', scale]
    command += ['--out', str(out)] if out else []
    return PreparedStudy(study, sizes, configs, tasks, folder, rows_left_out, command)


def seeds_at(scale: Scale, study: Study) -> Sequence[int]:
    """Return the study's seeds, or the scale's seeds if the scale has more.

    A study with a search keeps its own seeds, because each further seed would add a search. A study with external
    checkpoints also keeps its seeds, because each checkpoint has a seed of its own.
    """
    is_fixed = study.search or any(row.weights for row in study.rows)
    return study.seeds if is_fixed else max(study.seeds, scale.seeds, key=len)


def with_rate(scale: Scale, rate: float) -> Scale:
    """Return the scale with a measured rate instead of its own. The speed of transfer tasks changes by the same factor."""
    seconds = {task: each * scale.rate / rate for task, each in scale.step_seconds.items()}
    return replace(scale, rate=rate, rate_source='given by --rate', step_seconds=seconds)


def say(line: str) -> None:
    """Print a line without colors."""
    CONSOLE.print(line, highlight=False)


def print_commands(prepared: PreparedStudy, per_run: int = 1) -> None:
    """Print a line with the shell command of each unfinished run, for job schedulers other than Slurm."""
    for line in plain_commands(prepared.laid_out_runs(), per_run):
        print(line)


def show_plan(prepared: PreparedStudy, devices: int) -> None:
    """Print the plan of a study: the runs, hours and disk space of each row, the search, the design, and missing data."""
    study, scale = prepared.study, prepared.scale
    runs = runs_of_rows(prepared)
    with CONSOLE.status('counting the work of each model'):
        costs = costs_of_rows(prepared)
    if forks := [row.name for row in study.rows if row.fork]:
        of_forks = sum(costs[name].hours * runs[name] for name in forks)
        say(
            f'{len(forks)} of {len(study.rows)} rows are forks: each continues the run of another row, its trunk, and costs '
            f'only its remaining epochs. All forks together cost about {of_forks:.1f} device hours. A fork changes its options '
            'only at the fork point, so its comparison with the trunk does not show the effect of training with these options '
            'from the start.'
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
            f'{len(study.seeds)} searches. In each search, the trials of a row can cost as much as {study.search.budget:g} '
            f'runs of the cheapest row. Trials of each row: {counts}. Each search also runs every row as published, and then '
            'runs every row with the options of its best trial from a fresh seed.'
        )
    if study.design:
        say(f'{study.design.words}: {study.design.confusion}')
    say(
        f'pre-training takes about {hours:.1f} device hours ({hours / devices:.1f} h on {devices} devices) and '
        f'{gigabytes:.1f} GB, at {scale.rate:g} images per second and device ({scale.rate_source})'
    )
    # Trials are not counted here, because the estimate assumes that all tasks measure every run, but only one task (the
    # criterion of the search) measures a trial.
    seeds = len(study.seeds)
    measured = {name: number - seeds * trials.get(name, 0) for name, number in runs.items()}
    show_task_hours(prepared, measured)
    if absent := missing_images(prepared):
        say(f'missing images: {", ".join(absent)}')


def runs_of_rows(prepared: PreparedStudy) -> dict[str, int]:
    """Return the number of runs of each row over all seeds."""
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
        cfg = prepared.configs[row.name]
        if row.untrained or row.weights:
            spent = RunCost(0, 0, 0)
        elif not row.trains:  # Such a run writes one checkpoint.
            spent = RunCost(0, 0, checkpoint_bytes(cfg) / 1e9)
        else:
            points = fork_points(row, prepared.study.rows, prepared.configs)
            spent = cost(cfg, prepared.scale, more_checkpoints=len(points))
            if row.fork:
                spent = spent.after(fork_epoch(row, prepared.configs))
        costs[row.name] = spent
    return costs


def show_task_hours(prepared: PreparedStudy, measured: dict[str, int]) -> None:
    hours, unknown = hours_of_tasks(
        prepared.study, prepared.configs, prepared.tasks, prepared.scale, measured
    )
    lines = [f'{task} {spent:.1f} h' for task, spent in hours.items()]
    lines += [f'{task} unknown' for task in sorted(unknown)]
    say(f'in addition, measuring the tasks takes about: {", ".join(lines)}')


def missing_images(prepared: PreparedStudy) -> list[str]:
    """Return the paths of data that rows or tasks require but that do not exist on this machine."""
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
    """Print a YAML form for each row of external checkpoints, in which users state how the checkpoints were trained."""
    study, configs = prepared.study, prepared.configs
    require_networks(study.rows, configs)
    by_name = {row.name: row for row in study.rows}
    for row in study.rows:
        if row.weights:
            base = by_name.get(row.against, row)
            print(f'\n{factor_form(row, known_factors(base, configs))}')


def show_status(runs: list[Run]) -> None:
    """Print the state of each run according to its folder and to Slurm's queue."""
    queue = None
    if shutil.which('squeue'):
        try:
            queue = read_queue(runs)
        # This error occurs, for example, on a machine with Slurm's commands whose Slurm daemon is not running.
        except UserError as error:
            say(f'{error}; the states below are read from the folders only')
    states = [(run, *status_in(queue, run)) for run in runs]
    for run, state, reason in states:
        line = f'{run.name}: {state}: {reason}' if reason else f'{run.name}: {state}'
        CONSOLE.print(line, highlight=False, soft_wrap=True)
    counts = Counter(state for _, state, _ in states)
    print('; '.join(f'{number} {state}' for state, number in counts.most_common()))


def show_power(prepared: PreparedStudy, effect: float | None = None) -> None:
    """Print which effect each comparison can detect with its finished seeds, and how many seeds would detect `effect`.

    Args:
        prepared: A study with finished runs.
        effect: The effect to be detected, in points. Default: the study's margin of equivalence.
    """
    study = prepared.study
    path = prepared.out / 'study.json'
    if not path.is_file():
        raise UserError(
            f"--power: requires the scores of finished runs, but '{path}' does not exist; run the study first",
            code='power-without-runs',
        )
    effect = effect or study.equivalence
    record = read_json(path)
    labels = {metric['key']: metric['label'] for metric in record['metrics']}
    for key, fit in record.get('attribution', {}).items():
        more = None
        if fit['spread']:
            more = more_runs(effect, fit['spread'], fit['runs'], study.design, fit['blocks'])
        answer = 'an unknown number of runs' if more is None else f'{more} more runs'
        line = f'{labels[key]}: {fit["runs"]} runs are finished; detecting an effect of {effect:g} requires '
        print(line + answer)
    columns = ('spread', 'seeds', 'detectable effect', f'seeds for an effect of {effect:g}')
    if not study.design:
        for key, family in record.get('comparisons', {}).items():
            planned = plan_seeds([Comparison(**fields) for fields in family], effect)
            print_table(columns, [(row, numbers) for row, *numbers in planned], labels[key])
    say(
        'These estimates assume a power of 80 % and a correction for all comparisons of a score. They are computed from the '
        'spread of the finished seeds.'
    )


def require_platforms(prepared: PreparedStudy) -> None:
    """Raise an error if mmdet or mmseg is not installed but a task requires it."""
    require_platform([task for task in prepared.tasks if not is_local(task)])


def run_locally(runs: list[Run], jobs: int = 1, per_run: int = 1) -> None:
    """Complete the unfinished runs on this machine.

    Args:
        runs: The runs, from `laid_out_runs`.
        jobs: How many runs to execute at the same time.
        per_run: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
    """
    # This module is slow to import, and printing a plan does not need it.
    from mmairl.study.run_study import complete_runs

    complete_runs(runs, jobs, per_run, say)


def run_until_decided(
    prepared: PreparedStudy,
    most: int | None = None,
    jobs: int = 1,
    per_run: int = 1,
    collect_only: bool = False,
) -> list[Run]:
    """Run additional seeds until every comparison by the primary score is decided or `most` runs are spent.

    Args:
        prepared: The study.
        most: The largest number of runs, including trials. Default: the number in the stored plan or, without a stored plan,
            enough runs for 12 seeds per row (or for the study's seeds if these are more).
        jobs: How many runs to execute at the same time.
        per_run: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
        collect_only: If true, only analyze the runs that are already finished, and start no others.

    Returns:
        All runs, including unfinished ones.
    """
    study = prepared.study
    runs_per_seed = sum(runs_of_each(study, prepared.configs).values())
    plan = begin(prepared.out, study, study.seeds, most, runs_per_seed)
    say(plan.words)
    last = max(study.seeds)
    seeds = [*study.seeds, *range(last + 1, last + plan.most)]
    rows = study.rows
    runs: list[Run] = []
    analyzed = 0
    for planned_seeds, _ in plan.analyses:
        new_seeds = seeds[analyzed:planned_seeds]
        planned = prepare_runs(study, prepared.configs, new_seeds, prepared.tasks, prepared.out)
        names = {row.name for row in rows}
        runs += [run for run in planned if run.row.name in names]
        analyzed = planned_seeds
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
    """Submit the runs as jobs to Slurm.

    Args:
        prepared: The study.
        runs: The runs, from `laid_out_runs`.
        per_run: The number of GPUs per run; on nodes without GPUs, the number of processes per run.
        partition: The partition. Default: the partition in the profile.
        profile: A YAML file with a site's options for sbatch.
        gpus: 0 for jobs on nodes without GPUs; any other number has no effect.
    """
    cluster = read_cluster(profile) if profile else Cluster()
    gres = 'none' if gpus == 0 else cluster.gres
    cluster = replace(cluster, partition=partition or cluster.partition, gres=gres)
    submit(runs, per_run, prepared.out, cluster, say)


def write_results(prepared: PreparedStudy, runs: list[Run]) -> dict[str, Any]:
    """Write study.json, table.md, table.tex and the pages from the finished runs.

    Returns:
        The record, which is the content of study.json.

    Raises:
        UserError: If runs have failed. All files are written before the error is raised.
    """
    # These modules are slow to import, and printing a plan does not need them.
    from mmairl.study.pages.study_page import write_study_page
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
            f'study: {len(failed)} of {len(runs)} runs have failed; read log.txt in {failed[0].folder}, correct the cause, and '
            'run the command again',
            code='runs-failed',
        )
    return record
