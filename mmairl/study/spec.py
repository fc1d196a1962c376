"""A study as its YAML says it: rows of configs, each with the factor that it changes, seeds, tasks, and what was published."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from mmairl.errors import UserError, closest
from mmairl.study import published
from mmairl.study.designs import Design, Effect, fraction_rows, title
from mmairl.study.statistics import MARGIN


@dataclass(frozen=True)
class Row:
    """One line of the study's table."""

    name: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)  # overrides, as --cfg-options
    against: str | None = None  # the row that it is compared with: none for the first, else the one above unless said
    factor: str = ''  # what is changed, in words
    declares: tuple[str, ...] = ()  # the keys that may differ, as dotted prefixes
    published: dict[str, float] = field(default_factory=dict)
    group: str | None = None
    x: float | None = None
    rescaled: dict[str, Any] | None = None  # no training: the row `of`, NormRescaled by `anchor` or by a `constant`
    along: dict[str, str] | None = None  # no training: what the row `of` had saved after a `part` of it, such as 50/300

    @property
    def others(self) -> dict[str, str]:
        """The rows whose weights it takes."""
        return {key: name for key, name in (self.rescaled or self.along or {}).items() if key in ('of', 'anchor')}

    @property
    def slug(self) -> str:
        """The row's name as a folder's."""
        return re.sub(r'[^a-z0-9]+', '_', self.name.lower().replace('+', ' plus ')).strip('_')


@dataclass(frozen=True)
class Study:
    """What is asked, of which rows, over which seeds, by which tasks."""

    name: str
    title: str
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    tasks: dict[str, tuple[str, ...]]  # by scale; 'in1k' is the paper's
    question: str = ''
    paper: dict[str, Any] = field(default_factory=dict)
    figure: dict[str, Any] = field(default_factory=lambda: dict(kind='bars'))
    reading: dict[str, str] = field(default_factory=dict)  # by scale
    measured: dict[str, str] = field(default_factory=dict)  # the TASK (or TASK SCORE) beside each published name
    look: tuple[dict[str, Any], ...] = ()  # rows that an instrument of the analysis compares
    equivalence: float = MARGIN  # rows closer than this, in points of a score, count as equivalent
    design: Design | None = None  # of rows that are crossed, where each factor has two levels

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


ROW_KEYS = [of.name for of in fields(Row)]
STUDY_KEYS = [of.name for of in fields(Study) if of.name not in ('name', 'design')]


def read_study(path: str | Path) -> Study:
    """The study in a YAML file; whatever is wrong with it is one sentence."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f'there is no study at {path}; see configs/studies/ for those that come with mmairl')
    found = read_keys(path, 'the study', [*STUDY_KEYS, 'cross'])
    if 'title' not in found or not (found.get('rows') or found.get('cross')):
        raise UserError(f'the study {path} wants a title and rows (or cross); see configs/studies/ladder.yaml')
    margin = found.get('equivalence', MARGIN)
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not margin > 0:
        raise UserError(f"the `equivalence` of {path} is '{margin}'; give a number above 0, in points of the score")
    table, rows = found.get('paper', {}).get('table', ''), []
    published.rows(table)  # a wrong name is told also where no row uses it
    described, design = (found['rows'], None) if found.get('rows') else _crossed(found['cross'], path)
    for row in described:
        rows.append(_row(row, rows[-1].name if rows else None, table, path))
    _check(rows, path)
    tasks = {scale: tuple(of) for scale, of in found.get('tasks', {}).items()}
    lists = dict(rows=tuple(rows), seeds=tuple(found.get('seeds', (0,))), look=tuple(found.get('look', ())))
    known = {key: found[key] for key in STUDY_KEYS if key in found}
    return Study(path.stem, **{**known, **lists, 'tasks': tasks, 'equivalence': float(margin), 'design': design})


def read_keys(path: Path, what: str, known: Sequence[str], loader: type = yaml.SafeLoader) -> dict[str, Any]:
    """The keys and values of a YAML file, of which each is one that something reads."""
    try:
        found = yaml.load(path.read_text(), Loader=loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f'{what} {path} cannot be read: {" ".join(str(error).split())}') from error
    if not isinstance(found, dict):
        raise UserError(f'{what} {path} is no YAML of keys and values; known are {", ".join(known)}')
    _require_known(found, known, f'{what} {path}')
    return found


def _require_known(found: dict, known: Sequence[str], where: str) -> None:
    for key in found:
        if key not in known:
            raise UserError(
                f"{where} has '{key}', which nothing reads{closest(str(key), known)}; known are {', '.join(known)}"
            )


def catalogue(folder: Path) -> str:
    """The studies of a folder as a table in Markdown: what of the papers each is, and its rows."""
    lines = ['| study | of the papers | rows |', '|---|---|---|']
    for study in map(read_study, sorted(folder.glob('*.yaml'))):
        rows = ', '.join(f'`{name}`' for name in dict.fromkeys(Path(row.config).stem for row in study.rows))
        lines.append(f'| `{study.name}.yaml`: {study.title} | {study.paper.get("where", "")} | {rows} |')
    return '\n'.join(lines) + '\n'


def _row(row: dict, above: str | None, table: str, path: Path) -> Row:
    """A row; what was published of it is a row of the study's own table, or TABLE/ROW."""
    _require_known(row, ROW_KEYS, f"the row '{row.get('name')}' of {path}")
    if 'name' not in row or 'config' not in row:
        raise UserError(f'a row of {path} lacks a name or a config')
    printed: dict[str, float] = {}
    names = row.get('published')
    for name in [] if names is None else names if isinstance(names, list) else [names]:
        printed |= published.row(name if '/' in str(name) else f'{table}/{name}')
    own = dict(name=str(row['name']), against=row.get('against') or above, declares=tuple(row.get('declares', ())))
    return Row(**{**row, **own, 'published': printed})


