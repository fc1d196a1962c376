"""Write the page that compares training runs: differences between their configs, final values, and curves."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from markupsafe import Markup

from mmairl.config import flat
from mmairl.engine.curves import Curve, first_steps, read_run_config, read_scalars
from mmairl.engine.health import QUANTITIES
from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.charts import chart
from mmairl.report.evaluation_page import records_in
from mmairl.report.page import Page
from mmairl.report.sections import CURVES, percent
from mmairl.report.table import Row, counted, html_table

ENDS = ('loss', 'instance_accuracy', 'probe_accuracy', 'knn_accuracy')
UNITS = {'epoch': 'epoch', 'images': 'images seen', 'hours': 'hours of training'}
# Settings that cannot affect the result of a run.
IRRELEVANT = {'work_dir', 'experiment_name', 'launcher', 'resume', 'log_level'}
MISSING = '—'
MOST_NAMED = (
    10  # if there are at least this many runs, the first line of the page does not name them
)
# The score, the data set and the evaluated network, each '' if unknown.
ScoreKey = tuple[str, str, str]
ACCURACIES = {
    quantity.name: f'{quantity.label.removesuffix(", %")}, %'
    for quantity in QUANTITIES
    if quantity.name.endswith('accuracy')
}
HEALTH = {f'health_{quantity.name}': quantity.label for quantity in QUANTITIES}
LABELS = CURVES | ACCURACIES | HEALTH


class Scores(msgspec.Struct):
    """The part of result.json that the page shows. Runs of a study have this file in their work directories."""

    scores: dict[str, float] = {}


@dataclass(frozen=True)
class LoggedRun:
    """A run as read from its work directory.

    Args:
        name: The name of the run on the page.
        curves: The steps and the values of each scalar that the run logged.
        config: The settings of the config as text, by dotted key.
        starts: The first step after each start of the run; an interrupted run was started several times.
        scores: The value of each score, by the name of the score, the data set and the evaluated network.
    """

    name: str
    curves: Mapping[str, Curve]
    config: Mapping[str, str]
    starts: Sequence[int]
    scores: Mapping[ScoreKey, float]

    def along(self, unit: str, steps: Sequence[int]) -> np.ndarray | None:
        """Convert steps to epochs, images or hours. Return None if the log or the config lacks the data for the conversion."""
        batch = self.config.get('total_batch_size', '')
        name = 'epoch' if unit == 'epoch' else 'time'
        logged, values = self.curves.get(name, ([], []))
        if unit == 'images' and re.fullmatch('[0-9]{1,12}', batch):
            return np.array(steps) * int(batch)
        if unit == 'images' or not logged:
            return None
        if unit == 'epoch':
            # The log contains the number of the current epoch. At the last step of an epoch, the step divided by this number is
            # the number of steps per epoch. At other steps, the quotient is less, so the maximum is exact.
            steps_per_epoch = np.divide(logged, values).max()
            return np.array(steps) / steps_per_epoch
        durations = np.diff(logged, prepend=0) * values
        hours = np.cumsum(durations) / 3600
        return np.interp(steps, [0, *logged], [0, *hours])

    @property
    def last_step(self) -> int:
        ends = [steps[-1] for steps, _ in self.curves.values() if steps]
        return max(ends, default=0)


def write_compare_page(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write a page that compares the runs in two or more work directories.

    Args:
        folders: The work directories.
        out: The file to write.

    Returns:
        The path of the page.

    Raises:
        UserError: If there is only one folder, a folder is listed twice, a run has no log, or no quantity was logged by two
            runs.
    """
    if len(folders) < 2:
        raise UserError(
            'report compare: expected two or more work directories, got one', code='one-run'
        )
    names = short_names([Path(folder).resolve() for folder in folders])
    runs = [_read(folder, name) for folder, name in zip(folders, names)]
    for run in runs:
        if not run.last_step:
            raise UserError(
                f'{run.name}: the run has logged nothing yet; wait for its first log entry, or leave the run out',
                code='empty-log',
            )
    logged = Counter(name for run in runs for name in run.curves)
    shared = [name for name in LABELS if logged[name] > 1]
    if not shared:
        raise UserError(
            f'{", ".join(map(str, folders))}: no two runs logged the same quantity; compare runs of the same kind',
            code='nothing-shared',
        )
    # The isolating characters keep a right-to-left name from reversing the names next to it.
    compared = ', '.join(f'\u2068{run.name}\u2069' for run in runs)
    if len(runs) >= MOST_NAMED:
        compared = f'{len(runs)} runs'
    columns, rows = differences({run.name: run.config for run in runs})
    page = Page('Comparison of runs', _lead(compared, runs, columns, rows), wide=True)
    _add_differences(page, columns, rows)
    _add_ends(page, runs, [name for name in ENDS if logged[name]])
    known = Counter(unit for run in runs for unit in UNITS if run.along(unit, [0]) is not None)
    units = [unit for unit in UNITS if known[unit] > 1]
    page.add('Curves', '', [_curve_chart(runs, name, units) for name in shared])
    refresh = shlex.join(['mmairl', 'report', 'compare', *map(str, folders), '--out', str(out)])
    page.add(
        'Refresh',
        'While a run is training, this command updates the page:',
        Markup('<code class="command">{}</code>').format(refresh),
    )
    return page.write(out)


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return a unique name for each folder. All names start with the same number of parent folders, as few as possible.

    Raises:
        UserError: If a folder is listed twice.
    """
    for parts in range(1, 12):
        names = ['/'.join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    twice, _ = Counter(folders).most_common(1)[0]
    raise UserError(
        f'{twice}: the folder is listed twice; list different runs', code='listed-twice'
    )


def _read(folder: str | Path, name: str) -> LoggedRun:
    settings = read_run_config(folder)
    if 'load_from' in settings:
        # After a resume, load_from is the checkpoint to resume from. The config of the first start has the user's setting.
        settings['load_from'] = read_run_config(folder, 0).get('load_from')
    scores: dict[ScoreKey, float] = {}
    for record in records_in(folder):
        for score, value in record.scores.items():
            scores[score, record.data, record.subject] = value
    result = Path(folder) / 'result.json'
    if result.is_file():
        for score, value in read_json(result, Scores).scores.items():
            scores[score, '', ''] = value
    return LoggedRun(
        name,
        curves=read_scalars(folder),
        config={key: str(value) for key, value in flat(settings).items()},
        starts=first_steps(folder),
        scores=scores,
    )


def differences(configs: Mapping[str, Mapping[str, str]]) -> tuple[list[str], list[Row]]:
    """Return the columns and rows of a table of the settings that differ between runs.

    If fewer settings differ than there are runs, each column is a setting. Otherwise each row is a setting.
    """
    keys = {key for config in configs.values() for key in config}
    rows = []
    for key in sorted(keys - IRRELEVANT):
        values = [config.get(key, MISSING) for config in configs.values()]
        if len(set(values)) > 1:
            rows.append((key, values))
    if not 0 < len(rows) < len(configs):
        return list(configs), rows
    columns = [key for key, _ in rows]
    values_by_run = zip(*(values for _, values in rows))
    return columns, list(zip(configs, values_by_run))


def _lead(
    compared: str, runs: Sequence[LoggedRun], columns: Sequence[str], rows: Sequence[Row]
) -> str:
    """Return the first line of the page, with the names of the runs and the number of settings that differ."""
    settings_are_columns = rows and columns != [run.name for run in runs]
    count = len(columns) if settings_are_columns else len(rows)
    return f'{compared}: {counted(count, "setting differs", "settings differ")}.'


def _add_differences(page: Page, columns: Sequence[str], rows: Sequence[Row]) -> None:
    heading = 'Differences between the configs'
    if rows:
        text = (
            f'All other settings that can affect the result are equal. The sign {MISSING} means that the config of a run does '
            'not have the setting.'
        )
        page.add(heading, text, html_table(columns, rows, words=True))
    else:
        page.add(heading, 'All settings that can affect the result are equal.')


def _add_ends(page: Page, runs: Sequence[LoggedRun], logged: Sequence[str]) -> None:
    """Add a table with the final values, the seed and the interruptions of each run."""
    # The table names the evaluated network only if some run has the same score of several networks on the same data.
    by_data = [Counter(key[:2] for key in run.scores) for run in runs]
    is_repeated = any(count > 1 for counts in by_data for count in counts.values())
    parts = 3 if is_repeated else 2
    measured = []
    scores: dict[str, float] = {}
    for run in runs:
        named = {}
        for key, value in run.scores.items():
            label = ', '.join(filter(None, key[:parts]))
            named[label] = value
        measured.append(named)
        scores |= named
    rows = []
    for run, values in zip(runs, measured):
        interruptions = ', '.join(f'{step:,}' for step in run.starts[1:])
        cells = [
            run.config.get('randomness.seed', MISSING),
            f'{run.last_step:,}',
            interruptions or 'never',
        ]
        cells += [f'{values[label]:.2f}' if label in values else MISSING for label in scores]
        cells += [_last_value(run, name) for name in logged]
        rows.append((run.name, cells))
    columns = ['seed', 'last step', 'interrupted before step', *scores]
    columns += [f'{LABELS[name]}, last' for name in logged]
    text = 'Each value is from a single run. Two seeds of one config may differ by as much as these runs do.'
    page.add('Final values', text, html_table(columns, rows))


def _last_value(run: LoggedRun, name: str) -> str:
    _, values = percent(name, run.curves.get(name, ([], [])))
    return f'{values[-1]:.4g}' if values else MISSING


def _curve_chart(runs: Sequence[LoggedRun], name: str, units: Sequence[str]) -> str:
    """Return a chart of one quantity with a line per run. The reader can choose among the units of the x axis."""
    series = {}
    for run in runs:
        if name in run.curves:
            steps, values = percent(name, run.curves[name])
            places = {UNITS[unit]: run.along(unit, steps) for unit in units}
            known = {label: x for label, x in places.items() if x is not None}
            series[run.name] = known or {'step': steps}, values
    return chart(series, LABELS[name])
