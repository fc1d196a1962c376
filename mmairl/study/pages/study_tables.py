"""The table of a study's scores, in three formats: for its page, in Markdown and in LaTeX.

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isfinite
from statistics import mean, stdev

from mmairl.report.page import LATEX, MARKDOWN, fill
from mmairl.report.table import escaped, signed
from mmairl.study.pages.words import BLANK
from mmairl.study.statistics.compare_rows import scores_by_seed
from mmairl.study.statistics.summary import missing_seeds
from mmairl.study.statistics.verdict_words import current_verdict

WORDS = {'measured': 'measured', 'published': 'published', 'gap': 'measured − published'}
LEGEND = (
    'Measured: mean ± sample standard deviation (n − 1) over n seeds. Δ: difference between the rounded means of a row and '
    'of the row with which it is compared, with the verdict of the test. — : not measured or not published.'
)
# These are the labels of the columns in the papers' tables, for studies that give only the key of a column.
LABELS = {
    'in1k': 'ImageNet linear', 'voc07_ap50': 'VOC07 AP50', 'voc07_ap': 'VOC07 AP', 'voc07_ap75': 'VOC07 AP75',
    'voc0712_ap50': 'VOC07+12 AP50', 'voc0712_ap': 'VOC07+12 AP', 'voc0712_ap75': 'VOC07+12 AP75',
    'coco_c4_box': 'COCO C4 box AP', 'coco_c4_mask': 'COCO C4 mask AP', 'coco_fpn_box': 'COCO FPN box AP',
    'coco_fpn_mask': 'COCO FPN mask AP', 'cityscapes_miou': 'Cityscapes mIoU', 'top1': 'ImageNet top-1',
    'top5': 'ImageNet top-5', 'scenes_ap50': 'scenes AP50', 'scenes_ap': 'scenes AP', 'scenes_miou': 'scenes mIoU',
}  # fmt: skip
STATES = {
    'missing': 'not run yet',
    'waiting': 'waiting for the runs that provide the weights',
    'running': 'running',
    'stopped': 'stopped; run the study again to resume',
    'failed': 'failed',
    'excluded': 'excluded',
    'replaced': 'the checkpoint, data, settings or source changed later; run the study again',
    'stale': 'the config or source changed after the start; run the study again',
}


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Args:
        kind: 'measured', 'published', or 'gap' for the measured score minus the published score.
        key: Key of the score.
        label: Heading of the column.
        unit: Unit of the score.
    """

    kind: str
    key: str
    label: str
    unit: str = ''

    def numbers(self, row: Mapping) -> tuple[float, ...]:
        """Return the numbers of a row in this column.

        They are the finite scores of its finished runs, its published score, or the difference between their mean and the
        published score.
        """
        scores = tuple(scores_by_seed(row, self.key).values())
        if self.kind == 'measured':
            return scores
        printed = row.get('published', {}).get(self.key)
        if printed is None:
            return ()
        if self.kind == 'published':
            return (printed,)
        return (mean(scores) - printed,) if scores else ()


@dataclass(frozen=True)
class Cell:
    """The text of a cell, with the numbers behind it.

    Args:
        numbers: The row's numbers in this column (`Column.numbers`).
        value: Their mean, as text.
        spread: Their standard deviation, as text.
        n: The number of runs behind a measured score; 0 in other columns.
        change: The difference from the base row, with the verdict, as text.
    """

    numbers: tuple[float, ...] = ()
    value: str = BLANK
    spread: str = ''
    n: int = 0
    change: str = ''


@dataclass(frozen=True)
class Line:
    """A line of the table: a row of the study, its cells in the order of `columns`, and the problems of its runs."""

    row: Mapping
    cells: tuple[Cell, ...]
    problems: tuple[str, ...]


def columns(study: Mapping) -> list[Column]:
    """Return the columns of the table.

    Each measured score is followed by the published score and the difference between them, if the paper reports this score.
    The other published scores come last.
    """
    published = {metric['key']: metric for metric in study['published_metrics']}
    kinds = []
    for metric in study['metrics']:
        kinds.append(('measured', metric))
        if metric['key'] in published:
            kinds.append(('published', published.pop(metric['key'])))
            kinds.append(('gap', metric))
    kinds += [('published', metric) for metric in published.values()]
    found = []
    for kind, metric in kinds:
        found.append(Column(kind, metric['key'], label_of(metric), metric.get('unit', '')))
    return found


def labels_of(study: Mapping) -> dict[str, str]:
    return {metric['key']: metric['label'] for metric in study['metrics']}


def label_of(metric: Mapping) -> str:
    return LABELS.get(metric['label'], metric['label'])


def table_lines(study: Mapping) -> list[Line]:
    by_column = [column_cells(study, column) for column in columns(study)]
    lines = []
    for number, row in enumerate(study['rows']):
        cells = tuple(cells[number] for cells in by_column)
        lines.append(Line(row, cells, tuple(row_problems(study, row))))
    return lines


def column_cells(study: Mapping, column: Column) -> list[Cell]:
    """Return the cell of each row in one column.

    The running time must be linear in the number of runs, because an untrusted study.json may have very many runs.
    """
    rows = study['rows']
    is_gap = column.kind == 'gap'
    numbers = [column.numbers(row) for row in rows]
    measured = replace(column, kind='measured')
    digits = _digits([measured.numbers(row) for row in rows] if is_gap else numbers)
    means: dict[str, float | None] = {}
    verdicts: dict[str, str] = {}
    if not is_gap:
        for row, values in zip(rows, numbers):
            means[row['name']] = mean(values) if values else None
    if column.kind == 'measured':
        family = study['comparisons'].get(column.key, ())
        verdicts = {pair['row']: current_verdict(pair) for pair in family}
    cells = []
    for row, values in zip(rows, numbers):
        change = ''
        if values and row['on'] in means:
            change = _change(mean(values), means[row['on']], digits)
            if row['name'] in verdicts:
                change = f'{change} {verdicts[row["name"]]}'
        cells.append(_cell(column, values, digits, change))
    return cells


