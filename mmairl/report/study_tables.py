"""A study's table, once as data and written as Markdown and LaTeX; the page draws the same cells."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from statistics import mean, stdev

from mmairl.report.page import fill

BLANK = '—'
WORDS = {'measured': 'measured', 'published': 'published', 'gap': 'measured − published'}
LEGEND = (
    'Measured: mean ± sample standard deviation (n − 1) over n seeds. Δ: difference to the row that it builds on, of unrounded '
    'means; of measured rows in parentheses unless a test says that they differ. — : not measured, or not printed in the paper.'
)
# The columns of the papers' tables, where a study has no label but the key.
LABELS = {
    'in1k': 'ImageNet linear', 'voc07_ap50': 'VOC07 AP50', 'voc07_ap': 'VOC07 AP', 'voc07_ap75': 'VOC07 AP75',
    'voc0712_ap50': 'VOC07+12 AP50', 'voc0712_ap': 'VOC07+12 AP', 'voc0712_ap75': 'VOC07+12 AP75',
    'coco_c4_box': 'COCO C4 box AP', 'coco_c4_mask': 'COCO C4 mask AP', 'coco_fpn_box': 'COCO FPN box AP',
    'coco_fpn_mask': 'COCO FPN mask AP', 'cityscapes_miou': 'Cityscapes mIoU', 'top1': 'ImageNet top-1',
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of numbers: measured here, published, or the one less the other."""

    kind: str
    key: str
    label: str
    unit: str = ''


@dataclass(frozen=True)
class Cell:
    """A number as text, its spread over `n` runs, and the difference to the row that it builds on."""

    value: str = BLANK
    spread: str = ''
    n: int = 0
    change: str = ''


@dataclass(frozen=True)
class Line:
    """A row: its name, what it changes in which other row, its cells, and what is wrong with its runs."""

    name: str
    factor: str
    on: str | None
    cells: tuple[Cell, ...]
    problems: tuple[str, ...]


def done(row: Mapping) -> list[dict]:
    """The runs whose scores count: those that ended."""
    return [run for run in row['runs'] if run['state'] == 'done']


def scores(row: Mapping, key: str) -> tuple[float, ...]:
    """One finite score a finished run; what diverged is among the `problems`, not in the mean."""
    found = (run.get('scores', {}).get(key) for run in done(row))
    return tuple(value for value in found if value is not None and isfinite(value))


def columns(study: Mapping) -> list[Column]:
    """Each measured metric, the published one of the same key beside it, and then what was published besides."""
    metrics = {metric['key']: metric for metric in study['metrics']}
    published = {metric['key']: metric for metric in published_metrics(study)}
    found = []
    for key, metric in metrics.items():
        found.append(_column('measured', metric))
        if key in published:
            found += [_column('published', published[key]), _column('gap', metric)]
    return found + [_column('published', metric) for key, metric in published.items() if key not in metrics]


def _column(kind: str, metric: Mapping) -> Column:
    key, label = metric['key'], metric.get('label', metric['key'])
    return Column(kind, key, LABELS.get(label, label), metric.get('unit', ''))


def published_metrics(study: Mapping) -> list[dict]:
    """Those that the paper prints for any row of the study."""
    return [
        metric
        for metric in study.get('published_metrics', ())
        if any(metric['key'] in row.get('published', {}) for row in study['rows'])
    ]


def table_lines(study: Mapping) -> list[Line]:
    """The table's rows, their cells in the order of `columns`."""
    rows, found = {row['name']: row for row in study['rows']}, columns(study)
    comparisons = [of for family in study.get('comparisons', {}).values() for of in family]
    differ = {(of['row'], of['metric']) for of in comparisons if of['verdict'] == 'differs'}
    digits = {column: _digits(study, column) for column in found}
    return [
        Line(
            row['name'],
            row.get('factor') or '',
            row.get('on'),
            tuple(_cell(row, rows.get(row.get('on')), column, digits[column], differ) for column in found),
            tuple(problems(study, row)),
        )
        for row in study['rows']
    ]


def _cell(row: Mapping, base: Mapping | None, column: Column, digits: int, differ: set[tuple[str, str]]) -> Cell:
    value, values = _value(row, column), scores(row, column.key) if column.kind == 'measured' else ()
    if value is None:
        return Cell()
    return Cell(
        signed(value, digits) if column.kind == 'gap' else _number(value, digits),
        f'± {stdev(values):.{digits}f}' if len(values) > 1 else '',
        len(values),
        _change(row, base, column, digits, differ) if base and column.kind != 'gap' else '',
    )


def _value(row: Mapping, column: Column) -> float | None:
    values, printed = scores(row, column.key), row.get('published', {}).get(column.key)
    measured = mean(values) if values else None
    if column.kind == 'gap':
        return None if measured is None or printed is None else measured - printed
    return measured if column.kind == 'measured' else printed


def _change(row: Mapping, base: Mapping, column: Column, digits: int, differ: set[tuple[str, str]]) -> str:
    """The difference of two rows; what a published number's spread is, nobody printed."""
    one, two = _value(row, column), _value(base, column)
    if one is None or two is None:
        return BLANK
    text = signed(one - two, digits)
    undecided = column.kind == 'measured' and (row['name'], column.key) not in differ
    return f'({text})' if undecided else text


