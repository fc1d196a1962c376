"""Runs beside each other: what differs between their configs, their curves, and what came out of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from mmairl.config import flat
from mmairl.engine.curves import Curve, config_of, first_steps, read_scalars
from mmairl.engine.health import QUANTITIES
from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.report.charts import chart
from mmairl.report.evaluation_page import records_in
from mmairl.report.page import Page
from mmairl.report.sections import CURVES, percent
from mmairl.report.table import html_table

LABELS = {
    **CURVES,
    **{q.name: f'{q.label.removesuffix(", %")}, %' for q in QUANTITIES if q.name.endswith('accuracy')},
    **{f'health_{q.name}': q.label for q in QUANTITIES},
}
ENDS = ('loss', 'instance_accuracy', 'probe_accuracy', 'knn_accuracy')
UNITS = {'epoch': 'epoch', 'images': 'images seen', 'hours': 'hours of training'}
# Where a run is kept and how it was started say nothing of what it computes.
ELSEWHERE = ('work_dir', 'experiment_name', 'launcher', 'resume', 'log_level')


class Scores(msgspec.Struct):
    """The part of a study's result.json that is shown here."""

    scores: dict[str, float] = {}


@dataclass(frozen=True)
class Run:
    """A run as its work dir has it: curves, config, the first step of each start, and scores."""

    name: str
    curves: Mapping[str, Curve]
    config: Mapping[str, str]
    starts: Sequence[int]
    scores: Mapping[tuple[str, str, str], float]  # by name, data and network

    def along(self, unit: str, steps: Sequence[int]) -> np.ndarray | None:
        """Return the steps as epochs, images or hours; None where the run did not record what that takes."""
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


def write_compare_page(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write a page of two work dirs or more."""
    if len(folders) < 2:
        raise UserError('there is one run to compare; give two work dirs or more')
    runs = [_read(folder, name) for folder, name in zip(folders, names_of([Path(f).resolve() for f in folders]))]
    if silent := [run.name for run in runs if not any(steps for steps, _ in run.curves.values())]:
        raise UserError(f'{silent[0]} has logged nothing yet; compare runs that have')
    shared = [name for name in LABELS if sum(name in run.curves for run in runs) > 1]
    if not shared:
        raise UserError(f'{", ".join(map(str, folders))} logged no quantity in common; compare runs of one kind')
    lead = ', '.join(f'\u2068{run.name}\u2069' for run in runs)  # isolated: one that turns its direction turns no other
    page = Page('Runs compared', lead if len(runs) < 10 else f'{len(runs)} runs', wide=True)
    columns, rows = differences({run.name: run.config for run in runs})
    text = 'All settings are equal.' if not rows else 'All other settings are equal. — : not set.'
    page.add('What differs between the configs', text, html_table(columns, rows, words=True) if rows else '')
    _add_ends(page, runs)
    units = [unit for unit in UNITS if sum(run.along(unit, [0]) is not None for run in runs) > 1]
    page.add('Curves', '', [_over_each_other(runs, name, LABELS[name], units) for name in shared])
    return page.write(out)


def names_of(folders: Sequence[Path]) -> list[str]:
    """Each folder's name, with as many of those above it as tell all of them apart."""
    for parts in range(1, 12):
        names = ['/'.join(folder.parts[-parts:]) for folder in folders]
        if max(Counter(names).values(), default=1) == 1:
            return names
    raise UserError(f'{folders[0]} is given twice; give different runs')


def _read(folder: str | Path, name: str) -> Run:
    own = config_of(folder)
    if 'load_from' in own:  # a later start has the checkpoint that it went on from
        own['load_from'] = config_of(folder, 0).get('load_from')
    config = {key: str(value) for key, value in flat(own).items()}
    scores = {
        (score, record.data, record.subject): value
        for record in records_in(folder)
        for score, value in record.scores.items()
    }
    if (result := Path(folder) / 'result.json').is_file():
        scores |= {(score, '', ''): value for score, value in read_json(result, Scores).scores.items()}
    return Run(name, read_scalars(folder), config, first_steps(folder), scores)


def differences(configs: Mapping[str, Mapping[str, str]]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Columns and rows of the settings that differ, with the fewer of settings and runs as columns."""
    keys = sorted({key for config in configs.values() for key in config if key not in ELSEWHERE})
    rows = [(key, [config.get(key, '—') for config in configs.values()]) for key in keys]
    rows = [(key, values) for key, values in rows if len(set(values)) > 1]
    if 0 < len(rows) < len(configs):
        return [key for key, _ in rows], list(zip(configs, zip(*(values for _, values in rows))))
    return list(configs), rows


def _add_ends(page: Page, runs: Sequence[Run]) -> None:
    """Add a table of what came out at the end of each run, with its seed and where it was interrupted."""
    # A run may have been measured at several checkpoints; where each was at one, its name would keep them apart.
    parts = 3 if any(len({key[:2] for key in run.scores}) < len(run.scores) for run in runs) else 2
    told = [{', '.join(filter(None, key[:parts])): value for key, value in run.scores.items()} for run in runs]
    scores = list(dict.fromkeys(chain(*told)))
    logged, rows = [name for name in ENDS if any(name in run.curves for run in runs)], []
    for run, known in zip(runs, told):
        steps = max(curve[0][-1] for curve in run.curves.values() if curve[0])
        curves = {name: percent(name, run.curves[name])[1] for name in logged if name in run.curves}
        last = [f'{curves[name][-1]:.4g}' if curves.get(name) else '—' for name in logged]
        measured = [f'{known[name]:.2f}' if name in known else '—' for name in scores]
        stops = ', '.join(f'{step:,}' for step in run.starts[1:]) or 'never'
        rows.append((run.name, [run.config.get('randomness.seed', '—'), f'{steps:,}', stops, *measured, *last]))
    columns = ['seed', 'last step', 'interrupted before step', *scores, *(f'{LABELS[name]}, last' for name in logged)]
    text = 'One number a run: two seeds of one config may differ as much.'
    page.add('How they ended', text, html_table(columns, rows))


def _over_each_other(runs: Sequence[Run], name: str, label: str, units: Sequence[str]) -> str:
    """Return a chart of one quantity, a line a run, along each unit that the reader may choose."""
    series = {}
    for run in runs:
        if name in run.curves:
            steps, values = percent(name, run.curves[name])
            places = {UNITS[unit]: x for unit in units if (x := run.along(unit, steps)) is not None}
            series[run.name] = places or {'step': steps}, values
    return chart(series, label)
