"""A study as its YAML says it: rows of configs, each with the factor that it changes, seeds, tasks, and what was published."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmairl.errors import UserError
from mmairl.study.published import tables
from mmairl.study.statistics import MARGIN

KEYS = {'title', 'question', 'paper', 'figure', 'seeds', 'tasks', 'rows', 'cross', 'reading', 'equivalence'}
SETTINGS = {'beta'}  # what tells a published row from others; no score
ROW_KEYS = {'name', 'config', 'options', 'against', 'factor', 'declares', 'published', 'group', 'x', 'rescaled'}


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
    table: str = ''  # where that is printed
    group: str | None = None
    x: float | None = None
    rescaled: dict[str, Any] | None = (
        None  # no training: the row `of`, NormRescaled by the row `anchor` or by a `constant`
    )

    @property
    def slug(self) -> str:
        """The row's name as a folder's."""
        return re.sub(r'[^a-z0-9]+', '_', self.name.lower().replace('+', ' plus ')).strip('_')


@dataclass(frozen=True)
class Study:
    """What is asked, of which rows, over which seeds, by which tasks."""

    name: str
    title: str
    question: str
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    tasks: dict[str, tuple[str, ...]]  # by scale; 'in1k' is the paper's
    paper: dict[str, Any] = field(default_factory=dict)
    figure: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, str] = field(default_factory=dict)  # by scale
    equivalence: float = MARGIN  # rows closer than this, in points of a score, count as equivalent

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


def read_study(path: str | Path) -> Study:
    """The study in a YAML file; whatever is wrong with it is one sentence."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f'there is no study at {path}; see configs/studies/ for those that come with mmairl')
    try:
        found = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UserError(f'the study {path} is not YAML: {" ".join(str(error).split())}') from error
    if not isinstance(found, dict) or 'title' not in found or not ('rows' in found or 'cross' in found):
        raise UserError(f'the study {path} wants a title and rows (or cross); see configs/studies/ladder.yaml')
    _known(found, KEYS, f'the study {path}')
    described = found.get('rows') or _crossed(found['cross'])
    table = found.get('paper', {}).get('table', '')
    _published(table)  # a wrong name is told also where no row uses it
    rows = tuple(
        _row(row, described[place - 1]['name'] if place else None, table, path) for place, row in enumerate(described)
    )
    _check(rows, path)
    return Study(
        path.stem,
        found['title'],
        found.get('question', ''),
        rows,
        tuple(found.get('seeds', (0,))),
        {scale: tuple(tasks) for scale, tasks in found.get('tasks', {}).items()},
        found.get('paper', {}),
        found.get('figure', {'kind': 'bars'}),
        found.get('reading', {}),
        _margin(found.get('equivalence', MARGIN), path),
    )


def catalogue(folder: Path) -> str:
    """The studies of a folder as a table in Markdown: what of the papers each is, and its rows."""
    lines = ['| study | of the papers | rows |', '|---|---|---|']
    for study in map(read_study, sorted(folder.glob('*.yaml'))):
        rows = ', '.join(f'`{name}`' for name in dict.fromkeys(Path(row.config).stem for row in study.rows))
        lines.append(f'| `{study.name}.yaml`: {study.title} | {study.paper.get("where", "")} | {rows} |')
    return '\n'.join(lines) + '\n'


def _margin(value: Any, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UserError(f"the `equivalence` of {path} is '{value}'; give a number above 0, in points of the score")
    return float(value)


def _row(row: dict, above: str | None, table: str, path: Path) -> Row:
    _known(row, ROW_KEYS, f"the row '{row.get('name')}' of {path}")
    if 'name' not in row or 'config' not in row:
        raise UserError(f'a row of {path} lacks a name or a config')
    table, key = _place(row.get('published'), table)
    published = {} if key is None else _published(table)
    if key is not None and key not in published:
        raise UserError(f"the row '{row['name']}' of {path} names '{key}', which the paper's table does not hold")
    return Row(
        str(row['name']),
        row['config'],
        row.get('options', {}),
        row.get('against') or above,
        row.get('factor', ''),
        tuple(row.get('declares', ())),
        {} if key is None else published[key],
        '' if key is None else table,
        row.get('group'),
        row.get('x'),
        row.get('rescaled'),
    )


def _place(published: Any, table: str) -> tuple[str, str | None]:
    """Table and row of what was published: a row of the study's own table, or TABLE/ROW."""
    if published is None:
        return table, None
    other, _, key = str(published).rpartition('/')
    return other or table, key


def _published(name: str) -> dict[str, dict[str, float]]:
    """The rows of a published table as dictionaries, whether they are printed so, as lists under columns, or as one number."""
    if not name:
        return {}
    table, columns = tables(), ()
    for part in name.split('.'):
        if not isinstance(table, dict) or part not in table:
            raise UserError(f"there is no published table '{name}'; see mmairl/study/published.yaml")
        table = table[part]
        columns = table.get('columns', columns) if isinstance(table, dict) else columns
    rows = enumerate(table) if isinstance(table, list) else table.items()
    return {str(name): _numbers(row, columns) for name, row in rows if name != 'columns'}


def _numbers(row: Any, columns: list[str]) -> dict[str, float]:
    if not isinstance(row, dict):
        return dict(zip(columns, row)) if isinstance(row, list) else {'top1': row}
    return {key: value for key, value in row.items() if not isinstance(value, bool) and key not in SETTINGS}


def _crossed(cross: dict) -> list[dict]:
    """A base config and factors, each with its levels, as the rows of all combinations; the first is what the rest build on."""
    rows: list[dict] = [dict(name='', config=cross['config'], options={}, declares=[], factor=[])]
    for factor in cross['factors']:
        rows = [
            dict(
                row,
                name=f'{row["name"]}, {label}'.strip(', '),
                options={**row['options'], **options},
                declares=sorted({*row['declares'], *factor['declares']}),
                factor=[*row['factor'], f'{factor["name"]}: {label}'],
            )
            for row in rows
            for label, options in factor['levels'].items()
        ]
    first = dict(rows[0], declares=[], factor='')
    return [first, *(dict(row, against=first['name'], factor='; '.join(row['factor'])) for row in rows[1:])]


def _known(found: dict, known: set[str], where: str) -> None:
    unknown = sorted(found.keys() - known)
    if unknown:
        raise UserError(f"{where} has '{unknown[0]}', which nothing reads; known are {', '.join(sorted(known))}")


def _check(rows: tuple[Row, ...], path: Path) -> None:
    names = [row.name for row in rows]
    slugs = [row.slug for row in rows]
    if len(set(slugs)) < len(slugs):
        raise UserError(f'two rows of {path} have the same name (as a folder); rename one')
    for row in rows:
        rescaled = row.rescaled or {}
        for other in (row.against, rescaled.get('of'), rescaled.get('anchor')):
            if other is not None and other not in names:
                raise UserError(f"the row '{row.name}' of {path} builds on '{other}', which is no row of it")
