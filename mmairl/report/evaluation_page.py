"""The page of all measured results in some folders: a table of all protocols, and plots of one score against another."""

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
REQUIRED = {'protocol', 'config', 'subject', 'scores'}  # the keys of a result file
Count = Annotated[str, msgspec.Meta(pattern=r'^[1-9][0-9]{0,8}$')]


@dataclass(frozen=True)
class EvaluatedNetwork:
    """The key of a network: file and part, and also weights and config, since the file may be replaced.

    Args:
        file: The checkpoint; '' if there is none.
        part: Student or teacher.
        weights: The digest of the weights.
        config: The digest of the network's config.
        subject: The name of a network without a checkpoint.
    """

    file: str
    part: str
    weights: str
    config: str
    subject: str

    def names(self, subject: str) -> list[str]:
        """Return a name, followed by longer ones with the folder, the weights and the config."""
        names = [subject]
        if self.file:
            watched = WATCHED if subject.endswith(WATCHED) else ''
            names.append(f'{self.part} of {"/".join(Path(self.file).parts[-2:])}{watched}')
        if self.weights:
            names.append(f'{names[-1]}, weights {self.weights[:6]}')
        return [*names, f'{names[-1]}, config {self.config[:6]}']


class LowShot(msgspec.Struct):
    """Mean average precision by the number of positive images per class, over several random draws of these images."""

    mean: dict[Count, float]
    std: dict[Count, float]

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

    def __post_init__(self) -> None:
        if {len(self.counts), *map(len, self.counts)} != {len(self.classes)}:
            raise ValueError('expected a count for each pair of classes')

    def rows(self) -> list[Row]:
        """Return the percentage that is recognized and the counts of each class."""
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
        return str((self.identity or {}).get('weights', ''))

    def parts(self, *names: str) -> dict[str, Any]:
        """Return the entries of the identity with these names, or None for each that is absent."""
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


Table = tuple[str, str, list[Result]]  # data set, how its images differ, and rows


def results(records: Sequence[Record]) -> list[Table]:
    """Return a table for each set of images: the name of the config, how the images differ from its first table, and rows.

    If a score was measured again with other settings, its network has another row.
    """
    names = row_names(records)
    images_of: dict[str, dict[str, Any]] = {}  # data set -> key -> identity of the images
    rows: dict[tuple, dict[tuple, Result]] = {}  # (data set, key of the images) -> rows
    settings: dict[tuple, dict[str, Any]] = {}  # settings of the first measurement of each score
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
            text = f'The images differ from those of the table above: {differs}.' if differs else ''
            tables.append((data, text, list(rows[data, key].values())))
    return tables


def row_names(records: Sequence[Record]) -> dict[EvaluatedNetwork, str]:
    """Return the name of each network. Folder, weights and config are added only where the name is not unique."""
    choices = {record.network: record.network.names(record.subject) for record in records}
    names = {network: names[0] for network, names in choices.items()}
    for length in range(1, 4):
        count = Counter(names.values())
        for network, longer in choices.items():
            if count[names[network]] > 1:
                names[network] = longer[min(length, len(longer) - 1)]
    return names


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
    shots: dict[str, dict[str, LowShot]] = {}
    for record in records:
        if record.details.low_shot:
            own = shots.setdefault(record.data, {})
            own[names[record.network]] = record.details.low_shot
    return write_page(
        Path(folder) / NAME,
        'evaluation.html',
        title='Evaluation',
        lead=f'{_best_score(tables)} Scores are in percent.',
        tables=[(data, text, results_table(rows)) for data, text, rows in tables],
        low_shots=[(data, low_shot(by_name)) for data, by_name in shots.items()],
        records=[(record, record.details, names[record.network]) for record in records],
        plots=[(x, y, score_plot(tables, x, y)) for x, y in plots],
    )


def _best_score(tables: Sequence[Table]) -> str:
    """Return the highest value of the first score, and which network has it."""
    for data, _, rows in tables:
        name = next(iter(rows[0].scores), '')
        best = max(rows, key=lambda row: row.scores.get(name, -inf))
        if name:
            return f'Highest {name} on {data}: {best.scores[name]:.1f} ({best.subject}).'
    return 'No result has a score.'


def score_plot(tables: Sequence[Table], x: str, y: str) -> Markup:
    """Return a chart with a mark for each network that has both scores, on whatever data."""
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
    """Return a chart and a table of mean average precision over the number of positive images per class."""
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
