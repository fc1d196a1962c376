"""Write the page about all evaluation results in some folders: a table of checkpoints and scores for each set of images."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mmairl.errors import UserError
from mmairl.evaluation.identity import key_of
from mmairl.evaluation.metrics import higher_is_better
from mmairl.evaluation.protocol import Result
from mmairl.io import read_json, typed
from mmairl.report.figures import embedded, scatter
from mmairl.report.page import Page
from mmairl.report.table import Cell, Table

NAME = 'evaluation.html'
# A JSON file with these keys is a result file.
REQUIRED = {'protocol', 'config', 'subject', 'scores'}


class Record(msgspec.Struct):
    """A result file of `mmairl evaluate`. Its `identity` lists the inputs on which its scores depend."""

    protocol: str
    config: str
    subject: str
    scores: dict[str, float]
    seconds: float = 0.0
    checkpoint: str | None = None
    part: str = 'student'
    details: dict[str, Any] = {}
    identity: dict[str, Any] | None = None
    left_out: dict[str, int] = {}

    @property
    def data(self) -> str:
        """The name of the data set, which is the name of its config file."""
        return Path(self.config).stem

    def key(self, *parts: str) -> str:
        """Return the digest of some entries of the result's identity."""
        return key_of({name: (self.identity or {}).get(name) for name in parts})[:6]

    @property
    def network(self) -> tuple[str, str]:
        """What identifies the network: another checkpoint may replace the file, so the key includes the weights."""
        return self.subject, str((self.identity or {}).get('weights') or self.checkpoint)


def records_in(*folders: str | Path) -> list[Record]:
    """Return the results of `mmairl evaluate` in the folders, oldest first. Other JSON files are ignored."""
    paths: list[Path] = []
    for folder in folders:
        paths += filter(Path.is_file, Path(folder).glob('*.json'))
    records = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        content = read_json(path)
        if isinstance(content, dict) and content.keys() >= REQUIRED:
            records.append(typed(content, Record, path))
    return records


# These columns are not scores. They follow the scores.
FACTS = ('chance', 'test images', 'image size', 'seconds', 'left out')
INTERVAL = ', 95 % interval'
Rows = dict[str, dict[str, Cell]]  # the scores and facts of each row, by name


def results(records: Sequence[Record]) -> dict[str, Rows]:
    """Return the scores of each row for each set of images, because scores on different images must not be mixed.

    A data set has several entries if its images were chosen or processed in several ways. A network has several rows if one
    of its scores was measured with several settings.
    """
    subjects = Counter(subject for subject, _ in {record.network for record in records})
    first: dict[
        tuple, str
    ] = {}  # the images of a data set, and the settings of a score, that were seen first
    found: dict[str, Rows] = {}
    for record in records:
        title = record.data
        images = record.key('input', 'data')
        if first.setdefault((title,), images) != images:
            title += f', other images ({images})'
        name, weights = record.network
        if subjects[name] > 1:
            name += f', weights {weights[:6]}'
        settings = record.key('protocol')
        if first.setdefault((title, name, *record.scores), settings) != settings:
            name += f', other settings ({settings})'
        found.setdefault(title, {}).setdefault(name, {}).update(record.scores | facts_of(record))
    return found


def facts_of(result: Result | Record) -> dict[str, Cell]:
    """Return what a reader of the scores must know: interval, chance, number and size of test images, omitted images."""
    details = result.details
    facts: dict[str, Cell] = {}
    if 'interval' in details:
        low, high = details['interval']
        facts[next(iter(result.scores)) + INTERVAL] = f'{low:.1f} to {high:.1f}'
    if 'chance' in details:
        facts['chance'] = details['chance']
    if 'test_images' in details:
        facts['test images'] = f'{details["test_images"]:,}'
    if 'image_size' in details:
        facts['image size'] = ' x '.join(map(str, details['image_size']))
    if result.left_out:
        facts['left out'] = ', '.join(f'{count} {name}' for name, count in result.left_out.items())
    return facts