def _digits(study: Mapping, column: Column) -> int:
    """One decimal for percentages, three for quantities about 1."""
    kind = 'measured' if column.kind == 'gap' else column.kind
    values = [_value(row, Column(kind, column.key, '')) for row in study['rows']]
    return 1 if max((abs(value) for value in values if value is not None), default=10) >= 10 else 3


def _number(value: float, digits: int) -> str:
    return f'{value:.{digits}f}'.replace('-', '−')


STATES = {
    'missing': 'has not run',
    'failed': 'failed',
    'running': 'is not finished',
    'replaced': 'was measured before its checkpoint was replaced; run the study again',
}


def signed(value: float, digits: int) -> str:
    """With its sign, unless it rounds to nothing."""
    text = f'{value:+.{digits}f}'.replace('-', '−')
    return text if float(text[1:]) else text[1:]


def problems(study: Mapping, row: Mapping) -> list[str]:
    """What the row's means lack and why, a sentence for all seeds that it holds of."""
    by_sentence: dict[str, list] = {}
    for seed, sentence in _lacking(study, row):
        by_sentence.setdefault(sentence, []).append(seed)
    return [
        f'seed{"s" * (len(seeds) > 1)} {", ".join(map(str, seeds))}: {sentence}'
        for sentence, seeds in by_sentence.items()
    ]


def _lacking(study: Mapping, row: Mapping) -> Iterator[tuple[object, str]]:
    """Seeds that did not end, and scores that are no number, which a mean over the others would hide."""
    present = {run['seed'] for run in row['runs']}
    yield from ((seed, STATES['missing']) for seed in study.get('seeds', ()) if seed not in present)
    for run in row['runs']:
        if run['state'] != 'done':
            error = ' '.join((run.get('error') or '').split())
            yield run['seed'], STATES.get(run['state'], run['state']) + (f': {error}' if error else '')
            continue
        for metric in study['metrics']:
            value = run.get('scores', {}).get(metric['key'])
            if value is None:
                yield run['seed'], f'{metric["label"]} was not measured'
            elif not isfinite(value):
                yield run['seed'], f'{metric["label"]} is {value}'


def markdown(study: Mapping) -> str:
    """The table for a README: a column of differences beside each column of numbers."""
    return _table('table.md', study, _markdown)


def latex(study: Mapping) -> str:
    """The table for a paper, which loads booktabs and graphicx (the table is as wide as the text)."""
    return _table('table.tex', study, _latex)


def _table(template: str, study: Mapping, escape: Callable[[str], str]) -> str:
    """The columns' heads and the cells of each row; beside a number stands its difference, unless it is one itself."""
    found, lines, kinds, start = columns(study), table_lines(study), [], 3
    for kind, of in groupby(found, key=lambda column: column.kind):
        width = len(list(of)) * (1 if kind == 'gap' else 2)
        kinds.append(dict(name=WORDS[kind], width=width, first=start, last=start + width - 1))
        start += width
    return fill(
        template,
        escape=escape,
        number=latex_number,
        title=study['title'],
        legend=LEGEND,
        words=WORDS,
        columns=found,
        kinds=kinds,
        width=start - 3,
        lines=[(line, _texts(line, found)) for line in lines],
        notes=[(line.name, problem) for line in lines for problem in line.problems],
    )


def _texts(line: Line, found: Sequence[Column]) -> list[str]:
    texts = []
    for column, cell in zip(found, line.cells):
        n = f' (n = {cell.n})' if cell.n else ''
        texts += [f'{cell.value} {cell.spread}'.strip() + n, *([cell.change] * (column.kind != 'gap'))]
    return texts


def _markdown(text: str) -> str:
    """Plain text in a cell: neither markup nor a new column nor a new line."""
    text = ' '.join(str(text).split()).replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')
    return ''.join(f'\\{c}' if c in '\\|`*_[]$~' else c for c in text)


LATEX = {
    '\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}',
    '<': r'\textless{}', '>': r'\textgreater{}', '|': r'\textbar{}', '"': r'\textquotedbl{}', '[': '{[}',
    **{c: f'\\{c}' for c in '&%$#_{}'},
    '—': '---', '–': '--', '−': '$-$', '±': r'$\pm$', '×': r'$\times$', '→': r'$\rightarrow$', '·': r'$\cdot$',
    'Δ': r'$\Delta$',
}  # fmt: skip


def _latex(text: str) -> str:
    """Plain text for LaTeX."""
    return ''.join(LATEX.get(c, c) for c in ' '.join(str(text).split()))


def latex_number(text: str) -> str:
    """A cell in mathematics, so that its signs are signs."""
    if text in ('', BLANK):
        return '---' if text else ''
    number, _, n = text.partition(' (n = ')
    number = number.replace('−', '-').replace('±', r'\pm')
    return f'${number}$' + (rf'\,{{\scriptsize $n={n[:-1]}$}}' if n else '')
