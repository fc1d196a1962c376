"""Draw the curves of healthy and collapsed reference runs for health pages. `projects/reference_curves` measures these runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mmairl.engine.curves import Curve
from mmairl.io import read_json
from mmairl.report.charts import chart

STORED = Path(__file__).with_name('reference.json')
LABELS = {
    'loss': 'loss',
    'instance_accuracy': 'instance accuracy',
    'health_positive': 'similarity to the positive key',
    'health_negative': 'similarity to the negatives',
    'health_spread_key': 'spread of the keys',
    'health_spread_query': 'spread of the queries',
}


def references(own: Mapping[str, Curve]) -> list[dict[str, Any]]:
    """Return the content of a section for each scale (data set and length) of the reference runs.

    A section has a text, final accuracies and charts. In all charts except that of the loss, a dotted line marks the current
    value of the user's run.

    Args:
        own: The curves of the user's run.
    """
    scales = []
    for name, stored in read_json(STORED).items():
        rows = stored['rows']
        scales.append(
            dict(
                name=name,
                text=stored['text'],
                ends=[(row, run['knn']) for row, run in rows.items()],
                figures=[_quantity_chart(quantity, rows, own) for quantity in LABELS],
            )
        )
    return scales


def _quantity_chart(quantity: str, rows: Mapping[str, Any], own: Mapping[str, Curve]) -> Markup:
    curves = {}
    for name, run in rows.items():
        if quantity in run['curves']:
            curves[name] = run['curves'][quantity]
    _, values = own.get(quantity, ([], []))
    # Losses of different runs cannot be compared, because a loss depends on the head and on the number of negatives.
    is_comparable = values and quantity != 'loss'
    level = values[-1] if is_comparable else None
    return chart(curves, LABELS[quantity], 'iteration', level=level)
