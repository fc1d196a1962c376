"""The health page of a run: the current state of each quantity, and its curve."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from mmairl.engine.curves import Curve, read_scalars
from mmairl.engine.health import QUANTITIES, Quantity, advice, state
from mmairl.errors import UserError
from mmairl.report.charts import chart
from mmairl.report.page import write_page
from mmairl.report.reference import references

PREFIX = 'health_'
# A shape and a word for each state, so that color is not the only sign; the worst state first.
MARKS = {
    'bad': ('■', 'bad'),
    'watch': ('▲', 'watch'),
    'good': ('●', 'good'),
    'open': ('○', 'no range'),
}
BY_STAGE = {
    'gradient_norm': 'gradient norm',
    'weight_norm': 'weight norm',
    'update_ratio': 'update over weights',
}
LOGARITHMIC = {'teacher_distance', 'gradient_norm', 'update_ratio'}
Known = Mapping[Quantity, Curve]
BY_STAGE_CHARTS = 'by stage'
# The sections of the page: heading, text, and the names of their charts.
SECTIONS = (
    (
        'Embeddings',
        'After a collapse, all images have one embedding: the spread is 0, the rank 1, and all similarities are 1.',
        (
            'spread_query',
            'spread_key',
            'rank_features',
            'rank_embeddings',
            'positive',
            'negative',
            'hardest_negative',
            'contrast',
        ),
    ),
    (
        'Teacher and queue',
        'The teacher follows the student at a distance, and the queue spans few epochs.',
        ('teacher_distance', 'queue_drift', 'queue_steps', 'queue_epochs', 'queue_filled'),
    ),
    (
        'Weights and gradients',
        'Every stage receives a gradient, and no step replaces more than a small part of the weights.',
        ('loss', 'gradient_norm', 'update_ratio', BY_STAGE_CHARTS),
    ),
    (
        'Time and accuracy',
        'Little time is spent waiting for data; the online probe and k-NN rise.',
        (
            'data_share',
            'probe_accuracy',
            'probe_held_out_accuracy',
            'knn_accuracy',
            'knn_accuracy_on_test_images',
        ),
    ),
)
REFERENCE = (
    'Runs of {text}, one seed each. A contrastive loss starts at the logarithm of the number of keys, such as 6.9 for 1 024 '
    'negatives and 11.1 for 65 536, and at twice that if the loss is symmetric. It may fall little although the features are '
    'good. The loss of BYOL starts at 4 and falls to 0 even in a collapse; the spread of the keys is near 0 only in a '
    'collapse. Final k-NN accuracy: {ends}.'
)


def write_health_page(work_dir: str | Path, out: str | Path) -> Path:
    """Write the health page of the latest run in a work directory.

    Args:
        work_dir: The work directory of the run.
        out: The file to write.

    Returns:
        The path of the page.

    Raises:
        UserError: If the run logged no health.
    """
    curves = read_scalars(work_dir)
    known = measured(curves, work_dir)
    vitals = vitals_of(known)
    charts = {
        quantity.name: [_quantity_chart(quantity, curve)] for quantity, curve in known.items()
    }
    charts[BY_STAGE_CHARTS] = _stage_charts(curves)
    shown = []
    for heading, text, names in SECTIONS:
        if figures := [figure for name in names for figure in charts.get(name, ())]:
            shown.append((heading, text, figures))
    return write_page(
        out,
        'health.html',
        title=f'Health of {Path(work_dir).resolve().name}',
        lead=_lead(known, vitals),
        vitals=vitals,
        charts=shown,
        references=_references(curves),
    )


def _references(curves: Mapping[str, Curve]) -> list[tuple[str, str, list[str]]]:
    """Return heading, text and charts of each scale with reference runs."""
    if f'{PREFIX}spread_key' not in curves:
        return []
    return [
        (
            f'Reference runs: {stored["scale"]}',
            REFERENCE.format(text=stored['text'], ends=stored['ends']),
            stored['figures'],
        )
        for stored in references(curves)
    ]


def measured(curves: Mapping[str, Curve], work_dir: str | Path) -> Known:
    """Return the curves of the quantities that the health page shows."""
    if not any(name.startswith(PREFIX) for name in curves):
        raise UserError(
            f"{work_dir}: the run logged no health; set default_hooks.health=dict(type='HealthHook') in its config",
            code='no-health-log',
        )
    by_name = {name.removeprefix(PREFIX): curve for name, curve in curves.items()}
    known = {}
    for quantity in QUANTITIES:
        _, values = by_name.get(quantity.name, ([], []))
        if values:
            known[quantity] = by_name[quantity.name]
    for name, curve in by_name.items():
        if (
            name.startswith('head_') and curve[1]
        ):  # metrics that the head declares (`page_metrics`); no normal range
            label = name.removeprefix('head_').replace('_', ' ')
            known[Quantity(name, f'{label} (head)')] = curve
    return known


def vitals_of(known: Known) -> list[dict[str, str]]:
    """Return a tile with the current value of each quantity, the worst first."""
    vitals = [_vital(quantity, values[-1]) for quantity, (_, values) in known.items()]
    order = list(MARKS)
    return sorted(vitals, key=lambda vital: order.index(vital['state']))


def _vital(quantity: Quantity, value: float) -> dict[str, str]:
    normal = normal_range(quantity)
    is_rated = normal or not isfinite(value)
    now = state(quantity, value) if is_rated else 'open'
    shape, word = MARKS[now]
    return dict(
        state=now,
        shape=shape,
        word=word,
        label=quantity.label,
        value=f'{value:.3g}',
        sentence=advice(quantity, value),
        range=normal,
    )


def _lead(known: Known, vitals: Sequence[Mapping[str, str]]) -> str:
    """Return how many quantities are in each state, and which ones need attention."""
    by_state: dict[str, list[str]] = {name: [] for name in MARKS}
    for vital in vitals:
        by_state[vital['state']].append(vital['label'])
    step = max(steps[-1] for steps, _ in known.values())
    parts = []
    for name, words in (('bad', 'bad'), ('watch', 'to watch')):
        labels = by_state[name]
        names = f' ({", ".join(labels)})' if labels else ''
        parts.append(f'{len(labels)} {words}{names}')
    return f'At iteration {step:,}: {parts[0]}, {parts[1]}, {len(by_state["good"])} good.'


def normal_range(quantity: Quantity) -> str:
    """Return the normal range as text, '' if there is none."""
    low = quantity.low
    high = quantity.high
    if isfinite(low) and isfinite(high):
        return f'{low:g} to {high:g}'
    if isfinite(low):
        return f'{low:g} or more'
    if isfinite(high):
        return f'{high:g} or less'
    return ''


def _quantity_chart(quantity: Quantity, curve: Curve) -> str:
    _, values = curve
    is_logarithmic = quantity.name in LOGARITHMIC and min(values) > 0
    return chart(
        {'': curve},
        quantity.label,
        'iteration',
        log='y' if is_logarithmic else '',
        normal=(quantity.low, quantity.high),
    )


def _stage_charts(curves: Mapping[str, Curve]) -> list[str]:
    """Return a chart of each quantity that is measured per stage, logarithmic if all values are positive."""
    charts = []
    for kind, label in BY_STAGE.items():
        prefix = f'{PREFIX}{kind}_'
        stages = {
            name.removeprefix(prefix): curve
            for name, curve in curves.items()
            if name.startswith(prefix)
        }
        if stages:
            lowest = min(value for _, values in stages.values() for value in values)
            charts.append(
                chart(
                    stages,
                    f'{label} by stage',
                    'iteration',
                    log='y' if lowest > 0 else '',
                )
            )
    return charts
