"""Write the page of projects.worth: whether pre-training on custom images pays, for readers who know no statistics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mmairl.report.charts import chart
from mmairl.report.page import ENVIRONMENT, macro, write_page
from mmairl.report.sections import Picture
from mmairl.report.table import html_table

CURVE = ('accuracy', 'low', 'high')
ENVIRONMENT.loader.searchpath.append(str(Path(__file__).with_name('templates')))


def write_worth_page(record: Mapping[str, Any], path: Path) -> Path:
    """Write the page: the answer, the learning curves, the cost in labels and time, and the method."""
    head, _, details = record['answer'].partition(': ')
    candidates = record['candidates']
    curves = {
        name: (record['labels'], *(candidate[key] for key in CURVE))
        for name, candidate in candidates.items()
    }
    columns = [*(f'{labels:.0f} per class' for labels in record['labels']), 'minutes of training']
    rows = []
    for name, candidate in candidates.items():
        scores = [
            f'{mean:.0f} [{low:.0f}, {high:.0f}]'
            for mean, low, high in zip(*(candidate[key] for key in CURVE))
        ]
        rows.append(
            (name, [*scores, f'{candidate["seconds"] / 60:.1f}' if 'seconds' in candidate else '–'])
        )
    training = f'Own pre-training: {record["training"]["text"]}.'
    remarks = ''.join(f' {remark[0].upper()}{remark[1:]}.' for remark in record['remarks'])
    place = f'{training}{remarks} The network of {record["own"]}: {candidates[record["own"]]["checkpoint"]}'
    return write_page(
        path,
        'does_it_pay.html',
        title=f'{head}.',
        lead=f'{details[0].upper()}{details[1:]}',
        record=record,
        curves=chart(curves, 'recognized, %', 'labels of each class', log='x', wide=True),
        saving=saving(record),
        table=html_table(columns, rows),
        place=place,
        twins=_grid(record['pairs']),
        conflicts=_grid(record['conflict_pairs'] if record['conflicts'] else []),
    )


def _grid(rows: Sequence[Sequence[Picture]]) -> Markup | str:
    return macro('pictures.html', 'grid', rows) if rows else ''


def saving(record: Mapping[str, Any]) -> str:
    """Return a sentence on how many labels the best pre-training saves."""
    own_labels, (other_labels, low, high) = record['saved']['labels'], record['saved']['instead_of']
    maximum = f'more than {record["labels"][-1]:.0f}'
    other_labels, low, high = (
        maximum if end is None else f'{end:.0f}' for end in (other_labels, low, high)
    )
    beginning = (
        f'With {own_labels:.0f} label{"s" * (own_labels > 1)} of each class, {record["own"]}'
    )
    return f'{beginning} recognizes as many images as {record["best"]} with {other_labels} (95 % interval {low} to {high}).'
