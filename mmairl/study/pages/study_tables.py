"""A study's table, once as data and written as Markdown and LaTeX; the page draws the same cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import isfinite
from statistics import mean, stdev

from mmairl.report.page import LATEX, MARKDOWN, fill
from mmairl.study.statistics.verdict_words import differs_in_mean

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
    'top5': 'ImageNet top-5', 'scenes_ap50': 'scenes AP50', 'scenes_ap': 'scenes AP', 'scenes_miou': 'scenes mIoU',
}  # fmt: skip
STATES = {
    'missing': 'has not run',
    'waiting': 'waits for runs that it takes something from',
    'running': 'is running',
    'stopped': 'was stopped, and goes on when the study is run again',
    'failed': 'failed',
    'replaced': 'was measured before its checkpoint, data, settings or source code were changed; run the study again',
    'stale': 'was begun before its config or source code was changed; run the study again',
}


@dataclass(frozen=True)
class Column:
    """A column of numbers: measured here, published, or the one less the other."""

    kind: str
    key: str
    label: str
    unit: str = ''

    def numbers(self, row: Mapping) -> tuple[float, ...]:
        """A row's finite score of each finished run, the number that was printed for it, or the difference."""
        values = (run.get('scores', {}).get(self.key) for run in row['runs'] if run['state'] == 'done')
        scores = tuple(value for value in values if value is not None and isfinite(value))
        if self.kind == 'measured':
            return scores
        printed = row.get('published', {}).get(self.key)
        if printed is None or (self.kind == 'gap' and not scores):
            return ()
        return (mean(scores) - printed if self.kind == 'gap' else printed,)


@dataclass(frozen=True)
class Cell:
    """Numbers as text: their mean, its spread over `n` runs, and the difference to the row that it builds on."""

    numbers: tuple[float, ...] = ()
    value: str = BLANK
    spread: str = ''
    n: int = 0
    change: str = ''


@dataclass(frozen=True)
class Line:
    """A row, its cells in the order of `columns`, and what is wrong with its runs."""

    row: Mapping
    cells: tuple[Cell, ...]
    problems: tuple[str, ...]


def columns(study: Mapping) -> list[Column]:
    """Each measured metric, the published one of the same key beside it, and then what was published besides."""
    published, kinds = {metric['key']: metric for metric in study['published_metrics']}, []
    for metric in study['metrics']:
        kinds.append(('measured', metric))
        if metric['key'] in published:
            kinds += [('published', published.pop(metric['key'])), ('gap', metric)]
    kinds += [('published', metric) for metric in published.values()]
    return [Column(kind, m['key'], LABELS.get(m['label'], m['label']), m.get('unit', '')) for kind, m in kinds]


def table_lines(study: Mapping) -> list[Line]:
    by_column = [column_cells(study, column) for column in columns(study)]
    return [
        Line(row, tuple(cells[place] for cells in by_column), tuple(problems(study, row)))
        for place, row in enumerate(study['rows'])
    ]


def column_cells(study: Mapping, column: Column) -> list[Cell]:
    """Return a column's cell of each row. A difference that no test finds is in parentheses.

    The time is linear in the number of runs, because a study.json may come from anybody.
    """
    rows, is_gap = study['rows'], column.kind == 'gap'
    numbers = [column.numbers(row) for row in rows]
    # A difference has the digits of the numbers that it is between: one for percentages, three for quantities about 1.
    scores = map(replace(column, kind='measured').numbers, rows) if is_gap else numbers
    digits = 1 if max((abs(mean(values)) for values in scores if values), default=10) >= 10 else 3
    means = {} if is_gap else {row['name']: mean(values) if values else None for row, values in zip(rows, numbers)}
    certain = _rows_that_differ(study, column)
    cells = []
    for row, values in zip(rows, numbers):
        change = ''
        if values and row['on'] in means:
            before = means[row['on']]
            change = BLANK if before is None else signed(mean(values) - before, digits)
            change = change if before is None or row['name'] in certain else f'({change})'
        cells.append(_cell(column, values, digits, change))
    return cells


def _rows_that_differ(study: Mapping, column: Column) -> set[str]:
    """Return the rows whose difference to their base is certain: a test finds it, or both numbers were printed."""
    if column.kind == 'published':
        return {row['name'] for row in study['rows']}
    comparisons = [found for family in study['comparisons'].values() for found in family]
    return {one['row'] for one in comparisons if one['metric'] == column.key and differs_in_mean(one)}


