"""The health page of a run: what is wrong now, and how each quantity came to be where it is."""

from collections import Counter
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from mmairl.engine.curves import Curve, read_scalars
from mmairl.engine.health import QUANTITIES, Quantity, sentence, state
from mmairl.errors import UserError
from mmairl.report.charts import chart
from mmairl.report.page import write_page
from mmairl.report.reference import references

PREFIX = 'health_'
# A shape and a word each, so that no state is told by its colour alone; the worst first.
MARKS = {'bad': ('■', 'bad'), 'watch': ('▲', 'watch'), 'good': ('●', 'good'), 'open': ('○', 'no range')}
BY_STAGE = {'gradient_norm': 'gradient norm', 'weight_norm': 'weight norm', 'update_ratio': 'update over weights'}
LOGARITHMIC = {'teacher_distance', 'gradient_norm', 'update_ratio'}


def write_health_page(work_dir: str | Path, out: str | Path) -> Path:
    """Write the page of the latest run in `work_dir` as one file, and return its path."""
    curves = read_scalars(work_dir)
    known = measured(curves, work_dir)
    vitals, lead = state_of(known)
    charts = {q.name: [_of_range(q, curve)] for q, curve in known.items()}
    return write_page(
        out,
        'health.html',
        title=f'Health of {Path(work_dir).resolve().name}',
        lead=lead,
        vitals=vitals,
        charts={**charts, 'by stage': _by_stage(curves)},
        references=references(curves) if f'{PREFIX}spread_key' in curves else (),
    )


Known = Mapping[Quantity, Curve]


def measured(curves: Mapping[str, Curve], work_dir: str | Path) -> Known:
    """Return the curves of a run that have a normal range or a place on the page."""
    if not any(name.startswith(PREFIX) for name in curves):
        raise UserError(
            f"the run in {work_dir} logged no health; set default_hooks.health=dict(type='HealthHook') in its config"
        )
    own = {name.removeprefix(PREFIX): curve for name, curve in curves.items()}
    return {quantity: own[quantity.name] for quantity in QUANTITIES if own.get(quantity.name, ([], []))[1]}


def state_of(known: Known) -> tuple[list[dict[str, str]], str]:
    """A tile for each quantity with its present value, the worst first, and how many are in which state."""
    vitals = []
    for quantity, (_, values) in known.items():
        value, normal = values[-1], normal_range(quantity)
        now = state(quantity, value) if normal or not isfinite(value) else 'open'
        shape, word = MARKS[now]
        says = dict(value=f'{value:.3g}', sentence=sentence(quantity, value), range=normal)
        vitals.append(dict(state=now, shape=shape, word=word, label=quantity.label, **says))
    vitals.sort(key=lambda vital: list(MARKS).index(vital['state']))
    count = Counter(vital['state'] for vital in vitals)
    step = max(steps[-1] for steps, _ in known.values())
    return vitals, f'At iteration {step:,}: {count["bad"]} bad, {count["watch"]} to watch, {count["good"]} good.'


def normal_range(quantity: Quantity) -> str:
    """The range in words, empty where there is none."""
    low, high = quantity.low, quantity.high
    if isfinite(low) and isfinite(high):
        return f'{low:g} to {high:g}'
    return f'{low:g} or more' if isfinite(low) else f'{high:g} or less' if isfinite(high) else ''


def _of_range(q: Quantity, curve: Curve) -> str:
    log = 'y' if q.name in LOGARITHMIC and min(curve[1]) > 0 else ''
    return chart({'': curve}, q.label, 'iteration', log=log, normal=(q.low, q.high))


def _by_stage(curves: Mapping[str, Curve]) -> list[str]:
    """Charts of what is measured of each stage of the network, a line a stage, logarithmic where there are no zeros."""
    figures = []
    for kind, label in BY_STAGE.items():
        prefix = f'{PREFIX}{kind}_'
        stages = {name.removeprefix(prefix): curve for name, curve in curves.items() if name.startswith(prefix)}
        if stages:
            positive = all(value > 0 for _, values in stages.values() for value in values)
            figures.append(chart(stages, f'{label} by stage', 'iteration', log='y' if positive else ''))
    return figures
