"""The page of everything that was measured in some folders: a table of all protocols, and one score against another."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from mmairl.evaluation.protocol import Result
from mmairl.report.figures import against, lines, svg
from mmairl.report.page import Page
from mmairl.report.table import results_table

NAME = 'evaluation.html'


def records_in(*folders: str | Path) -> list[dict]:
    """What tools/evaluate.py has left in the folders, oldest first; other JSON files are passed over."""
    found = []
    for path in sorted((p for folder in folders for p in Path(folder).glob('*.json')), key=lambda p: p.stat().st_mtime):
        try:
            record = json.loads(path.read_text())
        except (ValueError, OSError):
            continue
        if isinstance(record, dict) and {'protocol', 'config', 'subject', 'scores'} <= record.keys():
            found.append(record)
    return found


def results(records: Sequence[dict]) -> dict[str, list[Result]]:
    """For each data set, named by its config, one row a network with its scores by every protocol."""
    names = row_names(records)
    tables: dict[str, dict[tuple, Result]] = {}
    for record in records:
        rows = tables.setdefault(Path(record['config']).stem, {})
        before = rows.get(network(record))
        scores = {**(before.scores if before else {}), **record['scores']}
        seconds = record['seconds'] + (before.seconds if before else 0)
        rows[network(record)] = Result(names[network(record)], scores, seconds)
    return {name: list(rows.values()) for name, rows in tables.items()}


def network(record: dict) -> tuple:
    """What tells networks apart: the file, and its weights, since another file may have been put under the name."""
    checkpoint, weights = record['checkpoint'], record.get('identity', {}).get('weights', '')
    return (str(Path(checkpoint).absolute()), record['part'], weights) if checkpoint else (record['subject'],)


def row_names(records: Sequence[dict]) -> dict[tuple, str]:
    """Each network's subject, with its folder or the beginning of its weights' digest where two would be called the same."""
    names = {network(record): record['subject'] for record in records}
    called = Counter(names.values())
    names = {
        key: name if called[name] == 1 else f'{key[1]} of {"/".join(Path(key[0]).parts[-2:])}'
        for key, name in names.items()
    }
    called = Counter(names.values())
    return {key: name if called[name] == 1 else f'{name}, weights {key[2][:6]}' for key, name in names.items()}


def write_evaluation_page(
    folder: str | Path, plots: Sequence[tuple[str, str]] = (), more: Sequence[str | Path] = ()
) -> Path:
    """Write folder/evaluation.html from the records in the folder and in `more` ones."""
    records = records_in(folder, *more)
    tables = results(records)
    lead = 'What was measured, in percent, by the configs and checkpoints named in the JSON files beside.'
    page = Page('Evaluation', lead)
    for name, rows in tables.items():
        page.add(name, '', results_table(rows))
        few = [r for r in records if Path(r['config']).stem == name and r['details'].get('low_shot')]
        if few:
            page.add(f'{name}: few labelled images', 'Mean average precision by a linear SVM.', low_shot(few))
    for number, (x, y) in enumerate(plots):
        scores: dict[str, dict[str, float]] = {}
        for row in (row for table in tables.values() for row in table):
            scores.setdefault(row.subject, {}).update(row.scores)
        points = {name: (of[x], of[y]) for name, of in scores.items() if x in of and y in of}
        text = 'Each dot is a network; the line is the least-squares fit, with the 95 % band of its mean.'
        page.add(f'{y} against {x}', text, svg(against(points, x, y), f'against-{number}'))
    return page.write(Path(folder) / NAME)


def low_shot(records: Sequence[dict]) -> Markup:
    """Mean average precision over the number of positive images a class, with the spread over samples."""
    found = {record['subject']: record['details']['low_shot'] for record in records}
    series = {name: ([*map(int, of['mean'])], [*of['mean'].values()]) for name, of in found.items()}
    errors = [[*of['std'].values()] for of in found.values()]
    axes = ('positive images a class', 'mAP, %')
    return svg(lines(series, '', *axes, log='x', wide=True, errors=errors), 'low-shot', 'mAP of few images')
