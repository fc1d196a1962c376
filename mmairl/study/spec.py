"""A study as its YAML says it: rows of configs, each with the factor that it changes, seeds, tasks, and what was published."""

import hashlib
import re
from collections.abc import Collection, Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from mmairl.errors import UserError
from mmairl.io import Declared, read_yaml
from mmairl.study import published
from mmairl.study.analyses import load_analyses
from mmairl.study.claims import Claim, check_claims
from mmairl.study.search import OWN, Dimension, Search, Tune
from mmairl.study.statistics.compare_rows import MARGIN
from mmairl.study.statistics.designs import Design, fraction_rows, title

USUAL_SEEDS = (0,)
LONGEST = 150  # bytes of a folder's name, which others are added to
Untrained = Literal['pixels', 'random']  # no network, or one as it is initialised
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Seeds = Annotated[tuple[Seed, ...], Meta(min_length=1)]


class Rescaled(Declared, frozen=True):
    """No training: the row `of`, NormRescaled by the weights of the row `anchor` or by a `constant`."""

    of: str
    anchor: str | None = None
    constant: Annotated[float, Meta(gt=0)] | None = None
    per: Literal['tensor', 'channel'] = 'tensor'
    exact: bool = False  # what the network computes stays

    def __post_init__(self) -> None:
        if (self.anchor is None) == (self.constant is None):
            raise UserError('give an anchor or a constant, one of them')


class Along(Declared, frozen=True):
    """No training: what the row `of` had saved after a `part` of it, such as 50/300."""

    of: str
    part: Annotated[str, Meta(pattern=r'^[1-9]\d*/[1-9]\d*$')]


class Row(Declared, frozen=True):
    """One line of the study's table."""

    name: str
    config: str
    options: dict[str, Any] = {}  # overrides, as --cfg-options
    against: str | None = (
        None  # the row that it is compared with; default: the row above, and none for the first
    )
    factor: str = ''  # what is changed, in words
    declares: tuple[str, ...] = ()  # the keys that may differ, as dotted prefixes
    published: str | int | list[str | int] | None = (
        None  # rows of the study's table, or TABLE/ROW of any
    )
    group: str | None = None
    x: float | None = None
    rescaled: Rescaled | None = None
    along: Along | None = None
    untrained: Untrained | None = None  # a null row: what the tasks score without training
    weights: dict[
        Seed, str
    ] = {}  # no training here: checkpoints of networks from elsewhere, by seed
    trained: str = ''  # a YAML of the factors of these, as their author states them
    search: Annotated[
        dict[str, Dimension], Meta(max_length=OWN)
    ] = {}  # dimensions of its own, beside the study's

    def __post_init__(self) -> None:
        if sum(bool(way) for way in (self.rescaled, self.along, self.untrained, self.weights)) > 1:
            raise UserError('give one of rescaled, along, untrained and weights')
        if self.trained and not self.weights:
            raise UserError(
                '`trained` states the factors of `weights` from elsewhere, and there are none; give both'
            )

    @property
    def others(self) -> dict[str, str]:
        """The rows whose weights it takes, by what they are to it: `of`, `anchor`."""
        made = self.rescaled or self.along
        return {key: name for key in ('of', 'anchor') if (name := getattr(made, key, None))}

    @property
    def trains(self) -> bool:
        return not (self.others or self.untrained or self.weights)

    @property
    def slug(self) -> str:
        """The row's name as a folder's."""
        words = re.sub(r'[\W_]+', '_', self.name.lower().replace('+', ' plus ')).strip('_')
        long = len(words.encode()) > LONGEST
        return f'{words[:20]}_{hashlib.sha256(words.encode()).hexdigest()[:12]}' if long else words


class Factor(Declared, frozen=True):
    """A factor that is crossed with others: its levels by name, each with the options that make it."""

    name: str
    levels: dict[str | int | float, dict[str, Any]]
    declares: tuple[str, ...]


