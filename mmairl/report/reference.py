"""Curves of real runs, healthy and collapsed, to compare a run with; stored in reference.json.

`python tools/study.py configs/studies/reference_curves.yaml --scale SCALE` trains them. Afterwards
`python -m mmairl.report.reference work_dirs/studies/reference_curves_SCALE` stores their curves under the scale's name.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmairl.engine.curves import Curve, read_scalars
from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import read_json, write_json
from mmairl.report.charts import chart

STORED = Path(__file__).with_name('reference.json')
LABELS = {
    'loss': 'loss',
    'instance_accuracy': 'instance accuracy',
    'health_positive': 'similarity to the own key',
    'health_negative': 'similarity to the negatives',
    'health_spread_key': 'spread of the keys',
    'health_spread_query': 'spread of the queries',
}
POINTS = 60  # most points of a curve


def references(own: Mapping[str, Curve]) -> list[dict[str, Any]]:
    """Return text and charts of each stored scale. A dotted line marks the current value of the run."""
    scales = []
    for scale, stored in read_json(STORED).items():
        rows = stored['rows']
        ends = ', '.join(f'{name} {run["knn"]:.1f} %' for name, run in rows.items())
        figures = [_quantity_chart(quantity, rows, own) for quantity in LABELS]
        scales.append(
            dict(
                scale=scale,
                text=stored['text'],
                ends=ends,
                figures=figures,
            )
        )
    return scales


def _quantity_chart(quantity: str, rows: Mapping[str, Any], own: Mapping[str, Curve]) -> str:
    curves = {
        name: run['curves'][quantity] for name, run in rows.items() if quantity in run['curves']
    }
    _, values = own.get(quantity, ([], []))
    is_comparable = (
        values and quantity != 'loss'
    )  # a loss depends on the head and on the number of negatives
    return chart(
        curves,
        LABELS[quantity],
        'iteration',
        level=values[-1] if is_comparable else None,
    )


def store(study: str | Path, out: Path = STORED) -> None:
    """Store the curves of a study's first seed, replacing those of the same scale.

    Raises:
        UserError: If no run of the study is finished.
    """
    record = read_json(Path(study) / 'study.json')
    rows = {}
    for row in record['rows']:
        run = row['runs'][0]
        if run['state'] == 'done':
            curves = read_scalars(Path(study) / run['folder'])
            rows[row['name']] = dict(
                knn=run['scores']['knn'],
                curves={
                    quantity: thinned(curves[quantity]) for quantity in LABELS if quantity in curves
                },
            )
    if not rows:
        raise UserError(
            f'{study}: no run is finished; wait until tools/study.py ends', code='no-finished-run'
        )
    scales = read_json(out) if out.exists() else {}
    scale = record['scale']
    scales[scale['name']] = dict(text=scale['text'], rows=rows)
    write_json(out, scales)


def thinned(curve: Curve) -> Curve:
    """Return at most POINTS points of a curve, evenly spaced, both ends included, with four digits."""
    steps, values = curve
    count = min(POINTS, len(steps))
    spacing = (len(steps) - 1) / max(1, count - 1)
    places = sorted({round(number * spacing) for number in range(count)})
    return [steps[place] for place in places], [float(f'{values[place]:.4g}') for place in places]


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('study', help='folder of the study')
    store(parser.parse_args().study)
    print(STORED)


if __name__ == '__main__':
    main()
