"""A study is carried out: what is missing runs, seeds are added until all is decided, and its networks are looked into."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mmengine.config import Config

from mmairl.analysis.subjects import Images
from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.report import analysis_pages
from mmairl.study.collect import collect
from mmairl.study.reuse import last_checkpoint
from mmairl.study.runs import Run, execute, lay_out, unfinished
from mmairl.study.scale import Scale
from mmairl.study.spec import Study
from mmairl.study.statistics.compare_rows import Comparison
from mmairl.study.statistics.sequential import Plan, open_rows


def complete(runs: Sequence[Run], jobs: int, devices: int, say: Callable[[str], None]) -> None:
    """Run what is not finished, `jobs` beside each other on `devices` each, with a line for each that begins or ends."""
    done = len(runs) - len(unfinished(runs))
    say(f'{done} of {len(runs)} runs are finished')
    for run in runs:
        if differs := run.stale_reason:
            say(f'{run.name} is measured anew, since this has changed: {differs}')

    def report(run: Run, what: str) -> None:
        nonlocal done
        done += what == 'done'
        say(f'[{done}/{len(runs)}] {run.name}: {what}')

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
    """Add seeds and `finish` their runs, look by look, until nothing is open, the plan is at its end, or a run is not finished.

    Returns all runs.
    """
    say(plan.words)
    last, rows, runs, analyzed = max(study.seeds), study.rows, [], 0
    seeds = [*study.seeds, *range(last + 1, last + 1 + plan.most - len(study.seeds))]
    for count, _ in plan.analyses:
        left = {row.name for row in rows}
        runs += [run for run in lay_out(study, configs, seeds[analyzed:count], tasks, out) if run.row.name in left]
        analyzed = count
        finish(runs)
        record = collect(study, configs, scale, runs, out)
        if not all(run.done for run in runs):
            break
        say(record['sequential']['looks'][-1])
        first = record['comparisons'][record['metrics'][0]['key']]
        if not (rows := open_rows(study, [Comparison(**comparison) for comparison in first])):
            break
    return runs


def look_into(study: Study, configs: dict[str, Config], runs: Sequence[Run], out: Path) -> list[Path]:
    """Write the pages of the study's looks into its networks, of the first seed and where all of their rows are finished."""
    pages = []
    for number, look in enumerate(study.look):
        first = {run.row.name: run for run in runs if run.row.name in look.rows and run.seed == runs[0].seed}
        if not all(run.done for run in first.values()):
            continue
        subjects = {name: (str(last_checkpoint(first[name].folder)), 'student') for name in look.rows}
        folder = out / f'{look.instrument}_{number}'
        if look.instrument == 'norms':
            networks = {name: read_backbone(*subject) for name, subject in subjects.items()}
            pages.append(analysis_pages.norms_page(networks, folder))
            continue
        images = Images(configs[look.rows[0]], 5000, 64, default_workers(), default_device())
        if look.instrument == 'cka' and len(look.rows) > 2:
            pages.append(analysis_pages.cka_lines_page(subjects, images, False, folder))
        elif look.instrument == 'cka':
            pages.append(analysis_pages.cka_page(subjects, images, 'pooled', False, False, folder))
        else:
            published = {row.name: study.printed(row) for row in study.rows}
            pages.append(analysis_pages.geometry_page(subjects, images, False, folder, 0, published))
    return pages
