"""Write the health page of a run, which shows the current value and the curve of each quantity that HealthHook logs."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from mmairl.engine.curves import Curve, read_scalars
from mmairl.engine.health import QUANTITIES, Quantity, advice, state
from mmairl.errors import UserError
from mmairl.report.figures import chart
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
FEWEST_STEPS = 500  # after fewer steps than this number, values within their ranges show little
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
    tiles = [_tile(quantity, curve) for quantity, curve in known.items()]
    tiles.sort(key=lambda tile: STATES.index(tile['state']))
    charts = {}
    for quantity, curve in known.items():
        log = 'y' if quantity.name in LOGARITHMIC else ''
        normal = (quantity.low, quantity.high)
        charts[quantity.name] = chart(
            {'': curve}, quantity.label, 'iteration', log=log, normal=normal
        )
    for kind, label in BY_STAGE.items():
        prefix = f'{PREFIX}{kind}_'
        stages = {
            name.removeprefix(prefix): curve
            for name, curve in curves.items()
            if name.startswith(prefix)
        }
        if stages:
            charts[f'{kind}_by_stage'] = chart(stages, label, 'iteration', log='y')
    return write_page(
        out,
        'health.html',
        title=f'Health of {Path(work_dir).resolve().name}',
        lead=_lead(known, tiles),
        vitals=tiles,
        charts=charts,
        isfinite=isfinite,
    )


def measured(curves: Mapping[str, Curve], work_dir: str | Path) -> Known:
    """Return the curves of the health quantities that the run logged."""
    if not any(name.startswith(PREFIX) for name in curves):
        raise UserError(
            f'{work_dir}: the run has logged no health quantities; train longer, or log more often by '
            "default_hooks.health=dict(type='HealthHook', interval=5)",
            code='no-health-log',
        )
    by_name = {name.removeprefix(PREFIX): curve for name, curve in curves.items()}
    known = {
        quantity: by_name[quantity.name] for quantity in QUANTITIES if quantity.name in by_name
    }
    for name, curve in by_name.items():
        if name.startswith('head_'):  # a metric that the head declares in `page_metrics`
            label = name.removeprefix('head_').replace('_', ' ')
            known[Quantity(name, f'{label} (head)')] = curve
    return known


def _tile(quantity: Quantity, curve: Curve) -> dict[str, Any]:
    """Return the content of the tile for a quantity.

    The state is 'open' if the quantity has no normal range and its value is finite.
    """
    value = curve[1][-1]
    has_range = isfinite(quantity.low) or isfinite(quantity.high)
    return dict(
        state=state(quantity, value) if has_range or not isfinite(value) else 'open',
        quantity=quantity,
        curve=curve,
        sentence=advice(quantity, value),
    )


def _lead(known: Known, tiles: Sequence[Mapping[str, Any]]) -> str:
    """Return the first line: how many quantities are within their normal ranges, and what the run is too short to show."""
    step = max(steps[-1] for steps, _ in known.values())
    rated = [tile for tile in tiles if tile['state'] != 'open']
    outside = [
        f'{tile["quantity"].label} ({tile["state"]})' for tile in rated if tile['state'] != 'good'
    ]
    text = (
        f'At iteration {step:,}, {len(rated) - len(outside)} of the {len(rated)} quantities with a normal range are within '
        f'it. To check: {", ".join(outside) or "none"}.'
    )
    if step < FEWEST_STEPS:
        text += (
            f' These are too few iterations to judge the run (fewer than {FEWEST_STEPS}): the ranges exclude a collapse, but '
            'do not show that the network has learned anything.'
        )
    accuracies = {
        quantity.label: curve for quantity, curve in known.items() if 'knn' in quantity.name
    }
    for label, (steps, values) in accuracies.items():
        text += f' The {label}: {values[0]:.1f} at iteration {steps[0]:,}, {values[-1]:.1f} now.'
    if not accuracies:
        text += (
            ' Whether the features are better than those of a random network, only a comparison on labeled images shows: '
            'mmairl.compare, or `mmairl evaluate knn CHECKPOINT --data FOLDER`.'
        )
    return text
