"""A figure as PNG and SVG with the numbers behind it as CSV, side by side under one name."""

import csv
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from mmairl.files import replacing
from mmairl.report.figures import STYLE


def save_figure(figure: Figure, stem: str | Path) -> list[Path]:
    """Write stem.png and stem.svg on white, and return where they are."""
    paths = [Path(f'{stem}.{kind}') for kind in ('png', 'svg')]
    for path in paths:
        with replacing(path) as beside, rc_context(STYLE):
            figure.savefig(
                beside,
                format=path.suffix[1:],
                dpi=160,
                facecolor='white',
                bbox_inches='tight',
                metadata=_dateless(path),
            )
    return paths


def _dateless(path: Path) -> dict[str, None]:
    """The same figure is the same file."""
    return {'Date': None} if path.suffix == '.svg' else {}


def save_table(header: Sequence[str], rows: Sequence[Sequence[object]], stem: str | Path) -> Path:
    """Write stem.csv; floats keep seven digits and an absent number is blank."""
    path = Path(f'{stem}.csv')
    with replacing(path) as beside, beside.open('w', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([[_text(value) for value in row] for row in rows])
    return path


def _text(value: object) -> object:
    if value is None:
        return ''
    return f'{value:.7g}' if isinstance(value, float) else value
