"""The schema of a study's YAML file.

A study is a table of rows. Each row is one variant of a method and usually differs from another row by a single factor. A
row is trained from several seeds, which gives one run per seed, and every run is measured by the study's tasks.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from mmairl.config import config_path
from mmairl.errors import UserError
from mmairl.evaluation.sources import key_of
from mmairl.io import Declared, read_yaml
from mmairl.study.statistics.designs import Design, fraction_rows

# A folder name has at most 255 bytes, and a letter at most four.
LONGEST_SLUG = 60
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Untrained = Literal['pixels', 'random']
Positive = Annotated[float, Meta(gt=0)]
Times = Annotated[float, Meta(gt=1)]
# The keys of configs that must be equal in all trials of a tuned study.
FIXED = ('train_cfg', 'total_batch_size', 'train_dataloader', 'evaluation', 'recipes', 'randomness')


class Source(Declared, frozen=True):
    """The source of a row's weights: another row, possibly before its end (`at`) or rescaled, or checkpoint files by seed.

    NormRescale changes the weights to the norms of the row `rescale_to`, or by the factor `rescale_by`.
    """

    row: str = ''
    at: Annotated[str, Meta(pattern=r'^[1-9]\d*/[1-9]\d*$')] | None = None
    rescale_to: str = ''
    rescale_by: Positive | None = None
    files: dict[Seed, str] = {}

    def __post_init__(self) -> None:
        if bool(self.row) == bool(self.files):
            raise UserError(
                'from: requires exactly one of `row` and `files`; set one of them',
                code='row-or-files',
            )

    @property
    def rows(self) -> dict[str, str]:
        """The names of the rows whose weights are used, by their role."""
        roles = dict(row=self.row, anchor=self.rescale_to)
        return {role: name for role, name in roles.items() if name}


class Row(Declared, frozen=True):
    """A row of the study's table. `docs/reference/study_yaml.md` explains the keys."""

    name: str
    config: str
    options: dict[str, Any] = {}
    against: str | None = None  # The row to compare this row with. `read_study` sets the default.
    factor: str = ''
    declares: tuple[str, ...] = ()
    published: dict[str, float] = {}
    group: str = ''
    x: float | None = None
    source: Source | None = field(default=None, name='from')
    untrained: Untrained | None = None

    @property
    def trains(self) -> bool:
        return not (self.source or self.untrained)

    @property
    def files(self) -> dict[int, str]:
        return self.source.files if self.source else {}

    @property
    def slug(self) -> str:
        """The name of the row's folder. A long name is cut, and ends with a digest of the whole name."""
        words = re.sub(r'[\W_]+', '_', self.name.lower().replace('+', ' plus ')).strip('_')
        if len(words) <= LONGEST_SLUG:
            return words
        digest = key_of(self.name)
        return f'{words[: LONGEST_SLUG - len(digest) - 1]}_{digest}'


class Factor(Declared, frozen=True):
    """A factor of a factorial design: its levels, and the config keys that the levels may change."""

    name: str
    # The config overrides of each level, by the level's label.
    levels: Annotated[dict[str | int | float, dict[str, Any]], Meta(min_length=2, max_length=2)]
    declares: tuple[str, ...]


class Cross(Declared, frozen=True):
    """A factorial design, which creates one row for each combination of the factors' levels, or for a fraction of them."""

    config: str
    factors: Annotated[tuple[Factor, ...], Meta(min_length=1)]
    fraction: Literal['1', '1/2', '1/4', '1/8', '1/16'] = '1'

    @property
    def combinations(self) -> list[tuple[int, ...]]:
        """For each row of the design, the index of each factor's level."""
        return fraction_rows(len(self.factors), Fraction(self.fraction))

    @property
    def design(self) -> Design:
        rows = {row.name: levels for row, levels in zip(self.rows(), self.combinations)}
        return Design([factor.name for factor in self.factors], rows)

    def rows(self) -> Iterator[Row]:
        """Yield a row for each combination of levels. Every other row is compared with the first one."""
        first = None
        for levels in self.combinations:
            labels, options, changed = [], {}, []
            for factor, level in zip(self.factors, levels):
                label, overrides = list(factor.levels.items())[level]
                labels.append(str(label))
                options |= overrides
                if level:
                    changed.append(factor)
            row = Row(
                name=', '.join(labels),
                config=self.config,
                options=options,
                against=first,
                factor=', '.join(factor.name for factor in changed),
                declares=tuple(sorted({key for factor in changed for key in factor.declares})),
            )
            first = first or row.name
            yield row


