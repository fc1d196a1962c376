"""A figure as PNG and SVG with the numbers behind it as CSV, side by side under one name."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from mmairl.files import replacing, write_text
from mmairl.report.figures import STYLE


def save_figure(figure: Figure, stem: str | Path) -> list[Path]:
    """Write stem.png and stem.svg on white, and return where they are; the same figure gives the same files."""
    paths = [Path(f'{stem}.{kind}') for kind in ('png', 'svg')]
    for path in paths:
        how = {'format': path.suffix[1:], 'metadata': {'Date': None} if path.suffix == '.svg' else {}}
        with replacing(path) as beside, rc_context(STYLE):
            figure.savefig(beside, dpi=160, facecolor='white', bbox_inches='tight', **how)
    return paths


def save_table(header: Sequence[str], rows: Sequence[Sequence[object]], stem: str | Path) -> Path:
    """Write stem.csv; floats keep seven digits and an absent number is blank."""
    text = io.StringIO(newline='')
    csv.writer(text).writerows([[_cell(value) for value in row] for row in (header, *rows)])
    return write_text(f'{stem}.csv', text.getvalue())


def _cell(value: object) -> object:
    if value is None:
        return ''
    if isinstance(value, str) and value.startswith(('=', '+', '-', '@')):
        return f"'{value}"  # or a spreadsheet takes a name for a formula
    return f'{value:.7g}' if isinstance(value, float) else value