def scores_table(rows: Rows) -> Table:
    """Return a table of scores with a row for each network. Facts about the measurement follow the scores."""
    names = dict.fromkeys(name for known in rows.values() for name in known)
    scores = [name for name in names if name not in FACTS and not name.endswith(INTERVAL)]
    intervals = [name for name in names if name.endswith(INTERVAL)]
    columns = [*scores, *intervals, *(name for name in FACTS if name in names)]
    cells = [[row, *(known.get(name) for name in columns)] for row, known in rows.items()]
    bars = [*filter(higher_is_better, scores)]
    return Table(['network', *columns], cells, scores=scores, bars=bars)


def results_table(results: Sequence[Result]) -> Table:
    """Return a table of results, with the seconds of each measurement."""
    rows: Rows = {}
    for result in results:
        row = rows.setdefault(result.subject, {'seconds': 0.0})
        seconds = row['seconds'] + result.seconds
        row.update(result.scores | facts_of(result), seconds=seconds)
    return scores_table(rows)


Plot = tuple[str, str]  # the names of the scores on the x axis and on the y axis


def write_evaluation_page(
    folder: str | Path, plots: Sequence[Plot] = (), more: Sequence[str | Path] = ()
) -> Path:
    """Write evaluation.html, the page about evaluation results, to a folder.

    Args:
        folder: The folder for the page. Results in it are shown on the page.
        plots: Pairs of scores to plot against each other, each as (score on the x axis, score on the y axis). The name of a
            score is 'DATA: SCORE'.
        more: Further folders of results.

    Returns:
        The path of the page.
    """
    records = records_in(folder, *more)
    found = results(records)
    page = Page('Evaluation', 'Scores are in percent unless their name states another unit.')
    for data, rows in found.items():
        page.add(data, '', scores_table(rows).html(), 'A star marks the best value of a column.')
    for x, y in plots:
        _add_plot(page, found, x, y)
    for record in records:
        _add_details(page, record)
    return page.write(Path(folder) / NAME)


def _add_plot(page: Page, found: Mapping[str, Rows], x: str, y: str) -> None:
    """Add a plot of one score against another, with a fitted line and the correlation (Huang et al. 2022, Fig. 4)."""
    scores: dict[str, dict[str, float]] = {}  # by score and row
    for data, rows in found.items():
        for row, known in rows.items():
            for name, value in known.items():
                scores.setdefault(f'{data}: {name}', {})[row] = value
    if unknown := {x, y} - scores.keys():
        raise UserError(
            f"--plot: no such score ('{unknown.pop()}'); choose among {', '.join(scores)}",
            code='unknown-score',
        )
    points = {row: (scores[x][row], scores[y][row]) for row in scores[x] if row in scores[y]}
    text = f'{len(points)} networks.'
    if len(points) > 2:
        correlation = np.corrcoef([*points.values()], rowvar=False)[0, 1]
        text = f'The correlation over {len(points)} networks is {correlation:.2f}.'
    figure = scatter(points, y, x)
    page.add(f'{y} against {x}', text, embedded(figure, f'{y} against {x}. {text}'))


def _add_details(page: Page, record: Record) -> None:
    """Add the confusion matrix and the scores of single classes."""
    tables = {}
    if confusion := record.details.get('confusion'):
        rows = [
            [label, *counts] for label, counts in zip(confusion['classes'], confusion['counts'])
        ]
        tables['test images by class (rows) and predicted class (columns)'] = (
            ['class', *confusion['classes']],
            rows,
        )
    if per_class := record.details.get('per_class'):
        tables['score of each class'] = ['class', next(iter(record.scores))], [*per_class.items()]
    for text, table in tables.items():
        heading = f'{record.data}, {record.protocol} of {record.subject}'
        page.add(heading, text, Table(*table).html(), folded=True)