class Cross(Declared, frozen=True):
    """A base config and factors, as rows of all combinations of their levels or of a fraction of them."""

    config: str
    factors: Annotated[tuple[Factor, ...], Meta(min_length=1)]
    fraction: str | float | None = None
    levels: tuple[
        tuple[int, ...], ...
    ] = ()  # in place of a fraction: the levels of each row, by their numbers
    interactions: tuple[Annotated[tuple[str, ...], Meta(min_length=2, max_length=2)], ...] = ()

    def __post_init__(self) -> None:
        more = [factor.name for factor in self.factors if len(factor.levels) != 2]
        if more and (self.fraction is not None or self.interactions):
            raise UserError(
                f"the factor '{more[0]}' has not two levels, which `fraction` and `interactions` want"
            )
        for pair in self.interactions:
            if len(set(pair)) != 2 or not set(pair) <= set(self.names):
                raise UserError(
                    f'the interaction {list(pair)} is not of two of its factors: {", ".join(self.names)}'
                )
        counts = [len(factor.levels) for factor in self.factors]
        for row in self.levels:
            if len(row) != len(counts) or not all(
                0 <= level < count for level, count in zip(row, counts)
            ):
                raise UserError(
                    f'the levels {list(row)} are not a number from 0 for each factor: {", ".join(self.names)}'
                )
        if self.design and (confused := self.design.indistinct):
            one, other = map(title, confused)
            raise UserError(
                f"the fraction {self.fraction} cannot tell '{one}' from '{other}'; take a larger one, or ask for less"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def combinations(self) -> list[tuple[int, ...]]:
        """The levels of each row, by their numbers."""
        if self.levels:
            return list(self.levels)
        if self.fraction is None:
            return list(product(*(range(len(factor.levels)) for factor in self.factors)))
        count = len(self.factors)
        known = {
            str(form): half
            for half in range(1, count)
            for form in (Fraction(1, 2**half), 0.5**half)
        }
        if str(self.fraction) not in known:
            raise UserError(
                f"the `fraction` is '{self.fraction}'; give one of {', '.join([*known][::2])}"
            )
        pairs = [tuple(map(self.names.index, pair)) for pair in self.interactions]
        return fraction_rows(
            count, known[str(self.fraction)], [(place,) for place in range(count)] + pairs
        )

    def without(self, names: Collection[str]) -> 'Cross':
        """Return the same rows without some factors, each once: a fraction that is projected on the others."""
        kept = [place for place, name in enumerate(self.names) if name not in names]
        levels = dict.fromkeys(tuple(row[place] for place in kept) for row in self.combinations)
        return replace(
            self,
            factors=tuple(self.factors[place] for place in kept),
            fraction=None,
            levels=tuple(levels),
            interactions=tuple(pair for pair in self.interactions if not set(pair) & set(names)),
        )

    @property
    def design(self) -> Design | None:
        """The design, where each factor has two levels."""
        if any(len(factor.levels) != 2 for factor in self.factors):
            return None
        pairs = tuple(tuple(sorted(pair, key=self.names.index)) for pair in self.interactions)
        places = {row.name: levels for row, levels in zip(self.rows(), self.combinations)}
        return Design(self.names, places, pairs)

    def rows(self) -> Iterator[Row]:
        """Yield the rows; the first, of all first levels, is what the rest build on."""
        base = None
        for levels in self.combinations:
            chosen = [
                list(factor.levels.items())[level] for factor, level in zip(self.factors, levels)
            ]
            changed = [factor for factor, level in zip(self.factors, levels) if level]
            row = Row(
                name=', '.join(str(label) for label, _ in chosen),
                config=self.config,
                options={key: value for _, options in chosen for key, value in options.items()},
                against=base,
                factor=', '.join(factor.name for factor in changed),
                declares=tuple(sorted({key for factor in changed for key in factor.declares})),
            )
            base = base or row.name
            yield row


class Paper(Declared, frozen=True):
    """The place in the paper that a study is about, and the published table that stands beside it."""

    where: str = ''
    table: str = ''


class Figure(Declared, frozen=True):
    kind: Literal['bars', 'grouped', 'lines', 'scatter'] = 'bars'
    x: str = ''


class Look(Declared, frozen=True):
    """Rows that an instrument of the analysis compares."""

    instrument: Literal['norms', 'cka', 'geometry']
    rows: tuple[str, ...]


class Study(Declared, frozen=True):
    """A study: a question, its rows, seeds and tasks."""

    title: str
    rows: tuple[Row, ...] = ()
    seeds: Seeds = USUAL_SEEDS
    tasks: dict[str, tuple[str, ...]] = {}  # by scale; 'in1k' is the paper's
    primary: dict[
        str, str
    ] = {}  # by scale: the task whose verdicts have the 5 %; the first unless this says otherwise
    question: str = ''
    paper: Paper = Paper()
    figure: Figure = Figure()
    reading: dict[str, str] = {}  # by scale
    measured: dict[str, str] = {}  # the TASK (or TASK SCORE) beside each published name
    look: tuple[Look, ...] = ()
    equivalence: Annotated[float, Meta(gt=0)] = (
        MARGIN  # rows closer than this, in points of a score, are equivalent
    )
    cross: Cross | None = None  # in place of rows
    search: Search | None = None  # rows are tuned by equal budgets before they are compared
    tune: dict[str, Tune] = {}  # by task: its own rates are tuned for each network
    claims: tuple[Claim, ...] = ()  # what the paper states, and the contrast that tests it
    analyses: tuple[
        str, ...
    ] = ()  # modules that add a section to the page, such as projects.normrescale.benefit
    name: str = ''  # default: the file's

    def __post_init__(self) -> None:
        if not self.rows and not self.cross:
            raise UserError('a study wants rows (or cross); see configs/studies/ladder.yaml')
        names = [row.name for row in self.rows]
        if len({row.slug for row in self.rows}) < len(names):
            raise UserError('two rows have the same name (as a folder); rename one')
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(
                f'a seed is given twice: {", ".join(map(str, self.seeds))}; its run would count as two'
            )
        for row in self.rows:
            for other in (row.against, *row.others.values()):
                if other is not None and other not in names:
                    raise UserError(f"the row '{row.name}' builds on '{other}', which is no row")
        if (
            strange := {name for look in self.look for name in look.rows} - {*names}
            if names
            else ()
        ):
            raise UserError(f"`look` names '{min(strange)}', which is no row")
        if strange := [
            task for scale, task in self.primary.items() if task not in self.tasks.get(scale, ())
        ]:
            raise UserError(
                f"`primary` names '{strange[0]}', which is no task of that scale; add it to `tasks`"
            )
        if self.search and len(self.rows or self.cross.combinations) < 2:
            raise UserError(
                '`search` gives rows equal chances, and this study has one row; add the row to compare it with'
            )
        if not self.search and (own := [row.name for row in self.rows if row.search]):
            raise UserError(
                f"'{own[0]}' has dimensions to search and the study has no `search`; give it a budget there"
            )
        published.rows(self.paper.table)  # a wrong name is told also where no row uses it
        for row in self.rows:
            self.printed(row)

    @property
    def design(self) -> Design | None:
        return self.cross and self.cross.design

    @property
    def full_size_scores(self) -> list[str]:
        """The scores that the study measures at the papers' size."""
        from mmairl.transfer.tasks import TASKS  # only claims need the tasks' columns

        scores = [*self.measured.values()]
        for task in self.tasks.get('in1k', ()):
            scores += [task, f'{task} top-5', *(TASKS[task].scores if task in TASKS else ())]
        return scores

    def printed(self, row: Row) -> dict[str, float]:
        """The numbers that were published of a row, by their names."""
        names = row.published if isinstance(row.published, list) else [row.published]
        names = [str(name) for name in names if name is not None]
        numbers = [
            published.row(name if '/' in name else f'{self.paper.table}/{name}') for name in names
        ]
        return {key: value for row in numbers for key, value in row.items()}


def read_study(path: str | Path) -> Study:
    """Return the study in a YAML file; whatever is wrong with it is one sentence."""
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f'there is no study at {path}; see configs/studies/ for those that come with mmairl'
        )
    study = read_yaml(path, Study)
    load_analyses(study.analyses)
    rows, above = [], None
    for row in study.rows or study.cross.rows():
        rows.append(row if row.untrained else replace(row, against=row.against or above))
        above = above if row.untrained else row.name
    seeds = tuple(range(study.search.searches)) if study.search else study.seeds
    if study.search and study.seeds not in (seeds, USUAL_SEEDS):
        raise UserError(
            f'seeds: a study with `search` repeats its searches in place of seeds ({list(study.seeds)}); set search.searches',
            code='seeds-and-search',
        )
    if study.claims:
        check_claims(study.claims, [row.name for row in rows], study.full_size_scores)
    return replace(study, rows=tuple(rows), seeds=seeds, name=study.name or path.stem)


def catalogue(folder: Path) -> str:
    """The studies of a folder as a table in Markdown: what of the papers each is, and its rows."""
    lines = ['| study | of the papers | rows |', '|---|---|---|']
    for study in map(read_study, sorted(folder.glob('*.yaml'))):
        rows = ', '.join(
            f'`{name}`' for name in dict.fromkeys(Path(row.config).stem for row in study.rows)
        )
        lines.append(f'| `{study.name}.yaml`: {study.title} | {study.paper.where} | {rows} |')
    return '\n'.join(lines) + '\n'
