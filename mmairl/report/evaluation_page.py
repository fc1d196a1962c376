"""Write the page about all evaluation results in some folders, with tables of scores and plots of one score against another."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any

import msgspec
from markupsafe import Markup

from mmairl.evaluation.identity import difference, key_of
from mmairl.evaluation.protocol import WATCHED, Result
from mmairl.io import read_json, typed
from mmairl.report.charts import chart
from mmairl.report.figures import against
from mmairl.report.page import write_page
from mmairl.report.table import Row, html_table, results_table

NAME = 'evaluation.html'
# A JSON file with these keys is a result file.
REQUIRED = {'protocol', 'config', 'subject', 'scores'}
Count = Annotated[str, msgspec.Meta(pattern=r'^[1-9][0-9]{0,8}$')]


@dataclass(frozen=True)
class EvaluatedNetwork:
    """The key that identifies an evaluated network.

    It includes the weights and the config in addition to the file, because another checkpoint may replace the file.

    Args:
        file: The checkpoint; '' if there is none.
        part: 'student' or 'teacher'; '' without a checkpoint.
        weights: The digest of the weights.
        config: The digest of the network's config.
        subject: The name of a baseline, which has no checkpoint; '' otherwise.
    """

    file: str
    part: str
    weights: str
    config: str
    subject: str

    def names(self, subject: str) -> list[str]:
        """Return possible names for the network, from the short name `subject` to longer names.

        The longer names add the folder, then the weights, then the config.
        """
        names = [subject]
        if self.file:
            watched = WATCHED if subject.endswith(WATCHED) else ''
            names.append(f'{self.part} of {"/".join(Path(self.file).parts[-2:])}{watched}')
        if self.weights:
            names.append(f'{names[-1]}, weights {self.weights[:6]}')
        return [*names, f'{names[-1]}, config {self.config[:6]}']


class LowShot(msgspec.Struct):
    """The mAP of classifiers trained on few images, by the number of positive images per class.

    `mean` and `std` are the mean and the standard deviation over several random training sets.
    """

    mean: dict[Count, float]
    std: dict[Count, float]

    def text(self, count: str) -> str:
        if count not in self.mean:
            return '–'
        return f'{self.mean[count]:.1f} ± {self.std.get(count, 0):.1f}'


class NearDuplicates(msgspec.Struct):
    """Test images that are nearly identical to a training image.

    A pair of pictures shows a test image and the similar training image, with their names. `conflicts` is the number of test
    images whose label differs from the label of the similar training image.
    """

    images: int
    by_look: int
    by_features: int
    pairs: list[list[tuple[str, str]]]
    conflicts: int = 0
    conflict_pairs: list[list[tuple[str, str]]] = []


class Confusion(msgspec.Struct):
    """A confusion matrix: the number of test images by true class (rows) and predicted class (columns)."""

    classes: list[str]
    counts: list[list[int]]

    def __post_init__(self) -> None:
        if {len(self.counts), *map(len, self.counts)} != {len(self.classes)}:
            raise ValueError('expected a count for each pair of classes')

    def rows(self) -> list[Row]:
        """Return a row for each class, with the percentage of correctly classified images and the counts."""
        rows = []
        for place, (label, counts) in enumerate(zip(self.classes, self.counts)):
            recognized = f'{100 * counts[place] / max(1, sum(counts)):.1f}'
            rows.append((label, [recognized, *map(str, counts)]))
        return rows


class Details(msgspec.Struct):
    """The details of a result that the page shows."""

    low_shot: LowShot | None = None
    near_duplicates: NearDuplicates | None = None
    confusion: Confusion | None = None
    per_class: dict[str, float] = {}


class Record(msgspec.Struct):
    """A result file of tools/evaluate.py. Its `identity` lists the inputs on which its scores depend."""

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
        """The name of the data set, which is the name of its config file."""
        return Path(self.config).stem

    @property
    def weights(self) -> str:
        """The digest of the network's weights, '' if unknown."""
        return str((self.identity or {}).get('weights', ''))

    def parts(self, *names: str) -> dict[str, Any]:
        """Return the given entries of the result's identity. The value of an absent entry is None."""
        identity = self.identity or {}
        return {name: identity.get(name) for name in names}

    @property
    def network(self) -> EvaluatedNetwork:
        config = key_of(self.parts('network', 'asked'))
        file = str(Path(self.checkpoint).absolute()) if self.checkpoint else ''
        subject = '' if file else self.subject
        return EvaluatedNetwork(file, self.part if file else '', self.weights, config, subject)


def records_in(*folders: str | Path) -> list[Record]:
    """Return the results of tools/evaluate.py in the folders, oldest first. Other JSON files are ignored."""
    paths: list[Path] = []
    for folder in folders:
        paths += filter(Path.is_file, Path(folder).glob('*.json'))
    records = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        content = read_json(path)
        if isinstance(content, dict) and content.keys() >= REQUIRED:
            records.append(typed(content, Record, path))
    return records


