"""The page of `mmairl.worth`: whether own pre-training pays, for readers without statistics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmairl.report.charts import chart
from mmairl.report.page import Page
from mmairl.report.table import html_table

CURVE = ('accuracy', 'low', 'high')


def write_worth_page(record: Mapping[str, Any], path: Path) -> Path:
    """Write the page: the answer, the learning curves, what labels and time cost, and how it was found."""
    head, _, rest = record['answer'].partition(': ')
    page, split, found = Page(f'{head}.', f'{rest[0].upper()}{rest[1:]}'), record['split'], record['candidates']
    curves = {name: (record['labels'], *(of[key] for key in CURVE)) for name, of in found.items()}
    page.add(
        'How many of 100 new images are recognised?',
        'A line that lies higher needs fewer labels. The bands are 95 % intervals: how far other draws of as many labels and '
        'other test images could move a line.',
        chart(curves, 'recognised, %', 'labels of each class', log='x', wide=True),
        f'Chance is {100 / split["classes"]:.0f} %. Each class counts the same.',
    )
    columns = [*(f'{labels:.0f} a class' for labels in record['labels']), 'minutes of training']
    rows = []
    for name, of in found.items():
        scores = [f'{mean:.0f} [{low:.0f}, {high:.0f}]' for mean, low, high in zip(*(of[key] for key in CURVE))]
        rows.append((name, [*scores, f'{of["seconds"] / 60:.1f}' if 'seconds' in of else '–']))
    place = f'The network of {record["own"]}: {found[record["own"]]["checkpoint"]}'
    page.add('What it saves and costs', saving(record), html_table(columns, rows), place)
    page.add(
        'What was split how',
        f'Of {split["images"]:,} images, {split["learned_from"] + split["tested_on"]:,} have labels, of {split["classes"]} '
        f'classes. Half of each class, {split["tested_on"]:,}, were put aside to test on, and the own pre-training saw the '
        f'{split["pretrained_on"]:,} others alone. The labels to learn from were drawn {split["draws"]} times from the other '
        'half, the same ones for every line, by the same classifier: ridge regression on the features. '
        f'Test images that look like one to learn from: {record["look_alikes"]}, left out.',
    )
    page.add(
        'When it says so',
        'Own pre-training pays if it is better, with all labels, than everything that needs no training. It does not if it '
        f'is surely less than {record["margin"]:g} points better than one of these. If neither is sure, it is not decided. '
        'Either answer is wrong in at most 5 of 100 such studies: one-sided t-tests that count other labels and other test '
        'images, with Holm’s correction for several own pre-trainings, and Bonferroni’s for several to keep.',
    )
    return page.write(path)


def saving(record: Mapping[str, Any]) -> str:
    """Return in a sentence how many labels the leading own pre-training saves."""
    few, (many, low, high) = record['saved']['labels'], record['saved']['instead_of']
    own, best, most = record['own'], record['best'], record['labels'][-1]
    ends = ' to '.join(f'{end:.0f}' if end else f'more than {most:.0f}' for end in (low, high))
    with_few = f'With {few:.0f} label{"s" * (few > 1)} of each class, {own}'
    if many is None:
        return f'{with_few} is better than {best} with all {most:.0f}.'
    return f'{with_few} recognises as many as {best} with {many:.0f} (95 % interval {ends}).'
