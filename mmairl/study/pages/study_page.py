"""The page of a study: problems, answer, next steps, effects, scores and evidence.

A row of a study is one configuration, usually trained with several seeds.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from markupsafe import Markup

from mmairl.io import replacing
from mmairl.report.effects import WIDTHS, EffectsFigure, effect_files, effect_tables, figure_files
from mmairl.report.figures import chart, lines, study_lines, study_scatter
from mmairl.report.page import write_page
from mmairl.report.table import html_table
from mmairl.study.analyses import analysis_sections
from mmairl.study.pages.answer import answer, next_steps, problems
from mmairl.study.pages.evidence import evidence_parts, fairness_summary, trained_runs
from mmairl.study.pages.findings import Findings, all_findings
from mmairl.study.pages.study_tables import (
    WORDS,
    Cell,
    Column,
    Line,
    columns,
    labels_of,
    table_lines,
)
from mmairl.study.pages.words import counted, duration
from mmairl.study.statistics.summary import progress

# The mark of each kind of effect in the figure, as an SVG path around the origin.
MARKS = dict(
    differs='M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0z',
    equivalent='M-5 -5h10v10h-10z',
    inconclusive='M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z',
    problem='M-5 -5l10 10m0 -10l-10 10',
    share='M0 -7v14',
    published='M0 -5l5 5l-5 5l-5 -5z',
)
# A figure with more effects than this has no pictures to download; `report study --figures` has no such limit.
MOST_DRAWN = 60
DOWNLOAD = 'data:application/octet-stream;base64,'
Record = Mapping[str, Any]


def write_study_page(study: Record, out: str | Path) -> Path:
    """Write the page of a study as one file.

    Args:
        study: The record of the study (the content of study.json).
        out: The path of the page. The page's links to folders and checkpoints are relative to the folder of study.json.

    Returns:
        The path of the page.
    """
    return write_page(out, 'study.html', **page_data(study))


def write_figures(study: Record, folder: str | Path) -> list[Path]:
    """Write each figure of a study in two widths, and the numbers of its effects as tables.

    The widths are those of a column and of a page of text.

    Args:
        study: The record of the study (the content of study.json).
        folder: The folder to write the files into.

    Returns:
        The paths of the files: SVG, PDF, PNG, LaTeX, Markdown and CSV.
    """
    files: dict[str, bytes] = {}
    for width, inches in WIDTHS.items():
        for found in all_findings(study):
            for kind, content in effect_files(found.figure(), width).items():
                files[f'effects_{_file_name(found.key)}_{width}.{kind}'] = content
        for curves in _curves(study, table_lines(study)):
            name = _file_name(curves['title'])
            for kind, content in figure_files(lines(**curves, width=inches)).items():
                files[f'{name}_{width}.{kind}'] = content
    paths = []
    for name, content in files.items():
        path = Path(folder) / name
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        paths.append(path)
    return paths


def _file_name(title: str) -> str:
    return ''.join(sign if sign.isalnum() else '_' for sign in title)[:80]


def page_data(study: Record) -> dict[str, Any]:
    """Return the values of `study.html`, the template of the page."""
    found = all_findings(study)
    lines = table_lines(study)
    figure = study['figure']
    return dict(
        title=study['title'],
        lead=study['question'],
        facts=_facts(study),
        problems=problems(study),
        answer=answer(study),
        steps=next_steps(study),
        analyses=analysis_sections(study),
        figures=[_figure(one) for one in found],
        marks=MARKS,
        charts=[chart(**curves) for curves in _curves(study, lines)],
        charts_title=f'Scores along {figure.get("x") or "x"}',
        left_out=' '.join(f'{note}.' for note in study.get('rows_left_out', ())),
        **_score_tables(study, lines, found[0].published_key if found else ''),
        parts=list(evidence_parts(study, found, lines)),
    )


def _facts(study: Record) -> dict[str, str]:
    """Return the facts that the page shows below its title."""
    finished, asked = progress(study)
    seconds = [run['seconds'] for run in trained_runs(study) if run.get('seconds')]
    time = f', {duration(sum(seconds))} of training' if seconds else ''
    seeds = counted(len(study['seeds']), 'seed')
    scale = study['scale']
    return dict(
        Scale=f'{scale["name"]}: {scale["text"]}; effects may differ at other scales',
        Runs=f'{finished} of {asked} finished, {seeds}{time}',
        Fairness=fairness_summary(study)[0],
        Paper=_paper(study),
    )


def _paper(study: Record) -> str:
    where = study['paper'].get('where') or 'none'
    return where if study['published_metrics'] else f'{where}, no published numbers for these rows'


def _figure(found: Findings) -> tuple[EffectsFigure, str, list[tuple[str, str]]]:
    """Return an effects figure, the base name of its files, and a download link for each file."""
    figure = found.figure()
    is_long = len(figure.effects) > MOST_DRAWN
    files = effect_tables(figure) if is_long else effect_files(figure)
    links = [(kind, DOWNLOAD + b64encode(content).decode()) for kind, content in files.items()]
    return figure, f'effects_{_file_name(found.key)}', links


def _curves(study: Record, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the arguments for drawing each chart of scores that the study declares.

    There is a line chart for each measured or published score that two or more rows have. Scatter plots show only measured
    scores.
    """
    kind = study['figure'].get('kind')
    if kind not in ('lines', 'scatter'):
        return []
    charts = []
    for number, column in enumerate(columns(study)):
        points = _points(study, column, lines, number)
        if column.kind == 'gap' or sum(bool(values) for _, values, _ in points) < 2:
            continue
        title = f'{column.label}, {column.kind}'
        if kind == 'lines':
            charts.append(study_lines(points, title, study['figure'].get('x', '')))
        elif column.kind == 'measured' and column.key != _across(study):
            charts.append(_scatter(study, points, title, lines))
    return charts