# The data set, a text on how the images differ from those of the first table for this data set, and the rows.
Table = tuple[str, str, list[Result]]


def results(records: Sequence[Record]) -> list[Table]:
    """Return a table for each set of images on which scores were measured.

    A data set has several tables if its images were chosen or processed in several ways. A network has several rows if one of
    its scores was measured with several settings.
    """
    names = row_names(records)
    images_of: dict[str, dict[str, Any]] = {}  # identity of the images, by data set and key
    rows: dict[tuple, dict[tuple, Result]] = {}  # rows, by (data set, key of the images)
    settings: dict[tuple, dict[str, Any]] = {}  # settings with which each score was measured first
    for record in records:
        images = record.parts('input', 'data')
        key = key_of(images)
        images_of.setdefault(record.data, {}).setdefault(key, images)
        table = rows.setdefault((record.data, key), {})
        own = record.parts('protocol')
        differs = ''
        for score in record.scores:
            first = settings.setdefault((record.data, key, record.network, score), own)
            differs = differs or difference(first, own)
        name = names[record.network] + (f', other {differs}' if differs else '')
        row = table.get((record.network, differs), Result(name, {}, 0.0))
        table[record.network, differs] = replace(
            row,
            scores={**row.scores, **record.scores},
            seconds=row.seconds + record.seconds,
            left_out={**row.left_out, **record.left_out},
        )
    tables = []
    for data, by_key in images_of.items():
        first = next(iter(by_key.values()))
        for key, images in by_key.items():
            differs = difference(first, images)
            text = (
                f'The images of this table differ from those of the first table for this data set: {differs}.'
                if differs
                else ''
            )
            tables.append((data, text, list(rows[data, key].values())))
    return tables


def row_names(records: Sequence[Record]) -> dict[EvaluatedNetwork, str]:
    """Return a name for each network. The folder, the weights and the config are added only to names that are not unique."""
    choices = {record.network: record.network.names(record.subject) for record in records}
    names = {network: names[0] for network, names in choices.items()}
    for length in range(1, 4):
        count = Counter(names.values())
        for network, longer in choices.items():
            if count[names[network]] > 1:
                names[network] = longer[min(length, len(longer) - 1)]
    return names


Plot = tuple[str, str]  # the names of the scores on the x axis and on the y axis


def write_evaluation_page(
    folder: str | Path, plots: Sequence[Plot] = (), more: Sequence[str | Path] = ()
) -> Path:
    """Write evaluation.html, the page about evaluation results, to a folder.

    Args:
        folder: The folder for the page. Results in it are shown on the page.
        plots: Pairs of scores to plot against each other, each as (score on the x axis, score on the y axis).
        more: Further folders of results.

    Returns:
        The path of the page.
    """
    records = records_in(folder, *more)
    tables = results(records)
    names = row_names(records)
    shots: dict[str, dict[str, LowShot]] = {}
    for record in records:
        if record.details.low_shot:
            own = shots.setdefault(record.data, {})
            own[names[record.network]] = record.details.low_shot
    return write_page(
        Path(folder) / NAME,
        'evaluation.html',
        title='Evaluation',
        lead=f'{_best_score(tables)} Scores are in percent unless their protocol has another unit.',
        tables=[(data, text, results_table(rows)) for data, text, rows in tables],
        low_shots=[(data, low_shot(by_name)) for data, by_name in shots.items()],
        records=[(record, record.details, names[record.network]) for record in records],
        plots=[(x, y, score_plot(tables, x, y)) for x, y in plots],
    )


def _best_score(tables: Sequence[Table]) -> str:
    """Return a sentence with the highest value of the first score and the network that has it."""
    for data, _, rows in tables:
        name = next(iter(rows[0].scores), '')
        best = max(rows, key=lambda row: row.scores.get(name, -inf))
        if name:
            return f'Highest {name} on {data}: {best.scores[name]:.1f} ({best.subject}).'
    return 'No result has a score.'


def score_plot(tables: Sequence[Table], x: str, y: str) -> Markup:
    """Return a chart with a dot for each network that has both scores. The scores may be from different data sets."""
    scores: dict[str, dict[str, float]] = {}
    for _, _, rows in tables:
        for row in rows:
            scores.setdefault(row.subject, {}).update(row.scores)
    points = {}
    for name, own in scores.items():
        if x in own and y in own:
            points[name] = (own[x], own[y])
    return against(points, x, y)


def low_shot(shots: Mapping[str, LowShot]) -> Markup:
    """Return a chart and a table of the mean average precision for each number of positive images per class."""
    series = {}
    for name, shot in shots.items():
        counts = [int(count) for count in shot.mean]
        series[name] = (counts, [*shot.mean.values()])
    drawn = chart(series, 'mAP, %', 'positive images per class', log='x', wide=True)
    columns: dict[str, float] = {}
    for shot in shots.values():
        columns |= shot.mean
    rows = []
    for name, shot in shots.items():
        rows.append((name, [shot.text(count) for count in columns]))
    return drawn + html_table(columns, rows)
