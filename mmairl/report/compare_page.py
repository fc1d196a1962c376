"""Write the page that compares training runs: differences between their configs, final values, and curves."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmairl.config import flat
from mmairl.engine.curves import read_run_config, read_scalars
from mmairl.engine.health import QUANTITIES
from mmairl.errors import UserError
from mmairl.report.evaluation_page import records_in
from mmairl.report.figures import chart
from mmairl.report.page import Page
from mmairl.report.sections import CURVES, percent
from mmairl.report.table import Table, counted

# Settings that cannot affect the result of a run.
IRRELEVANT = {'work_dir', 'experiment_name', 'launcher', 'resume', 'load_from', 'log_level'}
PREFIXES = ('', 'health_')
LABELS = CURVES | {
    prefix + quantity.name: quantity.label for prefix in PREFIXES for quantity in QUANTITIES
}


def write_compare_page(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write a page that compares the runs in two or more work directories.

    Args:
        folders: The work directories.
        out: The file to write.

    Returns:
        The path of the page.

    Raises:
        UserError: If there are fewer than two different folders, or no quantity was logged by two runs.
    """
    names = short_names([Path(folder).resolve() for folder in folders])
    runs = {name: read_scalars(folder) for name, folder in zip(names, folders)}
    logged = Counter(name for curves in runs.values() for name in curves)
    shared = [name for name in LABELS if logged[name] > 1]
    if not shared:
        raise UserError(
            f'{", ".join(map(str, folders))}: no two runs logged the same quantity; compare two or more runs of the same kind '
            'that have started to log',
            code='nothing-shared',
        )
    differing = differences({name: read_run_config(folder) for name, folder in zip(names, folders)})
    page = Page(
        'Comparison of runs',
        f'{counted(len(differing.rows), "setting")} of {len(runs)} runs differ. To update this page while a run is training, '
        'repeat the command.',
    )
    page.add(
        'Differences between the configs',
        'All other settings that can affect the result are equal.',
        differing.html() if differing.rows else '',
    )
    curves = {}
    last: dict[str, dict[str, float]] = {}
    for key in shared:
        curves[key] = {name: percent(key, run[key]) for name, run in runs.items() if key in run}
        last[LABELS[key]] = {name: values[-1] for name, (_, values) in curves[key].items()}
    for name, folder in zip(names, folders):
        for record in records_in(folder):
            for score, value in record.scores.items():
                last.setdefault(f'{score} of {record.subject} on {record.data}', {})[name] = value
    rows = [[label, *map(values.get, names)] for label, values in last.items()]
    page.add(
        'Final values',
        'Each value is from a single run. Two seeds of one config may differ by as much as these runs do.',
        Table(['quantity', *names], rows, digits=3).html(),
    )
    page.add('Curves', '', [chart(series, LABELS[key], 'step') for key, series in curves.items()])
    return page.write(out)


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return a unique name for each folder. All names start with the same number of parent folders, as few as possible."""
    for parts in range(1, 12):
        names = ['/'.join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise UserError(
        f'{folders[0]}: a folder is listed twice; list different runs', code='listed-twice'
    )


def differences(configs: Mapping[str, Mapping]) -> Table:
    """Return a table of the settings that differ between runs. A missing setting is a missing value."""
    texts = [{key: str(value) for key, value in flat(cfg).items()} for cfg in configs.values()]
    rows = []
    for key in sorted({key for text in texts for key in text} - IRRELEVANT):
        values = [text.get(key) for text in texts]
        if len(set(values)) > 1:
            rows.append([key, *values])
    return Table(['setting', *configs], rows)