def _cell(column: Column, numbers: tuple[float, ...], digits: int, change: str) -> Cell:
    if not numbers:
        return Cell()
    form = partial(signed, digits=digits) if column.kind == 'gap' else f'{{:.{digits}f}}'.format
    spread = f'± {stdev(numbers):.{digits}f}' if len(numbers) > 1 else ''
    count = len(numbers) if column.kind == 'measured' else 0
    return Cell(numbers, form(mean(numbers)).replace('-', '−'), spread, count, change)


def signed(value: float, digits: int) -> str:
    """With its sign, unless it rounds to nothing."""
    text = f'{value:+.{digits}f}'.replace('-', '−')
    return text if float(text[1:]) else text[1:]


def problems(study: Mapping, row: Mapping) -> list[str]:
    """List missing and failed runs, one sentence per cause: a mean over the other seeds would hide them."""
    present = {run['seed'] for run in row['runs']}
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    one_run = study.get('sequential') or row.get('untrained') or row.get('given')
    asked = () if one_run else study['seeds']  # rows that are decided got no more seeds
    lacking = [(seed, STATES['missing']) for seed in asked if seed not in present]
    for run in row['runs']:
        if run['state'] != 'done':
            error = ' '.join((run.get('error') or '').split())
            lacking.append((run['seed'], STATES[run['state']] + (f': {error}' if error else '')))
            continue
        for task, counts in run.get('left_out', {}).items():
            label = labels.get(task, task)
            lacking += [(run['seed'], f'{label} leaves out {count} {what}') for what, count in counts.items()]
        for metric in study['metrics']:
            value = run['scores'].get(metric['key'])
            if value is None and row.get('untrained'):
                continue  # not every task is for a null row
            if value is None or not isfinite(value):
                what = 'was not measured' if value is None else f'is {value}'
                lacking.append((run['seed'], f'{metric["label"]} {what}'))
    by_sentence: dict[str, list[str]] = {}
    for seed, sentence in lacking:
        by_sentence.setdefault(sentence, []).append(str(seed))
    return [f'seed{"s" * (len(seeds) > 1)} {", ".join(seeds)}: {sentence}' for sentence, seeds in by_sentence.items()]


def markdown(study: Mapping) -> str:
    """The table for a README: a column of differences beside each column of numbers."""
    return _table('table.md', study, MARKDOWN)


def latex(study: Mapping) -> str:
    """The table for a paper, which loads booktabs and graphicx (the table is as wide as the text)."""
    return _table('table.tex', study, LATEX)


def _table(template: str, study: Mapping, signs: Mapping[str, str]) -> str:
    """The columns' heads and the cells of each row; beside a number stands its difference, unless it is one itself.

    Text is on one line, and `signs` stand for its characters that would be markup.
    """
    heads, lines, kinds, start = columns(study), table_lines(study), [], 3
    for kind, group in groupby(heads, key=lambda column: column.kind):
        width = len(list(group)) * (1 if kind == 'gap' else 2)
        kinds.append(dict(name=WORDS[kind], width=width, first=start, last=start + width - 1))
        start += width
    return fill(
        template,
        escape=lambda text: ' '.join(str(text).split()).translate(str.maketrans(dict(signs))),
        number=latex_number,
        title=study['title'],
        legend=LEGEND,
        words=WORDS,
        columns=heads,
        kinds=kinds,
        width=start - 3,
        lines=[(line, _texts(line, heads)) for line in lines],
        notes=[
            *study.get('rows_left_out', ()),
            *(f'Row {line.row["name"]}, {problem}' for line in lines for problem in line.problems),
        ],
    )


def _texts(line: Line, heads: Sequence[Column]) -> list[str]:
    texts = []
    for column, cell in zip(heads, line.cells):
        n = f' (n = {cell.n})' if cell.n else ''
        texts += [f'{cell.value} {cell.spread}'.strip() + n, *([cell.change] * (column.kind != 'gap'))]
    return texts


def latex_number(text: str) -> str:
    """A cell in mathematics, so that its signs are signs."""
    if text in ('', BLANK):
        return '---' if text else ''
    number, _, n = text.partition(' (n = ')
    number = number.replace('−', '-').replace('±', r'\pm')
    return f'${number}$' + (rf'\,{{\scriptsize $n={n[:-1]}$}}' if n else '')
