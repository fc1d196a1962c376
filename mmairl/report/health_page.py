"""Write the health page of a run, which shows the current value and the curve of each quantity that HealthHook logs."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from markupsafe import Markup

from mmairl.engine.curves import Curve, read_scalars
from mmairl.engine.health import QUANTITIES, Quantity, advice, state
from mmairl.errors import UserError
from mmairl.report.charts import chart
from mmairl.report.page import write_page

PREFIX = 'health_'
# The page shows tiles in this order, the worst state first.
STATES = ('bad', 'watch', 'good', 'open')
BY_STAGE = {
    'gradient_norm': 'gradient norm by stage',
    'weight_norm': 'weight norm by stage',
    'update_ratio': 'relative update by stage',
}
LOGARITHMIC = {'teacher_distance', 'gradient_norm', 'update_ratio'}
Known = Mapping[Quantity, Curve]


def write_health_page(work_dir: str | Path, out: str | Path) -> Path:
    """Write the health page of a run. If the run was resumed, its curves cover all parts of the run.

    Args:
        work_dir: The work directory of the run.
        out: The file to write.

    Returns:
        The path of the page.

    Raises:
        UserError: If the run logged no health quantities.
    """
    curves = read_scalars(work_dir)
    known = measured(curves, work_dir)
    charts = {}
    vitals = []
    for quantity, curve in known.items():
        charts[quantity.name] = _quantity_chart(quantity, curve)
        _, values = curve
        vitals.append(_vital(quantity, values[-1]))
    vitals.sort(key=lambda vital: STATES.index(vital['state']))
    return write_page(
        out,
        'health.html',
        title=f'Health of {Path(work_dir).resolve().name}',
        lead=_lead(known, vitals),
        vitals=vitals,
        charts=charts | _stage_charts(curves),
    )


def measured(curves: Mapping[str, Curve], work_dir: str | Path) -> Known:
    """Return the curves of the health quantities that the run logged."""
    if not any(name.startswith(PREFIX) for name in curves):
        raise UserError(
            f"{work_dir}: the run logged no health quantities; set default_hooks.health=dict(type='HealthHook') in its config",
            code='no-health-log',
        )
    by_name = {name.removeprefix(PREFIX): curve for name, curve in curves.items() if curve[1]}
    known = {
        quantity: by_name[quantity.name] for quantity in QUANTITIES if quantity.name in by_name
    }
    for name, curve in by_name.items():
        if name.startswith('head_'):  # a metric that the head declares in `page_metrics`
            label = name.removeprefix('head_').replace('_', ' ')
            known[Quantity(name, f'{label} (head)')] = curve
    return known


def _vital(quantity: Quantity, value: float) -> dict[str, str]:
    """Return the content of the tile for a quantity.

    The state is 'open' if the quantity has no normal range and its value is finite.
    """
    normal = normal_range(quantity)
    is_rated = normal or not isfinite(value)
    return dict(
        state=state(quantity, value) if is_rated else 'open',
        label=quantity.label,
        value=f'{value:.3g}',
        sentence=advice(quantity, value),
        range=normal,
    )


def _lead(known: Known, vitals: Sequence[Mapping[str, str]]) -> str:
    """Return the first line of the page: how many quantities are within their normal ranges, and which quantities to check."""
    step = max(steps[-1] for steps, _ in known.values())
    rated = [vital for vital in vitals if vital['state'] != 'open']
    outside = [vital for vital in rated if vital['state'] != 'good']
    inside = f'{len(rated) - len(outside)} of the {len(rated)} quantities with a normal range are within it'
    labels = [f'{vital["label"]} ({vital["state"]})' for vital in outside]
    attention = f' To check: {", ".join(labels)}.' if labels else ''
    return f'At iteration {step:,}, {inside}.{attention}'


def normal_range(quantity: Quantity) -> str:
    """Return the normal range of a quantity as text, '' if it has none."""
    low = f'{quantity.low:g}' if isfinite(quantity.low) else ''
    high = f'{quantity.high:g}' if isfinite(quantity.high) else ''
    if low and high:
        return f'{low} to {high}'
    if low:
        return f'{low} or more'
    return f'{high} or less' if high else ''


def _quantity_chart(quantity: Quantity, curve: Curve) -> Markup:
    is_logarithmic = quantity.name in LOGARITHMIC and min(curve[1]) > 0
    return chart(
        {'': curve},
        quantity.label,
        'iteration',
        log='y' if is_logarithmic else '',
        normal=(quantity.low, quantity.high),
    )


def _stage_charts(curves: Mapping[str, Curve]) -> dict[str, Markup]:
    """Return a chart for each quantity that is measured per stage. Its y axis is logarithmic if all values are positive."""
    charts = {}
    for kind, label in BY_STAGE.items():
        prefix = f'{PREFIX}{kind}_'
        stages = {}
        for name, curve in curves.items():
            if name.startswith(prefix):
                stages[name.removeprefix(prefix)] = curve
        if stages:
            lowest = min(value for _, values in stages.values() for value in values)
            log = 'y' if lowest > 0 else ''
            charts[f'{kind}_by_stage'] = chart(stages, label, 'iteration', log=log)
    return charts