def _crossed(cross: dict, path: Path) -> tuple[list[dict], Design | None]:
    """A base config and factors, each with its levels, as rows: all combinations, or the fraction of them that is asked for.

    The first row, of all first levels, is what the rest build on.
    """
    _require_known(cross, ('config', 'factors', 'fraction', 'interactions'), f'the `cross` of {path}')
    factors = [dict(factor, levels=list(factor['levels'].items())) for factor in cross['factors']]
    more = [factor['name'] for factor in factors if len(factor['levels']) != 2]
    if more and cross.keys() & {'fraction', 'interactions'}:
        raise UserError(
            f"the factor '{more[0]}' of {path} has not two levels, which `fraction` and `interactions` want"
        )
    names = [factor['name'] for factor in factors]
    interactions = _interactions(cross, names, path)
    if 'fraction' in cross:
        combinations = _fraction(cross['fraction'], names, interactions, path)
    else:
        combinations = product(*(range(len(of['levels'])) for of in factors))
    rows, places = [], {}
    for levels in combinations:
        chosen = [factor['levels'][level] for factor, level in zip(factors, levels)]
        row = dict(name=', '.join(str(label) for label, _ in chosen), config=cross['config'])
        row['options'] = {key: value for _, options in chosen for key, value in options.items()}
        if rows:
            changed = [factor for factor, level in zip(factors, levels) if level]
            row['against'], row['factor'] = rows[0]['name'], ', '.join(factor['name'] for factor in changed)
            row['declares'] = sorted({key for factor in changed for key in factor['declares']})
        rows.append(row)
        places[row['name']] = tuple(levels)
    if more:
        return rows, None
    design = Design(tuple(names), places, interactions)
    if confused := design.indistinct:
        one, other = map(title, confused)
        raise UserError(
            f"the fraction {cross['fraction']} of {path} cannot tell '{one}' from '{other}'; take a larger one, or ask for less"
        )
    return rows, design


def _interactions(cross: dict, names: list[str], path: Path) -> tuple[tuple[str, str], ...]:
    """The pairs of factors that the study asks for, each in the order of the factors."""
    for pair in cross.get('interactions', ()):
        if len(set(pair)) != 2 or not set(pair) <= set(names):
            raise UserError(f'the interaction {pair} of {path} is none of two of its factors: {", ".join(names)}')
    return tuple(tuple(sorted(pair, key=names.index)) for pair in cross.get('interactions', ()))


def _fraction(asked: Any, names: list[str], interactions: Sequence[Effect], path: Path) -> list[tuple[int, ...]]:
    """The levels of the rows of a fraction, which is written as 1/2 or as 0.5."""
    fractions = {str(Fraction(1, 2**halvings)): halvings for halvings in range(1, len(names))}
    known = {**fractions, **{str(0.5**halvings): halvings for halvings in fractions.values()}}
    if str(asked) not in known:
        raise UserError(f"the `fraction` of {path} is '{asked}'; give one of {', '.join(fractions)}")
    effects = [(name,) for name in names] + list(interactions)
    return fraction_rows(len(names), known[str(asked)], [tuple(map(names.index, effect)) for effect in effects])


def _check(rows: list[Row], path: Path) -> None:
    names = [row.name for row in rows]
    if len({row.slug for row in rows}) < len(rows):
        raise UserError(f'two rows of {path} have the same name (as a folder); rename one')
    for row in rows:
        for other in (row.against, *row.others.values()):
            if other is not None and other not in names:
                raise UserError(f"the row '{row.name}' of {path} builds on '{other}', which is no row of it")
