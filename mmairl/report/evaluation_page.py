"""Write the page about all evaluation results in some folders: a table of checkpoints and scores for each set of images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmairl.evaluation.identity import key_of
from mmairl.evaluation.protocol import Result
from mmairl.io import read_json, typed
from mmairl.report.page import Page
from mmairl.report.table import Cell, Table

# A JSON file with these keys is a result file.
REQUIRED = {'protocol', 'config', 'subject', 'scores'}


@dataclass(frozen=True, kw_only=True)
class Record(Result):
    """A result file of `mmairl evaluate`: a result, the name of its protocol, and the config or folder of its images."""

    protocol: str
    config: str

    @property
    def data(self) -> str:
        """The name of the data set, which is the name of its config file."""
        return Path(self.config).stem

    @property
    def weights(self) -> str | None:
        """The digest of the weights, or the name of a baseline."""
        return self.identity.get('weights')

    def key(self, *parts: str) -> str:
        """Return the digest of some entries of the result's identity."""
        return key_of({name: self.identity.get(name) for name in parts})[:6]


def records_in(*folders: str | Path) -> list[Record]:
    """Return the results of `mmairl evaluate` in the folders, oldest first. Other JSON files are ignored."""
    paths = [path for folder in folders for path in Path(folder).glob('*.json')]
    records = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        content = read_json(path)
        if isinstance(content, dict) and content.keys() >= REQUIRED:
            records.append(typed(content, Record, path))
    return records


# These columns are not scores. They follow the scores.
STATED = ('chance', 'test images', 'image size')
FACTS = (*STATED, 'left out')
INTERVAL = ', 95 % interval'
Rows = dict[str, dict[str, Cell]]  # the scores and facts of each row, by name


def results(records: Sequence[Record]) -> dict[str, Rows]:
    """Return the scores of each row for each set of images, because scores on different images must not be mixed.

    A data set has several entries if its images were chosen or processed in several ways. A network has several rows if its
    file held several weights, or if one of its scores was measured with several settings.
    """
    first: dict[tuple[str, ...], str] = {}
    found: dict[str, Rows] = {}

    def distinct(name: str, what: str, key: str, *scope: str) -> str:
        """Return the name, with the key added if the name had another key before."""
        is_same = first.setdefault((name, what, *scope), key) == key
        return name if is_same else f'{name}, other {what} ({key})'

    for record in records:
        data = distinct(record.data, 'images', record.key('input', 'data'))
        name = distinct(record.subject, 'weights', record.key('weights'))
        name = distinct(name, 'settings', record.key('protocol'), data, *record.scores)
        row = found.setdefault(data, {}).setdefault(name, {})
        row.update(record.scores | facts_of(record))
    return found


def facts_of(result: Result) -> dict[str, Cell]:
    """Return what a reader of the scores must know: interval, chance, number and size of test images, omitted images."""
    facts: dict[str, Cell] = {}
    if interval := result.details.get('interval'):
        facts[next(iter(result.scores)) + INTERVAL] = '{:.1f} to {:.1f}'.format(*interval)
    facts |= stated_facts(result.details)
    if result.left_out:
        facts['left out'] = ', '.join(f'{count} {name}' for name, count in result.left_out.items())
    return facts


def stated_facts(details: Mapping[str, Any]) -> dict[str, str]:
    """Return what the details of a result state about its test images, as text."""
    facts = {}
    if 'chance' in details:
        facts['chance'] = f'{details["chance"]:.1f}'
    if 'test_images' in details:
        facts['test images'] = f'{details["test_images"]:,}'
        facts['image size'] = ' x '.join(map(str, details['image_size']))
    return facts


def scores_table(rows: Rows) -> Table:
    """Return a table of scores with a row for each network. Facts about the measurement follow the scores."""
    names = dict.fromkeys(name for known in rows.values() for name in known)
    # Scores come first, then their intervals, then facts.
    columns = sorted(names, key=lambda name: (name in FACTS, INTERVAL in name))
    scores = [name for name in names if name not in FACTS and INTERVAL not in name]
    cells = [[row, *map(known.get, columns)] for row, known in rows.items()]
    return Table(['network', *columns], cells, scores=scores)


def results_table(results: Sequence[Result]) -> Table:
    """Return a table of results with a row for each network."""
    rows: Rows = {}
    for result in results:
        rows.setdefault(result.subject, {}).update(result.scores | facts_of(result))
    return scores_table(rows)


def write_evaluation_page(folder: str | Path, more: Sequence[str | Path] = ()) -> Path:
    """Write evaluation.html, the page about evaluation results, to a folder.

    Args:
        folder: The folder for the page. Results in it are shown on the page.
        more: Further folders of results.

    Returns:
        The path of the page.
    """
    records = records_in(folder, *more)
    page = Page('Evaluation', 'Scores are in percent unless their name states another unit.')
    for data, rows in results(records).items():
        page.add(data, '', scores_table(rows).html(), 'A star marks the best value of a column.')
    for record in records:
        if confusion := record.details.get('confusion'):
            rows = [[label, *row] for label, row in zip(confusion['classes'], confusion['counts'])]
            page.add(
                f'{record.data}, {record.protocol} of {record.subject}',
                'Test images by class (rows) and predicted class (columns).',
                Table(['class', *confusion['classes']], rows).html(),
                folded=True,
            )
    return page.write(Path(folder) / 'evaluation.html')
