"""The page of everything that was measured in one folder: a table of all protocols, and one score against another."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context

from mmairl.evaluation.protocol import Result
from mmairl.report.figures import ACCENT, INK, QUIET, STYLE, new_axes, svg
from mmairl.report.page import Page
from mmairl.report.table import html_table

NAME = 'evaluation.html'


def records_in(*folders: str | Path) -> list[dict]:
    """What tools/evaluate.py has left in the folders, oldest first; other JSON files are passed over."""
    found = []
    for path in sorted((p for folder in folders for p in Path(folder).glob('*.json')), key=lambda p: p.stat().st_mtime):
        record = json.loads(path.read_text())
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
    """What tells networks apart: two files of one name in different folders are two."""
    checkpoint = record['checkpoint']
    return (str(Path(checkpoint).absolute()), record['part']) if checkpoint else (record['subject'],)


def row_names(records: Sequence[dict]) -> dict[tuple, str]:
    """Each network's subject, with its folder where two networks would be called the same."""
    subjects = {network(record): record['subject'] for record in records}
    called = Counter(subjects.values())
    return {
        key: name if called[name] == 1 else f'{key[1]} of {"/".join(Path(key[0]).parts[-2:])}'
        for key, name in subjects.items()
    }


def write_page(folder: str | Path, plots: Sequence[tuple[str, str]] = (), more: Sequence[str | Path] = ()) -> Path:
    """Write folder/evaluation.html from the records in the folder and in `more` ones."""
    tables = results(records_in(folder, *more))
    page = Page(
        'Evaluation', 'What was measured, in percent, by the configs and checkpoints named in the JSON files beside.'
    )
    for name, rows in tables.items():
        page.add(name, '', html_table(rows))
        low_shots = [
            r for r in records_in(folder, *more) if Path(r['config']).stem == name and r['details'].get('low_shot')
        ]
        if low_shots:
            page.add(
                f'{name}: few labelled images', 'Mean average precision by a linear SVM.', low_shot_lines(low_shots)
            )
    for x, y in plots:
        rows = [row for table in tables.values() for row in table]
        page.add(f'{y} against {x}', 'Each dot is a network; the line is the least-squares fit.', against(rows, x, y))
    return page.write(Path(folder) / NAME)


def against(rows: Sequence[Result], x: str, y: str) -> str:
    """One score over another, a dot a subject that has both (Fig. 4's form), with the correlation."""
    merged: dict[str, dict[str, float]] = {}
    for row in rows:
        merged.setdefault(row.subject, {}).update(row.scores)
    both = {name: (scores[x], scores[y]) for name, scores in merged.items() if x in scores and y in scores}
    with rc_context(STYLE):
        axes = new_axes(7.6, 4.2)
        for name, point in both.items():
            axes.scatter(*point, color=ACCENT, s=36)
            axes.annotate(name, point, xytext=(6, 4), textcoords='offset points', fontsize=9, color=INK)
        axes.set(xlabel=f'{x}, %', ylabel=f'{y}, %')
        if len(both) > 2:
            xs, ys = np.array(list(both.values())).T
            slope, start = np.polyfit(xs, ys, 1)
            ends = np.array([xs.min(), xs.max()])
            axes.plot(ends, slope * ends + start, color=QUIET, linewidth=1.2)
            axes.set_title(f'correlation {np.corrcoef(xs, ys)[0, 1]:.2f} over {len(both)} networks')
        return svg(axes.figure, 'against')


def low_shot_lines(records: Sequence[dict]) -> str:
    """Mean average precision over the number of positive images a class, with the spread over samples."""
    with rc_context(STYLE):
        axes = new_axes(7.6, 3.4)
        for record in records:
            mean, std = (record['details']['low_shot'][name] for name in ('mean', 'std'))
            shots = [int(k) for k in mean]
            axes.errorbar(
                shots, list(mean.values()), list(std.values()), marker='o', capsize=3, label=record['subject']
            )
        axes.set_xscale('log', base=2)
        axes.set(xlabel='positive images a class', ylabel='mAP, %')
        axes.legend(fontsize=10)
        return svg(axes.figure, 'low-shot')
