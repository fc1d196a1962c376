"""The page of everything that was measured in some folders: a table of all protocols, and one score against another."""

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


class LowShot(msgspec.Struct):
    """Mean average precision by the number of positive images a class, over several samples of them."""

    mean: dict[str, float]
    std: dict[str, float]

    def text(self, count: str) -> str:
        return f'{self.mean[count]:.1f} ± {self.std.get(count, 0):.1f}' if count in self.mean else '–'


class NearDuplicates(msgspec.Struct):
    """Test images that a training image is nearly the same as, and pairs of them: a picture and a name each."""

    images: int
    by_look: int
    by_features: int
    pairs: list[list[tuple[str, str]]]
    conflicts: int = 0  # of these images, those with another label than their twin
    conflict_pairs: list[list[tuple[str, str]]] = []


class Details(msgspec.Struct):
    """The details of a result that are shown."""

    low_shot: LowShot | None = None
    near_duplicates: NearDuplicates | None = None


class Record(msgspec.Struct):
    """A result as tools/evaluate.py leaves it."""

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
        """The data set, named by its config."""
        return Path(self.config).stem

    @property
    def weights(self) -> str:
        """The digest of the network's weights."""
        return (self.identity or {}).get('weights', '')

    def parts(self, *names: str) -> dict[str, Any]:
        """Return these parts of the identity."""
        return {name: (self.identity or {}).get(name) for name in names}

    @property
    def network(self) -> tuple[str, ...]:
        """The key of a network: its file, and its weights and config, since others may have been put under the name."""
        file = (str(Path(self.checkpoint).absolute()), self.part) if self.checkpoint else (self.subject, '')
        return (*file, self.weights, key_of(self.parts('network', 'asked')))


def records_in(*folders: str | Path) -> list[Record]:
    """Return what tools/evaluate.py has left in the folders, oldest first; other JSON files are passed over."""
    paths = [path for folder in folders for path in Path(folder).glob('*.json') if path.is_file()]
    contents = {path: read_json(path) for path in sorted(paths, key=lambda path: path.stat().st_mtime)}
    keys = {'protocol', 'config', 'subject', 'scores'}
    kept = {path: content for path, content in contents.items() if isinstance(content, dict) and keys <= content.keys()}
    return [typed(content, Record, path) for path, content in kept.items()]


def results(records: Sequence[Record]) -> list[tuple[str, str, list[Result]]]:
    """For each data set its config's name, how its images differ from others of that name, and a row for each network.

    A score that was measured again by other settings begins another row of its network.
    """
    names, tables, settings = row_names(records), {}, {}
    for record in records:
        images, own = record.parts('input', 'data'), record.parts('protocol')
        rows = tables.setdefault(record.data, {}).setdefault(key_of(images), (images, {}))[1]
        first = [settings.setdefault((id(rows), record.network, score), own) for score in record.scores]
        differs = next(filter(None, (difference(other, own) for other in first)), '')
        key = (*record.network, differs)
        before = rows.get(key, Result(names[record.network] + (f', other {differs}' if differs else ''), {}, 0.0))
        rows[key] = replace(
            before,
            scores={**before.scores, **record.scores},
            seconds=before.seconds + record.seconds,
            left_out={**before.left_out, **record.left_out},
        )
    by_images = []
    for name, of_config in tables.items():
        first = next(iter(of_config.values()))[0]
        for images, rows in of_config.values():
            differs = difference(first, images)
            by_images.append((name, f'Other images than above: {differs}.' if differs else '', list(rows.values())))
    return by_images


def row_names(records: Sequence[Record]) -> dict[tuple, str]:
    """Each network's subject, with its folder and the digests of weights and config where two would be called the same."""
    names = {record.network: record.subject for record in records}
    for more in (
        lambda name, key: f'{key[1]} of {"/".join(Path(key[0]).parts[-2:])}' if key[1] else name,
        lambda name, key: f'{name}, weights {key[2][:6]}' if key[2] else name,
        lambda name, key: f'{name}, config {key[3][:6]}',
    ):
        called = Counter(names.values())
        names = {key: name if called[name] == 1 else more(name, key) for key, name in names.items()}
    return names


def write_evaluation_page(
    folder: str | Path, plots: Sequence[tuple[str, str]] = (), more: Sequence[str | Path] = ()
) -> Path:
    """Write folder/evaluation.html from the records in the folder and in `more` ones."""
    records = records_in(folder, *more)
    tables, names = results(records), row_names(records)
    lead = 'What was measured, in percent, by the configs and checkpoints named in the JSON files beside.'
    page = Page('Evaluation', lead)
    for name, text, rows in tables:
        page.add(name, text, results_table(rows))
    for name in dict.fromkeys(name for name, _, _ in tables):
        shots = {names[record.network]: record.details.low_shot for record in records if record.data == name}
        if few := {subject: known for subject, known in shots.items() if known}:
            text = 'Mean average precision by a linear SVM, with its standard deviation over samples of the images.'
            page.add(f'{name}: few labelled images', text, low_shot(few))
    for record in records:
        if twins := record.details.near_duplicates:
            page.add(
                f'{record.data}: near duplicates by {names[record.network]}',
                f'{twins.images} test images are nearly the same as a training image: {twins.by_look} by '
                f'their looks (hashes and thumbnails that hardly differ), {twins.by_features} by features nearer than chance '
                'makes them. Left the test image, right its twin, the least alike first.',
                fill('pictures.html', pairs=twins.pairs, neighbours=()) if twins.pairs else '',
            )
            if twins.conflicts:
                page.add(
                    f'{record.data}: label conflicts by {names[record.network]}',
                    f'{twins.conflicts} of these test images have another label than their twin. They count in every score. '
                    'Check the pairs: either a label is wrong, or the images differ in a detail that decides the class.',
                    fill('pictures.html', pairs=twins.conflict_pairs, neighbours=()),
                )
    for x, y in plots:
        scores: dict[str, dict[str, float]] = {}
        for row in (row for _, _, rows in tables for row in rows):
            scores.setdefault(row.subject, {}).update(row.scores)
        points = {name: (known[x], known[y]) for name, known in scores.items() if {x, y} <= known.keys()}
        text = 'Each dot is a network; the line is the least-squares fit, with the 95 % band of its mean.'
        page.add(f'{y} against {x}', text, against(points, x, y))
    return page.write(Path(folder) / NAME)


def low_shot(few: Mapping[str, LowShot]) -> Markup:
    """Return a chart and a table of mean average precision over the number of positive images a class."""
    series = {name: ([*map(int, shots.mean)], [*shots.mean.values()]) for name, shots in few.items()}
    drawn = chart(series, 'mAP, %', 'positive images a class', log='x', wide=True)
    counts = list(dict.fromkeys(count for shots in few.values() for count in shots.mean))
    rows = [(name, [shots.text(count) for count in counts]) for name, shots in few.items()]
    return drawn + html_table(counts, rows)