def _digits(scores: Sequence[tuple[float, ...]]) -> int:
    """Return the number of decimals of scores and of their differences: one if a mean is at least 10, otherwise three."""
    largest = max((abs(mean(values)) for values in scores if values), default=10)
    return 1 if largest >= 10 else 3


def _change(value: float, before: float | None, digits: int) -> str:
    """Return the difference between two rounded means as text, as a reader would compute it from the table."""
    if before is None:
        return BLANK
    return signed(round(value, digits) - round(before, digits), digits)


def _cell(column: Column, numbers: tuple[float, ...], digits: int, change: str) -> Cell:
    if not numbers:
        return Cell()
    value = mean(numbers)
    text = signed(value, digits) if column.kind == 'gap' else f'{value:.{digits}f}'
    return Cell(
        numbers=numbers,
        value=text.replace('-', '−'),
        spread=f'± {stdev(numbers):.{digits}f}' if len(numbers) > 1 else '',
        n=len(numbers) if column.kind == 'measured' else 0,
        change=change,
    )


def row_problems(study: Mapping, row: Mapping) -> list[str]:
    """Return a sentence for each problem of a row's runs, with the seeds of these runs."""
    seeds: dict[str, list[str]] = {}
    for seed, _, sentence in problems_by_seed(study, row):
        seeds.setdefault(sentence, []).append(str(seed))
    sentences = []
    for sentence, numbers in seeds.items():
        plural = 's' if len(numbers) > 1 else ''
        sentences.append(f'seed{plural} {", ".join(numbers)}: {sentence}')
    return sentences


def problems_by_seed(study: Mapping, row: Mapping) -> Iterator[tuple[int, str, str]]:
    """Yield the seed, the state and a sentence for each problem of a row's runs, including runs that are missing."""
    for seed in missing_seeds(study, row):
        yield seed, 'missing', STATES['missing']
    for run in row['runs']:
        if run['state'] == 'done':
            for sentence in _problems_of(study, row, run):
                yield run['seed'], 'done', sentence
        else:
            error = ' '.join((run.get('error') or '').split())
            yield run['seed'], run['state'], STATES[run['state']] + (f' ({error})' if error else '')


def _problems_of(study: Mapping, row: Mapping, run: Mapping) -> Iterator[str]:
    """Yield the problems of a finished run: images or classes that a task left out, and missing or impossible scores."""
    labels = labels_of(study)
    for task, counts in run.get('left_out', {}).items():
        for what, count in counts.items():
            yield f'{labels.get(task, task)} leaves out {count} {what}'
    for metric in study['metrics']:
        label = metric['label']
        score = run['scores'].get(metric['key'])
        if score is None:
            # An untrained row may lack a score, because some tasks do not measure untrained rows.
            if not row.get('untrained'):
                yield f'{label} was not measured'
        elif not isfinite(score) or (metric.get('unit') == '%' and not 0 <= score <= 100):
            yield f'{label} is {score:g}'


def markdown(study: Mapping) -> str:
    """Return the table in Markdown, with a column of differences from the base row after each column of scores."""
    return _table('table.md', study, MARKDOWN)


def latex(study: Mapping) -> str:
    """Return the table in LaTeX, as wide as the text. It requires the packages booktabs and graphicx."""
    return _table('table.tex', study, LATEX)


def _table(template: str, study: Mapping, signs: Mapping[str, str]) -> str:
    """Fill in the template of a table.

    In all texts, line breaks are removed and characters of the markup language are replaced according to `signs`.
    """
    heads = columns(study)
    lines = table_lines(study)
    kinds = []
    start = 3
    for kind, group in groupby(heads, key=lambda column: column.kind):
        width = len(list(group)) * (1 if kind == 'gap' else 2)
        kinds.append(dict(name=WORDS[kind], width=width, first=start, last=start + width - 1))
        start += width
    notes = list(study.get('rows_left_out', ()))
    for line in lines:
        notes += [f'Row {line.row["name"]}, {problem}' for problem in line.problems]
    return fill(
        template,
        escape=lambda text: escaped(str(text), signs),
        number=latex_number,
        title=study['title'],
        legend=LEGEND,
        words=WORDS,
        columns=heads,
        kinds=kinds,
        width=start - 3,
        lines=[(line, _texts(line, heads)) for line in lines],
        notes=notes,
    )


def _texts(line: Line, heads: Sequence[Column]) -> list[str]:
    texts = []
    for column, cell in zip(heads, line.cells):
        n = f' (n = {cell.n})' if cell.n else ''
        texts.append(f'{cell.value} {cell.spread}'.strip() + n)
        if column.kind != 'gap':
            texts.append(cell.change)
    return texts


def latex_number(text: str) -> str:
    """Return the text of a cell with its number in math mode, so that minus signs are typeset correctly."""
    if text in ('', BLANK):
        return '---' if text else ''
    number, _, n = text.partition(' (n = ')
    number, _, verdict = number.partition(' ') if '±' not in number else (number, '', '')
    number = number.replace('−', '-').replace('±', r'\pm')
    seeds = rf'\,{{\scriptsize $n={n[:-1]}$}}' if n else ''
    return f'${number}${seeds}' + (f' {verdict}' if verdict else '')
