"""Run a study: complete its runs, add seeds until every comparison is decided, and analyze its networks."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mmengine.config import Config

from mmairl.analysis.subjects import Images
from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.report import analysis_pages
from mmairl.study.collect import collect
from mmairl.study.local_pool import execute
from mmairl.study.planner import prepare_runs
from mmairl.study.runs import Run, unfinished
from mmairl.study.scale import Scale
from mmairl.study.schema import last_checkpoint
from mmairl.study.spec import Look, Study
from mmairl.study.statistics.compare_rows import Comparison
from mmairl.study.statistics.sequential import Plan, open_rows

IMAGES = 5000  # that an instrument sees
BATCH = 64


def complete_runs(runs: Sequence[Run], jobs: int, devices: int, say: Callable[[str], None]) -> None:
    """Run what is not finished, `jobs` at a time on `devices` each, with a line for each that begins or ends."""
    done = len(runs) - len(unfinished(runs))
    say(f'{done} of {len(runs)} runs are finished')
    for run in runs:
        if reason := run.stale_reason:
            say(f'{run.name} is measured anew, since this has changed: {reason}')

    def report(run: Run, event: str) -> None:
        nonlocal done
        done += event == 'done'
        say(f'[{done}/{len(runs)}] {run.name}: {event}')

    execute(runs, jobs, devices, report)


def until_decided(
    study: Study,
    configs: dict[str, Config],
    scale: Scale,
    tasks: Sequence[str],
    out: Path,
    plan: Plan,
    finish: Callable[[Sequence[Run]], None],
    say: Callable[[str], None],
) -> list[Run]:
    """Add seeds and `finish` their runs until every comparison is decided, the plan has ended, or a run is not finished.

    Returns:
        All runs.
    """
    say(plan.words)
    last = max(study.seeds)
    seeds = [*study.seeds, *range(last + 1, last + 1 + plan.most - len(study.seeds))]
    rows = study.rows
    runs: list[Run] = []
    analyzed = 0
    for count, _ in plan.analyses:
        names = {row.name for row in rows}
        planned = prepare_runs(study, configs, seeds[analyzed:count], tasks, out)
        runs += [run for run in planned if run.row.name in names]
        analyzed = count
        finish(runs)
        record = collect(study, configs, scale, runs, out)
        if not all(run.done for run in runs):
            break
        say(record['sequential']['looks'][-1])
        primary = record['comparisons'][record['metrics'][0]['key']]
        rows = open_rows(study, [Comparison(**comparison) for comparison in primary])
        if not rows:
            break
    return runs


def look_into(
    study: Study, configs: dict[str, Config], runs: Sequence[Run], out: Path
) -> list[Path]:
    """Write the pages of the instruments that the study names, of the first seed, if all of their rows are finished."""
    pages = []
    for number, look in enumerate(study.look):
        first = {
            run.row.name: run
            for run in runs
            if run.row.name in look.rows and run.seed == runs[0].seed
        }
        if all(run.done for run in first.values()):
            pages.append(
                instrument_page(study, configs, look, first, out / f'{look.instrument}_{number}')
            )
    return pages


def instrument_page(
    study: Study, configs: dict[str, Config], look: Look, runs: dict[str, Run], folder: Path
) -> Path:
    """Write the page of one instrument."""
    subjects = {name: (str(last_checkpoint(runs[name].folder)), 'student') for name in look.rows}
    if look.instrument == 'norms':
        networks = {name: read_backbone(*subject) for name, subject in subjects.items()}
        return analysis_pages.norms_page(networks, folder)
    images = Images(configs[look.rows[0]], IMAGES, BATCH, default_workers(), default_device())
    if look.instrument == 'geometry':
        published = {row.name: study.published_numbers(row) for row in study.rows}
        subjects = {
            name: (*subject, look.layer, configs[name]) for name, subject in subjects.items()
        }
        return analysis_pages.geometry_page(subjects, images, False, folder, 0, published)
    if len(look.rows) > 2:
        return analysis_pages.cka_lines_page(subjects, images, False, folder)
    return analysis_pages.cka_page(subjects, images, 'pooled', False, False, folder)
