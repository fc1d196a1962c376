"""Write the page that compares training runs: differences between their configs, final values, and curves."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from mmairl.config import flat
from mmairl.engine.curves import Curve, first_steps, read_run_config, read_scalars
from mmairl.engine.health import QUANTITIES
from mmairl.errors import UserError
from mmairl.report.evaluation_page import records_in
from mmairl.report.figures import chart
from mmairl.report.page import Page
from mmairl.report.sections import CURVES, percent
from mmairl.report.table import Cell, Table, counted

LAST = ('loss', 'instance_accuracy', 'probe_accuracy', 'knn_accuracy')
# Settings that cannot affect the result of a run.
IRRELEVANT = {'work_dir', 'experiment_name', 'launcher', 'resume', 'log_level'}
ACCURACIES = {
    quantity.name: f'{quantity.label.removesuffix(", %")}, %'
    for quantity in QUANTITIES
    if quantity.name.endswith('accuracy')
}
HEALTH = {f'health_{quantity.name}': quantity.label for quantity in QUANTITIES}
LABELS = CURVES | ACCURACIES | HEALTH


@dataclass(frozen=True)
class LoggedRun:
    """A run as read from its work directory.

    Args:
        name: The name of the run on the page.
        curves: The steps and the values of each scalar that the run logged.
        config: The settings of the config as text, by dotted key.
        starts: The first step after each start of the run; an interrupted run was started several times.
        scores: The scores of its checkpoints, by name and data set.
    """

    name: str
    curves: Mapping[str, Curve]
    config: Mapping[str, str]
    starts: Sequence[int]
    scores: Mapping[str, float]

    @property
    def last_step(self) -> int:
        ends = [steps[-1] for steps, _ in self.curves.values() if steps]
        return max(ends, default=0)

    def last(self, name: str) -> float | None:
        _, values = percent(name, self.curves.get(name, ([], [])))
        return values[-1] if values else None


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
    logged = Counter(name for run in runs for name in run.curves)
    shared = [name for name in LABELS if logged[name] > 1]
    if not shared:
        raise UserError(
            f'{", ".join(map(str, folders))}: no two runs logged the same quantity; compare runs of the same kind that have '
            'started to log',
            code='nothing-shared',
        )
    differing = differences({run.name: run.config for run in runs})
    page = Page(
        'Comparison of runs',
        f'{counted(len(differing.rows), "setting")} of {len(runs)} runs differ.',
    )
    page.add(
        'Differences between the configs',
        'All other settings that can affect the result are equal.',
        differing.html() if differing.rows else '',
    )
    page.add(
        'Final values',
        'Each value is from a single run. Two seeds of one config may differ by as much as these runs do.',
        _final_values(runs, [name for name in LAST if logged[name]]).html(),
    )
    page.add('Curves', '', [_curve_chart(runs, name) for name in shared])
    refresh = shlex.join(['mmairl', 'report', 'compare', *map(str, folders), '--out', str(out)])
    command = Markup('<code class="command">{}</code>').format(refresh)
    page.add('Refresh', 'While a run is training, this command updates the page:', command)
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
    scores = {}
    for record in records_in(folder):
        for score, value in record.scores.items():
            scores[f'{score} of {record.subject} on {record.data}'] = value
    return LoggedRun(
        name,
        curves=read_scalars(folder),
        config={key: str(value) for key, value in flat(settings).items()},
        starts=first_steps(folder),
        scores=scores,
    )


def differences(configs: Mapping[str, Mapping[str, str]]) -> Table:
    """Return a table of the settings that differ between runs. A missing setting is a missing value."""
    keys = {key for config in configs.values() for key in config}
    rows: list[list[Cell]] = []
    for key in sorted(keys - IRRELEVANT):
        values = [config.get(key) for config in configs.values()]
        if len(set(values)) > 1:
            rows.append([key, *values])
    return Table(['setting', *configs], rows)


def _final_values(runs: Sequence[LoggedRun], logged: Sequence[str]) -> Table:
    """Return a table with the seed, the interruptions, the scores and the last values of each run."""
    scores = list(dict.fromkeys(name for run in runs for name in run.scores))
    rows = []
    for run in runs:
        interruptions = ', '.join(f'{step:,}' for step in run.starts[1:])
        seed = run.config.get('randomness.seed')
        cells = [seed, f'{run.last_step:,}', interruptions or 'never', *map(run.scores.get, scores)]
        rows.append([run.name, *cells, *map(run.last, logged)])
    columns = ['run', 'seed', 'last step', 'interrupted before step', *scores]
    return Table([*columns, *(f'{LABELS[name]}, last' for name in logged)], rows, digits=2)


def _curve_chart(runs: Sequence[LoggedRun], name: str) -> Markup:
    series = {run.name: percent(name, run.curves[name]) for run in runs if name in run.curves}
    return chart(series, LABELS[name], 'step')