def _points(study: Record, column: Column, lines: Sequence[Line], number: int) -> list[tuple]:
    published = column.kind == 'published'
    intervals = {} if published else study.get('intervals', {}).get(column.key, {})
    return [
        (line.row, line.cells[number].numbers, intervals.get(line.row['name'])) for line in lines
    ]


def _across(study: Record) -> str:
    """Return the key of the score on the x axis of the study's scatter plots."""
    labels = labels_of(study)
    x = study['figure'].get('x')
    return x if x in labels else next(iter(labels), '')


def _scatter(
    study: Record, points: Sequence[tuple], title: str, lines: Sequence[Line]
) -> dict[str, Any]:
    x = _across(study)
    along = [Column('measured', x, '').numbers(line.row) for line in lines]
    means = [mean(scores) if scores else None for scores in along]
    return study_scatter(points, means, title, labels_of(study)[x])


def _score_tables(study: Record, lines: Sequence[Line], first: str) -> dict[str, Markup]:
    """Return a table of the measured scores and one published score, and a table of the other published scores.

    The published score in the first table is the score with the key `first`, if the paper reports this score.
    """
    heads = columns(study)
    published = [number for number, head in enumerate(heads) if head.kind == 'published']
    published.sort(key=lambda number: heads[number].key != first)
    measured = [number for number, head in enumerate(heads) if head.kind != 'published']
    return dict(
        scores=_score_table(lines, heads, [*measured, *published[:1]], problems=True),
        more_scores=_score_table(lines, heads, published[1:]) if published[1:] else Markup(),
    )


def _score_table(
    lines: Sequence[Line], heads: Sequence[Column], shown: Sequence[int], problems: bool = False
) -> Markup:
    columns = []
    for number in shown:
        head = heads[number]
        kind = '' if head.kind == 'measured' else f' ({WORDS[head.kind]})'
        columns.append(f'{head.label}{f", {head.unit}" if head.unit else ""}{kind}')
    bars = sum(heads[number].kind == 'measured' for number in shown)
    rows = []
    for number, line in enumerate(lines):
        name = Markup('<a href="#row-{}">{}</a>').format(number, line.row['name'])
        for problem in line.problems if problems else ():
            name += Markup('<small class="bad">✕ {}</small>').format(problem)
        rows.append((name, [_score(line.cells[place], heads[place]) for place in shown]))
    return html_table(columns, rows, bars=bars, head='row')


def _score(cell: Cell, head: Column) -> Markup:
    if head.kind == 'measured':
        return Markup('<b>{}</b> <i>{}</i>').format(cell.value, cell.spread)
    return Markup('<i class="paper">{}</i>').format(cell.value)
