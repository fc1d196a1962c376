"""The steps of `mmairl study`. Python programs can call them, too::

prepared = prepare_study('configs/studies/ladder.yaml', 'demo')
show_plan(prepared)
run_study(prepared, jobs=2)
record, page = collect_study(prepared)
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from msgspec.structs import replace as changed

from mmairl.errors import UserError
from mmairl.report.table import Table
from mmairl.study.answer import duration, runs_of
from mmairl.study.collect import Record, collect
from mmairl.study.cost import run_flops
from mmairl.study.fairness import Prepared, resolve_study
from mmairl.study.page import score_table, write_results
from mmairl.study.pool import complete_runs
from mmairl.study.runs import Run, equal_rows, lay_out_runs, measure_again, plan_runs
from mmairl.study.scale import read_scale
from mmairl.study.slurm import queued_runs, submit
from mmairl.study.study import read_study
from mmairl.study.tasks import is_local
from mmairl.study.tune import prepare_trials, trial_study, with_chosen_options
from mmairl.transfer.tasks import require_platform

STUDIES = Path('work_dirs/studies')


def prepare_study(
    path: Path | str,
    scale: str = 'in1k',
    seeds: Sequence[int] | None = None,
    tasks: Sequence[str] | None = None,
    out: Path | None = None,
) -> Prepared:
    """Read a study, apply a scale to its configs and check that the comparison is fair.

    Args:
        path: The study's YAML file.
        scale: The name of a scale in configs/studies/_scales, or the path of a YAML file.
        seeds: The seeds to use instead of the study's.
        tasks: The tasks to use instead of the study's.
        out: The folder to write. Default: work_dirs/studies/STUDY_SCALE.

    Raises:
        UserError: If the study is invalid, if it names an unknown task, or if two rows differ in an undeclared setting.
    """
    study = read_study(path)
    sizes = read_scale(scale)
    # Each further seed of a tuned study would add a search.
    seeds = seeds or (study.seeds if study.tune else max(study.seeds, sizes.seeds, key=len))
    command = ['mmairl', 'study', str(path), '--scale', scale]
    command += ['--out', str(out)] if out else []
    command += ['--tasks', *tasks] if tasks else []
    tasks = tasks or study.tasks.get(sizes.name) or sizes.tasks
    folder = out or STUDIES / f'{study.name}_{sizes.name}'
    return resolve_study(changed(study, seeds=tuple(seeds)), sizes, tasks, folder, command)


def show_plan(prepared: Prepared) -> None:
    """Print the plan of a study: the runs of each row, their relative compute, and the measured time of finished runs."""
    study = prepared.study
    runs = plan_runs(prepared)
    rows = []
    first = None
    for row in study.rows:
        own = [run for run in runs if run.row is row]
        length = compute = ''
        if row.trains:
            cfg = prepared.configs[row.name]
            length = str(cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters)
            flops = run_flops(cfg)
            first = first or flops
            compute = f'{flops / first:.2f} ×' if flops else 'unknown'
        rows.append([row.name, row.factor, str(len(own)), length, compute, mean_time(own)])
    columns = ['row', 'changes', 'runs', 'epochs or steps', 'compute', 'time of a run']
    print(Table(columns, rows).text(f'{study.title}: {prepared.scale[1]}'))
    for note in equal_rows(runs):
        print(note)
    if study.tune:
        trials = trial_study(prepared, study.seeds[0]).study.rows
        print(
            f'{len(study.seeds) * len(trials)} trials tune the rows first, {len(trials)} per search'
        )
    trained = [run for run in runs if run.row.trains]
    left = sum(not run.trained for run in trained)
    time = mean_time(trained) or 'unknown'
    print(f'{left} of {len(trained)} runs to train; mean time of a run: {time}')


def mean_time(runs: Sequence[Run]) -> str:
    """Return the mean training time of the finished runs as text, or '' if no run has finished."""
    seconds = [run.trained.seconds for run in runs if run.trained]
    return duration(mean(seconds)) if seconds else ''


def run_study(
    prepared: Prepared,
    jobs: int | None = None,
    devices: int = 1,
    fresh: bool = False,
    remeasure: bool = False,
    header: Path | None = None,
) -> None:
    """Complete the runs of a study, including the trials that tune its rows.

    Args:
        prepared: The study.
        jobs: How many runs to execute at the same time. Default: as many as the GPUs or cores suffice for.
        devices: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
        fresh: Whether to move runs aside whose settings or sources have changed, and start them again.
        remeasure: Whether to discard the scores of finished runs, so that they are measured again. The weights stay.
        header: A script with the `#SBATCH` lines of jobs. If set, the runs are submitted to Slurm. A tuned study submits its
            trials first, and the runs of the searches that have ended when called again.
    """
    require_platform([task for task in prepared.tasks if not is_local(task)])

    def complete(runs: Sequence[Run], out: Path) -> None:
        if header:
            submit(runs, header, out)
        else:
            complete_runs(runs, jobs, devices)

    if prepared.study.tune:
        for trials in prepare_trials(prepared, fresh):
            complete(plan_runs(trials), trials.out)
        prepared = with_chosen_options(prepared)
    runs = lay_out_runs(prepared, fresh)
    if remeasure:
        measure_again(runs)
    complete(runs, prepared.out)


def show_status(prepared: Prepared) -> None:
    """Print the state of each run and each trial according to its folder and to Slurm's queue."""
    seeds = prepared.study.seeds if prepared.study.tune else ()
    for part in (*(trial_study(prepared, seed) for seed in seeds), prepared):
        queued = queued_runs(part.out)
        for run in plan_runs(part):
            state, message = run.state()
            job = queued.get(str(run.folder.absolute()))
            if job and state not in ('done', 'running'):
                message, state = f'job {job[0]}', job[1]
            print(f'{run.name}: {state} {message}'.strip())


def collect_study(prepared: Prepared) -> tuple[Record, Path]:
    """Write study.json, the page and the tables of a study, and return the record and the path of the page.

    Raises:
        UserError: If the study has no folder.
    """
    if not prepared.out.is_dir():
        raise UserError(
            f'{prepared.out} does not exist; set --out to the folder of the study', code='no-study'
        )
    record = collect(prepared, plan_runs(prepared))
    return record, write_results(record, prepared.out)


def report_study(prepared: Prepared) -> None:
    """Write the results of a study, and print its table and the path of its page.

    Raises:
        UserError: If runs have failed. All files are written before the error is raised.
    """
    record, page = collect_study(prepared)
    print(score_table(record).text())
    print(f'the page is {page}')
    if failed := runs_of(record, 'failed'):
        _, run = failed[0]
        raise UserError(
            f'study: {len(failed)} runs have failed; read log.txt in {prepared.out / run["folder"]}, correct the cause, '
            'and run the command again',
            code='runs-failed',
        )
