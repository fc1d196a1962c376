"""Curves of real runs, healthy and collapsed ones, beside those of a run; they are kept in reference.json.

`python tools/study.py configs/studies/reference_curves.yaml --scale SCALE` trains them, and then
`python -m mmairl.report.reference work_dirs/studies/reference_curves_SCALE` puts them, under the scale's name, into the file.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmairl.engine.curves import Curve, read_scalars
from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import read_json, write_json
from mmairl.report.charts import chart

KEPT = Path(__file__).with_name('reference.json')
LABELS = {
    'loss': 'loss',
    'instance_accuracy': 'instance accuracy',
    'health_positive': 'similarity to the own key',
    'health_negative': 'similarity to the negatives',
    'health_spread_key': 'spread of the keys',
    'health_spread_query': 'spread of the queries',
}
POINTS = 60  # of a curve, at most


def references(own: Mapping[str, Curve]) -> list[dict[str, Any]]:
    """Return text and charts of each scale that has been run; a dotted line shows where the present run stands."""
    scales = []
    for scale, kept in read_json(KEPT).items():
        figures = []
        for name, label in LABELS.items():
            curves = {row: run['curves'][name] for row, run in kept['rows'].items() if name in run['curves']}
            values = own.get(name, ([], []))[1] if name != 'loss' else []  # which belongs to its head and its negatives
            figures.append(chart(curves, label, 'iteration', level=values[-1] if values else None))
        ends = ', '.join(f'{row} {run["knn"]:.1f} %' for row, run in kept['rows'].items())
        scales.append(dict(scale=scale, text=kept['text'], ends=ends, figures=figures))
    return scales


def keep(study: str | Path, out: Path = KEPT) -> None:
    """Put the curves of the finished runs of a study's first seed into the file, in place of those of the same scale."""
    record = read_json(Path(study) / 'study.json')
    rows = {}
    for name, run in ((row['name'], row['runs'][0]) for row in record['rows']):
        if run['state'] == 'done':
            curves = read_scalars(Path(study) / run['folder'])
            kept = {quantity: thinned(curves[quantity]) for quantity in LABELS if quantity in curves}
            rows[name] = dict(knn=run['scores']['knn'], curves=kept)
    if not rows:
        raise UserError(f'no run of {study} is finished; let tools/study.py end first')
    scale = record['scale']
    write_json(out, {**(read_json(out) if out.exists() else {}), scale['name']: dict(text=scale['text'], rows=rows)})


def thinned(curve: Curve) -> Curve:
    """At most POINTS of a curve, evenly over it with both ends, to four digits."""
    count = len(curve[0])
    places = sorted({round(i * (count - 1) / max(1, min(POINTS, count) - 1)) for i in range(min(POINTS, count))})
    return [curve[0][i] for i in places], [float(f'{curve[1][i]:.4g}') for i in places]


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('study', help='the folder of the study')
    keep(parser.parse_args().study)
    print(KEPT)


if __name__ == '__main__':
    main()
