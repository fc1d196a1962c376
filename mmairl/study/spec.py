"""A study as its YAML says it: rows of configs, each with the factor that it changes, seeds, tasks, and what was published."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmairl.errors import UserError
from mmairl.study import published
from mmairl.study.statistics import MARGIN

KEYS = {
    *('title', 'question', 'paper', 'figure', 'seeds', 'tasks', 'rows', 'cross', 'reading', 'equivalence'),
    *('measured', 'look'),
}
ROW_KEYS = {
    'name',
    'config',
    'options',
    'against',
    'factor',
    'declares',
    'published',
    'group',
    'x',
    'rescaled',
    'along',
}


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
    rescaled: dict[str, Any] | None = (
        None  # no training: the row `of`, NormRescaled by the row `anchor` or by a `constant`
    )

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
    question: str
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    tasks: dict[str, tuple[str, ...]]  # by scale; 'in1k' is the paper's
    paper: dict[str, Any] = field(default_factory=dict)
    figure: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, str] = field(default_factory=dict)  # by scale
    measured: dict[str, str] = field(default_factory=dict)  # by what was published: the task that measures it
    look: tuple[dict[str, Any], ...] = ()  # rows that an instrument of tools/analyze.py compares
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
    published.rows(table)  # a wrong name is told also where no row uses it
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
        found.get('measured', {}),
        tuple(found.get('look', ())),
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
    return Row(
        str(row['name']),
        row['config'],
        row.get('options', {}),
        row.get('against') or above,
        row.get('factor', ''),
        tuple(row.get('declares', ())),
        _printed(row.get('published'), table),
        row.get('group'),
        row.get('x'),
        row.get('rescaled'),
        row.get('along'),
    )


def _printed(names: Any, table: str) -> dict[str, float]:
    """What was published of a row: rows of the study's own table, or TABLE/ROW of others; one, or a list of them."""
    found = {}
    for name in [] if names is None else names if isinstance(names, list) else [names]:
        found |= published.row(name if '/' in str(name) else f'{table}/{name}')
    return found


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
        for other in (row.against, *row.others.values()):
            if other is not None and other not in names:
                raise UserError(f"the row '{row.name}' of {path} builds on '{other}', which is no row of it")