class Tune(Declared, frozen=True):
    """Tunes the rows of a study before they are compared.

    `budget` is the training FLOPs that each row can spend on its trials in one search, in runs of the cheapest row. The number
    of a key is the largest factor by which a trial multiplies or divides the row's own value or, for the keys in `momenta`,
    one minus this value.
    """

    budget: Annotated[float, Meta(ge=1, le=1000)]
    keys: Annotated[dict[str, Times], Meta(min_length=1)]
    momenta: dict[str, Times] = {}
    searches: Annotated[int, Meta(ge=1)] = 3
    criterion: str = 'knn'

    @property
    def ranges(self) -> dict[str, float]:
        return self.keys | self.momenta

    def __post_init__(self) -> None:
        for key in self.ranges:
            if key.split('.')[0] in FIXED:
                raise UserError(
                    f'tune: {key} cannot be tuned, because it changes the cost or the measurement of a trial; remove the key',
                    code='not-tunable',
                )


class Study(Declared, frozen=True):
    """A study: its question, and the rows, seeds and tasks that answer it.

    `docs/reference/study_yaml.md` explains the keys.
    """

    title: str
    rows: tuple[Row, ...] = ()
    cross: Cross | None = None
    seeds: Annotated[tuple[Seed, ...], Meta(min_length=1)] = (0,)
    tasks: dict[str, tuple[str, ...]] = {}
    question: str = ''
    paper: str = ''
    x: str = ''
    margin: Positive | dict[str, Positive] = 1.0
    interim_analyses: Annotated[int, Meta(ge=1)] = 1
    tune: Tune | None = None
    name: str = ''

    def __post_init__(self) -> None:
        if not self.rows and not self.cross:
            raise UserError(
                'a study requires either `rows` or `cross`; set one of them, as in configs/studies/ladder.yaml',
                code='no-rows',
            )
        names = [row.name for row in self.rows]
        slugs = [row.slug for row in self.rows]
        if repeated := [name for name, slug in zip(names, slugs) if slugs.count(slug) > 1]:
            raise UserError(
                f"rows: two rows have names that give the same folder name ('{repeated[0]}'); rename one of the rows",
                code='same-row-name',
            )
        for row in self.rows:
            used = row.source.rows.values() if row.source else ()
            for other in (row.against, *used):
                if other is not None and (other not in names or other == row.name):
                    raise UserError(
                        f"rows: '{row.name}' refers to an unknown row ('{other}'); name another row of the study",
                        code='unknown-row',
                    )


def read_study(path: str | Path) -> Study:
    """Read a study from a YAML file, check it and set the defaults of its rows.

    Args:
        path: The YAML file, or `mmairl::studies/NAME.yaml` for a built-in study.

    Returns:
        The study. The default of a row's `against` (the row to compare it with) is the nearest row above that is not
        untrained, if any.

    Raises:
        UserError: If the file does not exist, or the study is invalid.

    Example:
        >>> study = read_study('configs/studies/ladder.yaml')
        >>> study.name, study.rows[1].against
        ('ladder', 'MoCo v2')
    """
    path = config_path(path)
    study = read_yaml(path, Study)
    rows = []
    above = None
    for row in study.rows or study.cross.rows():
        local = path.parent / row.config
        if not row.untrained:
            row = replace(row, against=row.against or above)
            above = row.name
        rows.append(replace(row, config=str(local)) if local.is_file() else row)
    seeds = tuple(range(study.tune.searches)) if study.tune else study.seeds
    return replace(study, rows=tuple(rows), seeds=seeds, name=study.name or path.stem)
