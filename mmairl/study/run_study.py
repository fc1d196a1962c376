"""Complete the runs of a study on this machine, and write a page for each analysis that the study lists under `look`."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from mmairl.analysis.subjects import Images
from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.protocol import default_device, default_workers
from mmairl.report import analysis_pages
from mmairl.study.factors import Configs
from mmairl.study.local_pool import execute
from mmairl.study.runs import Run, unfinished
from mmairl.study.schema import last_checkpoint
from mmairl.study.spec import Look, Study

IMAGES = 5000  # the number of images that an analysis of features uses
BATCH = 64


def complete_runs(runs: Sequence[Run], jobs: int, devices: int, say: Callable[[str], None]) -> None:
    """Complete the unfinished runs, and report the start and the end of each.

    Args:
        runs: All runs of the study.
        jobs: How many runs to execute at the same time.
        devices: The number of GPUs per run; on a machine without GPUs, the number of processes per run.
        say: A function that prints a line.
    """
    before = done = len(runs) - len(unfinished(runs))
    say(f'{done} of {len(runs)} runs are finished')
    for run in runs:
        if reason := run.stale_reason:
            say(f'{run.name} is measured again, because its inputs have changed: {reason}')
    start = time.monotonic()

    def report(run: Run, event: str) -> None:
        nonlocal done
        done += event == 'done'
        left = ''
        if before < done < len(runs):
            seconds = (time.monotonic() - start) / (done - before) * (len(runs) - done)
            left = f', about {timedelta(seconds=round(seconds))} left'
        say(f'[{done}/{len(runs)}] {run.name}: {event}{left}')

    execute(runs, jobs, devices, report)


def look_into(study: Study, configs: Configs, runs: Sequence[Run], out: Path) -> list[Path]:
    """Write a page for each analysis in the study's `look`, and return the paths of the pages.

    An analysis uses the first compared run of each of its rows, and is left out unless all of these runs are finished and have
    a checkpoint.
    """
    first_runs: dict[str, Run] = {}
    for run in runs:
        if run.part == 'compared':
            first_runs.setdefault(run.row.name, run)
    pages = []
    for number, look in enumerate(study.look):
        compared = {name: first_runs[name] for name in look.rows if name in first_runs}
        if len(compared) == len({*look.rows}) and all(map(_has_weights, compared.values())):
            folder = out / f'{look.instrument}_{number}'
            pages.append(instrument_page(study, configs, look, compared, folder))
    return pages


def _has_weights(run: Run) -> bool:
    """Return True if a run is finished and has a checkpoint. Untrained rows and branches of collapsed trunks have none."""
    return run.done and (run.folder / 'last_checkpoint').is_file()


def instrument_page(
    study: Study,
    configs: Configs,
    look: Look,
    runs: dict[str, Run],
    folder: Path,
) -> Path:
    """Write the page of one analysis, and return its path."""
    subjects = {name: (str(last_checkpoint(runs[name].folder)), 'student') for name in look.rows}
    if look.instrument == 'norms':
        networks = {name: read_backbone(*subject) for name, subject in subjects.items()}
        return analysis_pages.norms_page(networks, folder)
    images = Images(configs[look.rows[0]], IMAGES, BATCH, default_workers(), default_device())
    if look.instrument == 'geometry':
        subjects = {
            name: (*subject, look.layer, configs[name]) for name, subject in subjects.items()
        }
        return analysis_pages.geometry_page(subjects, images, False, folder, 0)
    return analysis_pages.cka_page(subjects, images, 'pooled', False, folder)
