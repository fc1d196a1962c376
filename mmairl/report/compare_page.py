"""Write the page that compares training runs: differences between their configs, final values, and curves."""

import os.path
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmairl.config import flat
from mmairl.engine.curves import Curve, read_run_config, read_scalars
from mmairl.engine.health import QUANTITIES
from mmairl.report.evaluation_page import records_in
from mmairl.report.figures import chart
from mmairl.report.page import Page
from mmairl.report.table import Table, counted

# Settings that cannot affect the result of a run.
IRRELEVANT = {'work_dir', 'experiment_name', 'launcher', 'resume', 'load_from', 'log_level'}
LABELS = {
    'loss': 'loss',
    'instance_accuracy': 'instance accuracy',
    'lr': 'learning rate',
    'momentum': 'teacher momentum',
}
for quantity in QUANTITIES:
    LABELS[quantity.name] = LABELS[f'health_{quantity.name}'] = quantity.label


def write_compare_page(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write a page that compares the runs in two or more work directories.

    Args:
        folders: The work directories.
        out: The file to write.

    Returns:
        The path of the page.
    """
    paths = [Path(folder).resolve() for folder in folders]
    parent = os.path.commonpath(paths)
    runs = {os.path.relpath(path, parent): path for path in paths}
    logged = {name: read_scalars(path) for name, path in runs.items()}
    curves: dict[str, dict[str, Curve]] = {}
    last: dict[str, dict[str, float]] = {}
    for key, label in LABELS.items():
        known = {name: own[key] for name, own in logged.items() if key in own}
        if len(known) > 1:
            curves[label] = known
            last[label] = {name: values[-1] for name, (_, values) in known.items()}
    for name, path in runs.items():
        for record in records_in(path):
            for score, value in record.scores.items():
                last.setdefault(f'{score} of {record.subject} on {record.data}', {})[name] = value
    rows = [[label, *map(values.get, runs)] for label, values in last.items()]
    differing = differences({name: read_run_config(path) for name, path in runs.items()})
    page = Page(
        'Comparison of runs',
        f'{counted(len(differing.rows), "setting")} of {len(runs)} runs differ. To update this page while a run is training, '
        'repeat the command.',
    )
    page.add(
        'Differences between the configs',
        'All other settings that can affect the result are equal.',
        differing.html(),
    )
    page.add(
        'Final values',
        'Each value is from a single run. Two seeds of one config may differ by as much as these runs do.',
        Table(['quantity', *runs], rows, digits=3).html(),
    )
    page.add('Curves', '', [chart(series, label, 'step') for label, series in curves.items()])
    return page.write(out)


def differences(configs: Mapping[str, Mapping]) -> Table:
    """Return a table of the settings that differ between runs. A missing setting is a missing value."""
    texts = [{key: str(value) for key, value in flat(cfg).items()} for cfg in configs.values()]
    keys = sorted(set().union(*texts) - IRRELEVANT)
    rows = [[key, *(text.get(key) for text in texts)] for key in keys]
    differing = [row for row in rows if len({*row[1:]}) > 1]
    return Table(['setting', *configs], differing)
