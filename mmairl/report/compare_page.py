"""Runs beside each other: what differs between their configs, their curves, and what came out of them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmairl.configs import flat
from mmairl.engine.health import QUANTITIES
from mmairl.engine.scalars import Curve, config_of, first_steps, read_scalars
from mmairl.errors import UserError
from mmairl.report.evaluation_page import records_in
from mmairl.report.figures import lines, svg
from mmairl.report.page import Page
from mmairl.report.sections import CURVES, percent
from mmairl.report.table import html_table

LABELS = {
    **CURVES,
    **{of.name: f'{of.label}, %' for of in QUANTITIES if of.name.endswith('accuracy')},
    **{f'health_{of.name}': of.label for of in QUANTITIES},
}
ENDS = ('loss', 'instance_accuracy', 'probe_accuracy', 'knn_accuracy')
UNITS = {'epoch': 'by epoch', 'images': 'by images seen', 'hours': 'by hours of training'}
# Where a run is kept and how it was started say nothing of what it computes.
ELSEWHERE = ('work_dir', 'experiment_name', 'launcher', 'resume', 'log_level')


@dataclass(frozen=True)
class Run:
    """A run as its work dir has it: curves, config, the first step of each start, and scores."""

    name: str
    curves: Mapping[str, Curve]
    config: Mapping[str, str]
    starts: Sequence[int]
    scores: Mapping[str, float]

    def along(self, unit: str, steps: Sequence[int]) -> np.ndarray | None:
        """The steps as epochs, images or hours; None where the run did not record what that takes."""
        if unit == 'images':
            batch = self.config.get('total_batch_size', '')
            return np.array(steps) * int(batch) if batch.isdigit() else None
        logged, values = self.curves.get('epoch' if unit == 'epoch' else 'time', ([], []))
        if not logged:
            return None
        if unit == 'epoch':  # its length is a whole epoch's at the least, and the most that is seen where one ends
            return np.array(steps) / max(step / epoch for step, epoch in zip(logged, values))
        spent = np.cumsum(np.diff([0, *logged]) * np.array(values)) / 3600
        return np.interp(steps, [0, *logged], [0, *spent])


def write_compare_page(
    folders: Sequence[str | Path], out: str | Path, names: Mapping[str, str] = LABELS, title: str = 'Runs compared'
) -> Path:
    """A page of two work dirs or more.

    >>> write_compare_page(['work_dirs/a', 'work_dirs/b'], 'compare.html')  # doctest: +SKIP
    """
    if len(folders) < 2:
        raise UserError('there is one run to compare; give two work dirs or more')
    runs = [_read(folder, name) for folder, name in zip(folders, _names([Path(of).resolve() for of in folders]))]
    if silent := [run.name for run in runs if not any(steps for steps, _ in run.curves.values())]:
        raise UserError(f'{silent[0]} has logged nothing yet; compare runs that have')
    shared = [name for name in names if sum(name in run.curves for run in runs) > 1]
    if not shared:
        raise UserError(f'{", ".join(map(str, folders))} logged no quantity in common; compare runs of one kind')
    lead = ', '.join(f'\u2068{run.name}\u2069' for run in runs)  # isolated: one that turns its direction turns no other
    page = Page(title, lead)
    _add_differences(page, runs)
    _add_ends(page, runs)
    for unit, words in UNITS.items():
        if sum(run.along(unit, [0]) is not None for run in runs) > 1:
            figures = [_over_each_other(runs, name, names[name], unit) for name in shared]
            page.add(f'Curves {words}', '', figures)
    return page.write(out)


def _names(folders: Sequence[Path]) -> list[str]:
    """Each folder's name, with as many of those above it as tell all of them apart."""
    for parts in range(1, 12):
        names = ['/'.join(folder.parts[-parts:]) for folder in folders]
        if max(Counter(names).values()) == 1:
            return names
    raise UserError(f'{folders[0]} is given twice; give different runs')


def _read(folder: str | Path, name: str) -> Run:
    curves = read_scalars(folder)
    config = {key: str(value) for key, value in flat(config_of(folder)).items() if key not in ELSEWHERE}
    scores = {of: value for record in records_in(folder) for of, value in record['scores'].items()}
    if (result := Path(folder) / 'result.json').is_file():
        scores |= json.loads(result.read_text()).get('scores', {})
    return Run(name, curves, config, first_steps(folder), scores)


def _add_differences(page: Page, runs: Sequence[Run]) -> None:
    keys = sorted({key for run in runs for key in run.config})
    rows = [(key, [run.config.get(key, '—') for run in runs]) for key in keys]
    differ = [(key, values) for key, values in rows if len(set(values)) > 1]
    text = f'{len(differ)} of {len(rows)} settings; all others are equal. — : not set.'
    table = html_table([run.name for run in runs], differ, words=True) if differ else ''
    page.add('What differs between the configs', text, table)


def _add_ends(page: Page, runs: Sequence[Run]) -> None:
    """What came out at the end of each run, with its seed and where it was interrupted."""
    scores = list(dict.fromkeys(name for run in runs for name in run.scores))
    logged = [name for name in ENDS if any(name in run.curves for run in runs)]
    rows = []
    for run in runs:
        steps = max(curve[0][-1] for curve in run.curves.values() if curve[0])
        curves = {name: percent(name, run.curves[name])[1] for name in logged if name in run.curves}
        last = [f'{curves[name][-1]:.4g}' if curves.get(name) else '—' for name in logged]
        found = [f'{run.scores[name]:.2f}' if name in run.scores else '—' for name in scores]
        stops = ', '.join(f'{step:,}' for step in run.starts[1:]) or 'never'
        rows.append((run.name, [run.config.get('randomness.seed', '—'), f'{steps:,}', stops, *found, *last]))
    columns = ['seed', 'last step', 'interrupted before step', *scores, *(f'{LABELS[name]}, last' for name in logged)]
    page.add(
        'How they ended', 'One number a run: two seeds of one config may differ as much.', html_table(columns, rows)
    )


def _over_each_other(runs: Sequence[Run], name: str, label: str, unit: str) -> str:
    series: dict[str, Any] = {}
    for run in runs:
        if name in run.curves and (along := run.along(unit, run.curves[name][0])) is not None:
            series[run.name] = (along.tolist(), percent(name, run.curves[name])[1])
    return svg(lines(series, label, unit), f'{unit}-{name}')
