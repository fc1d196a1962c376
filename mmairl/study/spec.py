"""The schema of a study's YAML file.

A study is a table of rows. Each row is one variant of a method and usually differs from another row by a single factor. A
row is trained from several seeds, which gives one run per seed, and every run is measured by the study's tasks.
"""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from itertools import chain, compress, product
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from mmairl.config import PREFIX, config_path
from mmairl.errors import UserError
from mmairl.io import Declared, read_yaml
from mmairl.study import published
from mmairl.study.analyses import load_analyses
from mmairl.study.claims import Claim, check_claims
from mmairl.study.search import OWN, Dimension, Search, Tune
from mmairl.study.statistics.compare_rows import MARGIN
from mmairl.study.statistics.designs import Design, fraction_rows, title

DEFAULT_SEEDS = (0,)
# The longest name of a row's folder in bytes. Files are named after rows, too, and a file name has at most 255 bytes.
LONGEST_SLUG = 150
HASH = 12  # the number of characters of the hash at the end of a shortened folder name
Untrained = Literal['pixels', 'random']
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Seeds = Annotated[tuple[Seed, ...], Meta(min_length=1)]
Pair = Annotated[tuple[str, ...], Meta(min_length=2, max_length=2)]
Published = str | int | list[str | int]


class Rescaled(Declared, frozen=True):
    """Creates a row's weights by NormRescale from the weights of another row, which the key `of` names.

    The weights get the norms of a third row, which `anchor` names, or they are multiplied by `constant`.
    """

    of: str
    anchor: str | None = None
    constant: Annotated[float, Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if (self.anchor is None) == (self.constant is None):
            raise UserError(
                'rescaled: requires exactly one of `anchor` and `constant`; set one of them',
                code='anchor-or-constant',
            )


class Along(Declared, frozen=True):
    """Takes a row's weights from a checkpoint that another row, which the key `of` names, saved during its training.

    `part` is the fraction of the training after which the checkpoint was saved. For example, 50/300 is the checkpoint after
    epoch 50 of 300.
    """

    of: str
    part: Annotated[str, Meta(pattern=r'^[1-9]\d*/[1-9]\d*$')]


class ForkPoint(Declared, frozen=True):
    """Makes a row a fork. A fork continues the run of another row, its trunk, with the same seed. The key `of` names the trunk.

    The fork starts from the state of the trunk after the fraction `at` of the trunk's epochs.
    """

    of: str
    at: Annotated[float, Meta(gt=0, lt=1)] = 0.5


def roles(origin: Rescaled | Along | ForkPoint | None) -> dict[str, str]:
    """Return the keys `of` and `anchor` with their values, if they are set.

    The values name the rows whose weights are used. In the request that the planner writes for a run's worker process, the
    values are the folders of runs of these rows.
    """
    used = {role: getattr(origin, role, None) for role in ('of', 'anchor')}
    return {role: name for role, name in used.items() if name}


class Row(Declared, frozen=True):
    """A row of the study's table.

    A row is trained with its config and options, unless `rescaled`, `along`, `untrained` or `weights` states where its
    weights come from. `docs/reference/study_yaml.md` explains the keys.
    """

    name: str
    config: str = ''  # A fork uses the config of its trunk by default.
    options: dict[str, Any] = {}
    against: str | None = None  # The row to compare this row with. `read_study` sets the default.
    factor: str = ''
    declares: tuple[str, ...] = ()
    published: Published | None = None
    group: str | None = None
    x: float | None = None
    rescaled: Rescaled | None = None
    along: Along | None = None
    fork: ForkPoint | None = None
    untrained: Untrained | None = None
    weights: dict[Seed, str] = {}
    trained: str = ''
    search: Annotated[dict[str, Dimension], Meta(max_length=OWN)] = {}

    def __post_init__(self) -> None:
        origins = (self.rescaled, self.along, self.fork, self.untrained, self.weights)
        if sum(map(bool, origins)) > 1:
            raise UserError(
                'a row can have only one of `rescaled`, `along`, `fork`, `untrained` and `weights`; remove the others',
                code='several-origins',
            )
        if self.trained and not self.weights:
            raise UserError(
                '`trained` describes external checkpoints and requires `weights`; list the checkpoints in `weights`',
                code='trained-without-weights',
            )

    @property
    def others(self) -> dict[str, str]:
        """The names of the rows whose weights this row uses, as values of the keys `of` and `anchor`."""
        return roles(self.rescaled or self.along or self.fork)

    @property
    def trains(self) -> bool:
        return not (self.rescaled or self.along or self.untrained or self.weights)

    @property
    def slug(self) -> str:
        """The name of the row's folder."""
        words = re.sub(r'[\W_]+', '_', self.name.lower().replace('+', ' plus ')).strip('_')
        if len(words.encode()) <= LONGEST_SLUG:
            return words
        return f'{words[:20]}_{hashlib.sha256(words.encode()).hexdigest()[:HASH]}'


class Factor(Declared, frozen=True):
    """A factor of a factorial design: its levels, and the config keys that the levels may change."""

    name: str
    # The config overrides of each level, by the level's label.
    levels: dict[str | int | float, dict[str, Any]]
    declares: tuple[str, ...]


class Cross(Declared, frozen=True):
    """A factorial design, which creates one row for each combination of the factors' levels.

    With `fraction` or `levels`, it creates rows for only some of the combinations.
    """

    config: str
    factors: Annotated[tuple[Factor, ...], Meta(min_length=1)]
    fraction: str | float | None = None
    # For each row, the index of each factor's level.
    levels: tuple[tuple[int, ...], ...] = ()
    interactions: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        names = ', '.join(self.names)
        counts = [len(factor.levels) for factor in self.factors]
        other = [name for name, count in zip(self.names, counts) if count != 2]
        if other and (self.fraction is not None or self.interactions):
            raise UserError(
                f"`fraction` and `interactions` require exactly two levels for every factor ('{other[0]}' has more or fewer); "
                'remove the two keys, or give that factor two levels',
                code='not-two-levels',
            )
        for pair in self.interactions:
            if len({*pair} & {*self.names}) != 2:
                raise UserError(
                    f'interactions: a pair must name two different factors ({list(pair)}); choose two of {names}',
                    code='not-an-interaction',
                )
        for row in self.levels:
            known = [level in range(count) for level, count in zip(row, counts)]
            if len(row) != len(counts) or not all(known):
                raise UserError(
                    f'levels: a row must have one level number, counted from 0, for each factor ({list(row)}); correct the '
                    f'row; the factors are {names}',
                    code='wrong-levels',
                )
        if self.design and (confused := self.design.indistinct):
            one, two = map(title, confused)
            where = f"fraction ('{self.fraction}')" if self.fraction else 'levels'
            raise UserError(
                f"{where}: the runs cannot separate the effects '{one}' and '{two}'; run more combinations of the levels, or "
                'remove pairs from `interactions`',
                code='confused-effects',
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def combinations(self) -> list[tuple[int, ...]]:
        """For each row of the design, the index of each factor's level."""
        if self.levels:
            return list(self.levels)
        if self.fraction is None:
            return list(product(*(range(len(factor.levels)) for factor in self.factors)))
        effects = [*((name,) for name in self.names), *self.interactions]
        estimable = [tuple(map(self.names.index, effect)) for effect in effects]
        return fraction_rows(len(self.factors), self._halvings(), estimable)

    def _halvings(self) -> int:
        """Return how many times the full design is halved, such as 2 for the fraction 1/4."""
        known = {Fraction(1, 2**number): number for number in range(1, len(self.factors))}
        try:
            return known[Fraction(str(self.fraction))]
        except (ValueError, ZeroDivisionError, KeyError):
            raise UserError(
                f"fraction: expected one of {', '.join(map(str, known))} ('{self.fraction}'); set one of them",
                code='wrong-fraction',
            ) from None

    def without(self, names: Collection[str]) -> 'Cross':
        """Return the design without the given factors. Rows that differed only in these factors are merged."""
        stays = [name not in names for name in self.names]
        levels = dict.fromkeys(tuple(compress(row, stays)) for row in self.combinations)
        return replace(
            self,
            factors=tuple(compress(self.factors, stays)),
            fraction=None,
            levels=tuple(levels),
            interactions=tuple(pair for pair in self.interactions if not {*pair} & {*names}),
        )

    @property
    def design(self) -> Design | None:
        """The design for the analysis of effects; None if a factor does not have exactly two levels."""
        if any(len(factor.levels) != 2 for factor in self.factors):
            return None
        pairs = tuple(tuple(sorted(pair, key=self.names.index)) for pair in self.interactions)
        levels = {row.name: levels for row, levels in zip(self.rows(), self.combinations)}
        return Design(self.names, levels, pairs)

    def rows(self) -> Iterator[Row]:
        """Yield a row for each combination of levels. Every other row is compared with the first one.

        In the first row of a full design or of a fraction, each factor is at its first level.
        """
        base = None
        combinations = self.combinations
        for levels in combinations:
            labels = []
            options: dict[str, Any] = {}
            for factor, level in zip(self.factors, levels):
                label, overrides = list(factor.levels.items())[level]
                labels.append(str(label))
                options |= overrides
            differs = [level != other for level, other in zip(levels, combinations[0])]
            changed = list(compress(self.factors, differs))
            row = Row(
                name=', '.join(labels),
                config=self.config,
                options=options,
                against=base,
                factor=', '.join(factor.name for factor in changed),
                declares=tuple(sorted({key for factor in changed for key in factor.declares})),
            )
            base = base or row.name
            yield row


class Paper(Declared, frozen=True):
    """The table or figure of a paper that a study repeats, and the published numbers that the study page shows."""

    where: str = ''
    table: str = ''


class Figure(Declared, frozen=True):
    kind: Literal['bars', 'grouped', 'lines', 'scatter'] = 'bars'
    x: str = ''


class Look(Declared, frozen=True):
    """An analysis of weights or features by an instrument of `mmairl analyze`, and the rows that it compares."""

    instrument: Literal['norms', 'cka', 'geometry']
    rows: tuple[str, ...]
    layer: Literal['backbone', 'projector', 'predictor'] = 'backbone'

    def __post_init__(self) -> None:
        if self.layer != 'backbone' and self.instrument != 'geometry':
            raise UserError(
                f"look: `layer` applies to the instrument geometry, not to {self.instrument} ('{self.layer}'); remove `layer`, "
                'or use geometry',
                code='layer-without-geometry',
            )


class Study(Declared, frozen=True):
    """A study: its question, and the rows, seeds and tasks that answer it.

    `docs/reference/study_yaml.md` explains the keys.
    """

    title: str
    rows: tuple[Row, ...] = ()
    seeds: Seeds = DEFAULT_SEEDS
    tasks: dict[str, tuple[str, ...]] = {}
    primary: dict[str, str] = {}
    question: str = ''
    paper: Paper = Paper()
    figure: Figure = Figure()
    reading: dict[str, str] = {}
    measured: dict[str, str] = {}
    look: tuple[Look, ...] = ()
    equivalence: Annotated[float, Meta(gt=0)] = MARGIN
    cross: Cross | None = None
    search: Search | None = None
    tune: dict[str, Tune] = {}
    claims: tuple[Claim, ...] = ()
    analyses: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()
    name: str = ''

    def __post_init__(self) -> None:
        if not self.rows and not self.cross:
            raise UserError(
                'a study requires `rows` or `cross`; add one of them, as in configs/studies/ladder.yaml',
                code='no-rows',
            )
        if len({*self.seeds}) < len(self.seeds):
            raise UserError(
                f'seeds: a seed is repeated ({", ".join(map(str, self.seeds))}); list each seed once',
                code='repeated-seed',
            )
        for scale, task in self.primary.items():
            if task not in self.tasks.get(scale, ()):
                raise UserError(
                    f"primary: `tasks` does not list this task for the scale {scale} ('{task}'); add the task to `tasks`",
                    code='primary-not-a-task',
                )
        self._check_rows()
        self._check_search()
        published.rows(self.paper.table)  # This call raises if the published table does not exist.
        for row in self.rows:
            self.published_numbers(row)  # This call raises if the published table lacks the row.

    def _check_rows(self) -> None:
        names = [row.name for row in self.rows]
        slugs = [row.slug for row in self.rows]
        if repeated := [slug for slug in slugs if slugs.count(slug) > 1]:
            raise UserError(
                f"rows: two rows have names that give the same folder name ('{repeated[0]}'); rename one of the rows",
                code='same-row-name',
            )
        for row in self.rows:
            for other in (row.against, *row.others.values()):
                if other is not None and other not in names:
                    raise UserError(
                        f"rows: '{row.name}' refers to an unknown row ('{other}'); correct the name",
                        code='unknown-row',
                    )
            if row.fork:
                self._check_fork(row)
        for name in chain.from_iterable(look.rows for look in self.look):
            if names and name not in names:
                raise UserError(
                    f"look: unknown row ('{name}'); correct the name", code='unknown-row'
                )

    def _check_fork(self, row: Row) -> None:
        rows = {other.name: other for other in self.rows}
        trunk = rows[row.fork.of]
        if trunk.fork or not trunk.trains:
            raise UserError(
                f"fork: '{row.name}' forks '{trunk.name}', which is a fork itself or is not trained; fork a row that is "
                'trained from the start',
                code='trunk-not-trained',
            )
        base = rows[row.against or trunk.name]
        if base is not trunk and base.fork != row.fork:
            raise UserError(
                f"against: '{row.name}' is a fork of '{trunk.name}' and cannot be compared with '{base.name}'; set "
                f"`against` to '{trunk.name}', or to another fork of '{trunk.name}' from the same epoch",
                code='against-another-trunk',
            )

    def _check_search(self) -> None:
        if self.search and any(row.fork for row in self.rows):
            raise UserError(
                'search: a fork cannot be tuned, because it continues a run that was not tuned; remove `search` or the forks',
                code='fork-and-search',
            )
        if self.search and len(self.rows or self.cross.combinations) < 2:
            raise UserError(
                'search: the study has only one row; add a row to compare it with',
                code='search-one-row',
            )
        for row in self.rows:
            if row.search and not self.search:
                raise UserError(
                    f"rows: '{row.name}' has `search` dimensions, but the study has no `search`; add `search` with a `budget` "
                    'to the study',
                    code='row-search-without-search',
                )

    @property
    def design(self) -> Design | None:
        return self.cross and self.cross.design

    @property
    def full_size_scores(self) -> list[str]:
        """The names of the scores that the study can measure at full size. Its claims can use only these scores."""
        # This module is imported here, because only studies with claims need it.
        from mmairl.transfer.tasks import TASKS

        scores = [*self.measured.values()]
        for task in self.tasks.get('in1k', ()):
            scores += [task, f'{task} top-5', *(TASKS[task].scores if task in TASKS else ())]
        return scores

    def published_numbers(self, row: Row) -> dict[str, float]:
        """Return the published numbers of a row, by their columns in the published table."""
        if row.published is None:
            return {}
        names = row.published if isinstance(row.published, list) else [row.published]
        numbers = {}
        for name in map(str, names):
            numbers |= published.row(name if '/' in name else f'{self.paper.table}/{name}')
        return numbers


def read_study(path: str | Path) -> Study:
    """Read a study from a YAML file, check it and set the defaults of its rows.

    Args:
        path: The YAML file, or `mmairl::studies/NAME.yaml` for a built-in study.

    Returns:
        The study. The default of a row's `against` (the row to compare it with) is the nearest row above that is neither
        untrained nor a fork, if any. It is the trunk for a fork, and None for an untrained row.

    Raises:
        UserError: If the file does not exist, or the study is invalid.

    Example:
        >>> study = read_study('configs/studies/ladder.yaml')
        >>> study.name, study.rows[1].against
        ('ladder', 'MoCo v2')
    """
    path = config_path(str(path)) if str(path).startswith(PREFIX) else Path(path)
    if not path.is_file():
        raise UserError(
            f"study: file does not exist ('{path}'); name a YAML file, or a built-in study of configs/studies as "
            'mmairl::studies/NAME.yaml',
            code='no-study',
        )
    study = read_yaml(path, Study)
    load_analyses(study.analyses)
    rows = []
    above = None
    for row in study.rows or study.cross.rows():
        if row.fork:
            row = as_branch(row, study.rows)
        elif not row.config:
            raise UserError(f"{path}: row '{row.name}' has no `config`; set one", code='no-config')
        elif not row.untrained:
            row = replace(row, against=row.against or above)
            above = row.name
        rows.append(with_local_paths(row, path.parent))
    seeds = tuple(range(study.search.searches)) if study.search else study.seeds
    if study.search and study.seeds not in (seeds, DEFAULT_SEEDS):
        raise UserError(
            f'seeds: a study with `search` has one seed for each search, from 0 to {len(seeds) - 1} ({list(study.seeds)}); '
            'remove `seeds`, and set search.searches to the number of searches',
            code='seeds-and-search',
        )
    if study.claims:
        check_claims(study.claims, [row.name for row in rows], study.full_size_scores)
    return replace(study, rows=tuple(rows), seeds=seeds, name=study.name or path.stem)


def as_branch(row: Row, rows: Sequence[Row]) -> Row:
    """Fill in the defaults of a fork.

    A fork without a config uses the trunk's config and options, and adds its own options. By default, a fork is compared
    with the trunk and declares the keys of its own options.
    """
    trunk = next(other for other in rows if other.name == row.fork.of)
    declared = dict.fromkeys(re.sub(r'\.\d.*', '', key) for key in row.options)
    return replace(
        row,
        config=row.config or trunk.config,
        options=row.options if row.config else {**trunk.options, **row.options},
        declares=row.declares or tuple(declared),
        against=row.against or trunk.name,
    )


def with_local_paths(row: Row, folder: Path) -> Row:
    """Replace a row's `config` and `trained` by paths in the study's folder, if these files exist there."""
    paths = {key: folder / getattr(row, key) for key in ('config', 'trained')}
    return replace(row, **{key: str(path) for key, path in paths.items() if path.is_file()})


def catalogue(folder: Path) -> str:
    """Return a Markdown table of the studies in a folder: titles, places in the papers, and configs of the rows."""
    lines = ['| study | place in the papers | configs of the rows |', '|---|---|---|']
    for study in map(read_study, sorted(folder.glob('[!_]*.yaml'))):
        configs = dict.fromkeys(Path(row.config).stem for row in study.rows)
        rows = ', '.join(f'`{name}`' for name in configs)
        lines.append(f'| `{study.name}.yaml`: {study.title} | {study.paper.where} | {rows} |')
    return '\n'.join(lines) + '\n'
