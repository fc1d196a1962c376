"""Store the curves of a study's first seed as reference curves, which the health page of each run shows for comparison.

Stored curves of the same scale (the size of the study) are replaced.
"""

import argparse
from pathlib import Path

import numpy as np

from mmairl.engine.curves import Curve, read_scalars
from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import read_json, write_json
from mmairl.report.reference import LABELS, STORED

POINTS = 60  # maximum number of points of a curve


def store(study: str | Path, out: Path = STORED) -> None:
    """Store the curves and the k-NN score of the first seed of each row as reference curves of the study's scale.

    Raises:
        UserError: If no run of the study is finished.
    """
    record = read_json(Path(study) / 'study.json')
    rows = {}
    for row in record['rows']:
        run = row['runs'][0]
        if run['state'] == 'done':
            curves = {}
            for quantity, curve in read_scalars(Path(study) / run['folder']).items():
                if quantity in LABELS:
                    curves[quantity] = thinned(curve)
            rows[row['name']] = dict(knn=run['scores']['knn'], curves=curves)
    if not rows:
        raise UserError(
            f'{study}: no run is finished; wait until tools/study.py ends', code='no-finished-run'
        )
    scales = read_json(out) if out.exists() else {}
    scale = record['scale']
    scales[scale['name']] = dict(text=scale['text'], rows=rows)
    write_json(out, scales)


def thinned(curve: Curve) -> Curve:
    """Return at most POINTS evenly spaced points of a curve, with both ends. Values have four digits."""
    steps, values = curve
    count = min(POINTS, len(steps))
    places = np.linspace(0, len(steps) - 1, count).round().astype(int)
    return [steps[place] for place in places], [float(f'{values[place]:.4g}') for place in places]


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(prog='projects.reference_curves', description=__doc__)
    parser.add_argument('study', help='read the study in this folder')
    store(parser.parse_args().study)
    print(STORED)


if __name__ == '__main__':
    main()
