"""The page of all measured results in some folders: a table of all protocols, and one score against another."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from mmairl.evaluation.identity import difference, key_of
from mmairl.evaluation.protocol import Result
from mmairl.io import read_json, typed
from mmairl.report.charts import chart
from mmairl.report.figures import against
from mmairl.report.page import Page, fill
from mmairl.report.table import html_table, results_table

NAME = 'evaluation.html'
REQUIRED = {'protocol', 'config', 'subject', 'scores'}  # the keys of a result file
NetworkKey = tuple[str, ...]


class LowShot(msgspec.Struct):
    """Mean average precision by the number of positive images per class, over several samples of them."""

    mean: dict[str, float]
    std: dict[str, float]

    def text(self, count: str) -> str:
        if count not in self.mean:
            return '–'
        return f'{self.mean[count]:.1f} ± {self.std.get(count, 0):.1f}'


class NearDuplicates(msgspec.Struct):
    """Test images that are nearly identical to a training image, and pairs of pictures with their names.

    `conflicts` counts the images whose label differs from that of their twin.
    """

    images: int
    by_look: int
    by_features: int
    pairs: list[list[tuple[str, str]]]
    conflicts: int = 0
    conflict_pairs: list[list[tuple[str, str]]] = []


class Confusion(msgspec.Struct):
    """The test images of each class (rows) by predicted class (columns)."""

    classes: list[str]
    counts: list[list[int]]


class Details(msgspec.Struct):
    """The details of a result that the page shows."""

    low_shot: LowShot | None = None
    near_duplicates: NearDuplicates | None = None
    confusion: Confusion | None = None
    per_class: dict[str, float] = {}


class Record(msgspec.Struct):
    """A result file of tools/evaluate.py."""

    protocol: str
    config: str
    subject: str
    scores: dict[str, float]
    seconds: float = 0.0
    checkpoint: str | None = None
    part: str = 'student'
    details: Details = msgspec.field(default_factory=Details)
    identity: dict[str, Any] | None = None
    left_out: dict[str, int] = {}

    @property
    def data(self) -> str:
        """The data set, named after its config."""
        return Path(self.config).stem

    @property
    def weights(self) -> str:
        """The digest of the weights."""
        return (self.identity or {}).get('weights', '')

    def parts(self, *names: str) -> dict[str, Any]:
        """Return these parts of the identity."""
        identity = self.identity or {}
        return {name: identity.get(name) for name in names}

    @property
    def network(self) -> NetworkKey:
        """The key of a network: its file and part, and its weights and config, since a file can be replaced."""
        config = key_of(self.parts('network', 'asked'))
        if self.checkpoint:
            return str(Path(self.checkpoint).absolute()), self.part, self.weights, config
        return self.subject, '', self.weights, config


def records_in(*folders: str | Path) -> list[Record]:
    """Return the results of tools/evaluate.py in the folders, oldest first. Other JSON files are ignored."""
    paths = [path for folder in folders for path in Path(folder).glob('*.json') if path.is_file()]
    records = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        content = read_json(path)
        if isinstance(content, dict) and content.keys() >= REQUIRED:
            records.append(typed(content, Record, path))
    return records


Images = tuple[
    dict[str, Any], dict[NetworkKey, Result]
]  # the identity of the images, and the row of each network


def results(records: Sequence[Record]) -> list[tuple[str, str, list[Result]]]:
    """Return the tables of the page: the config's name, how its images differ from those above, and a row per network.

    A score that was measured again with other settings starts another row of its network.
    """
    names = row_names(records)
    tables: dict[str, dict[str, Images]] = {}
    settings: dict[tuple, dict[str, Any]] = {}  # of the first measurement of each score
    for record in records:
        images = record.parts('input', 'data')
        images_key = key_of(images)
        _, rows = tables.setdefault(record.data, {}).setdefault(images_key, (images, {}))
        own = record.parts('protocol')
        differs = ''
        for score in record.scores:
            first = settings.setdefault((record.data, images_key, record.network, score), own)
            differs = differs or difference(first, own)
        key = (*record.network, differs)
        rows[key] = _extended(rows.get(key), record, names[record.network], differs)
    found = []
    for name, by_images in tables.items():
        first_images, _ = next(iter(by_images.values()))
        for images, rows in by_images.values():
            differs = difference(first_images, images)
            text = f'Other images than above: {differs}.' if differs else ''
            found.append((name, text, list(rows.values())))
    return found


def _extended(row: Result | None, record: Record, name: str, differs: str) -> Result:
    """Return a row with the scores of one more record."""
    if row is None:
        row = Result(f'{name}, other {differs}' if differs else name, {}, 0.0)
    return replace(
        row,
        scores={**row.scores, **record.scores},
        seconds=row.seconds + record.seconds,
        left_out={**row.left_out, **record.left_out},
    )


def row_names(records: Sequence[Record]) -> dict[NetworkKey, str]:
    """Return the subject of each network, with its folder, weights and config as far as these make it unique."""
    names = {record.network: record.subject for record in records}
    for extend in (_with_folder, _with_weights, _with_config):
        count = Counter(names.values())
        names = {
            key: name if count[name] == 1 else extend(name, key) for key, name in names.items()
        }
    return names


def _with_folder(name: str, key: NetworkKey) -> str:
    file, part, *_ = key
    return f'{part} of {"/".join(Path(file).parts[-2:])}' if part else name


def _with_weights(name: str, key: NetworkKey) -> str:
    _, _, weights, _ = key
    return f'{name}, weights {weights[:6]}' if weights else name


def _with_config(name: str, key: NetworkKey) -> str:
    return f'{name}, config {key[-1][:6]}'


Plot = tuple[str, str]  # the scores along x and along y


def write_evaluation_page(
    folder: str | Path, plots: Sequence[Plot] = (), more: Sequence[str | Path] = ()
) -> Path:
    """Write evaluation.html into a folder.

    Args:
        folder: The folder of the results and of the page.
        plots: The pairs of scores to plot against each other.
        more: Further folders of results.

    Returns:
        The path of the page.
    """
    records = records_in(folder, *more)
    tables = results(records)
    names = row_names(records)
    page = Page(
        'Evaluation',
        'Scores in percent. The JSON files next to this page name configs and checkpoints.',
    )
    for name, text, rows in tables:
        page.add(name, text, results_table(rows))
    for name in dict.fromkeys(name for name, _, _ in tables):
        _add_low_shot(page, name, records, names)
    for record in records:
        name = names[record.network]
        if record.details.near_duplicates:
            _add_near_duplicates(page, record, name)
        if record.details.confusion:
            _add_confusion(page, record, record.details.confusion, name)
        if record.details.per_class:
            table = [(label, [f'{x:.1f}']) for label, x in record.details.per_class.items()]
            score = next(iter(record.scores))
            page.add(f'{record.data}: classes by {name}', '', html_table([score], table))
    for x, y in plots:
        _add_plot(page, x, y, [row for _, _, rows in tables for row in rows])
    return page.write(Path(folder) / NAME)


def _add_low_shot(
    page: Page, data: str, records: Sequence[Record], names: Mapping[NetworkKey, str]
) -> None:
    shots = {}
    for record in records:
        if record.data == data:
            shots[names[record.network]] = record.details.low_shot
    known = {name: shot for name, shot in shots.items() if shot}
    if known:
        text = 'Mean average precision of a linear SVM, with its standard deviation over samples of the images.'
        page.add(f'{data}: few labelled images', text, low_shot(known))


def _add_confusion(page: Page, record: Record, matrix: Confusion, name: str) -> None:
    rows = []
    for row, (label, counts) in enumerate(zip(matrix.classes, matrix.counts)):
        recognized = f'{100 * counts[row] / max(1, sum(counts)):.1f}'
        rows.append((label, [recognized, *map(str, counts)]))
    page.add(
        f'{record.data}: confusion matrix, {record.protocol} of {name}',
        'Images of each class by predicted class, and the percentage that is recognized.',
        html_table(['recognized', *matrix.classes], rows),
    )


def _add_near_duplicates(page: Page, record: Record, name: str) -> None:
    twins = record.details.near_duplicates
    page.add(
        f'{record.data}: near duplicates by {name}',
        f'{twins.images} test images are nearly the same as a training image: {twins.by_look} by their appearance '
        f'(nearly equal hashes and thumbnails), {twins.by_features} by features that are closer than chance allows. '
        'Left: the test image. Right: its twin. The least similar pairs first.',
        _pairs(twins.pairs),
    )
    if twins.conflicts:
        page.add(
            f'{record.data}: label conflicts by {name}',
            f'{twins.conflicts} of these test images have another label than their twin. They count in every score. '
            'Check the pairs: either a label is wrong, or the images differ in a detail that decides the class.',
            _pairs(twins.conflict_pairs),
        )


def _pairs(pairs: Sequence[Sequence[tuple[str, str]]]) -> Markup:
    return fill('pictures.html', pairs=pairs, neighbours=()) if pairs else Markup()


def _add_plot(page: Page, x: str, y: str, rows: Sequence[Result]) -> None:
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        scores.setdefault(row.subject, {}).update(row.scores)
    points = {
        name: (known[x], known[y]) for name, known in scores.items() if known.keys() >= {x, y}
    }
    text = (
        'Each dot is a network. The line is the least-squares fit, with the 95 % band of its mean.'
    )
    page.add(f'{y} against {x}', text, against(points, x, y))


def low_shot(shots: Mapping[str, LowShot]) -> Markup:
    """Return a chart and a table of mean average precision over the number of positive images per class."""
    series = {}
    for name, shot in shots.items():
        counts = [int(count) for count in shot.mean]
        series[name] = (counts, [*shot.mean.values()])
    drawn = chart(series, 'mAP, %', 'positive images per class', log='x', wide=True)
    columns = list(dict.fromkeys(count for shot in shots.values() for count in shot.mean))
    rows = [(name, [shot.text(count) for count in columns]) for name, shot in shots.items()]
    return drawn + html_table(columns, rows)
