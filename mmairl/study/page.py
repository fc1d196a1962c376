"""The page of a study: problems, answer, next steps, effects, scores and evidence. Also its table and its figures as files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from mmairl.io import write_text
from mmairl.report.figures import embedded, lines, save_figure
from mmairl.report.page import write_page
from mmairl.report.table import Table, counted, signed
from mmairl.study.answer import (
    answer,
    command,
    duration,
    next_steps,
    problems,
    progress,
)
from mmairl.study.effects import MARKS, EffectsView, effects_figure
from mmairl.study.findings import Findings, all_findings
from mmairl.study.statistics.compare import scores_by_row

Record = Mapping[str, Any]


def write_results(study: Record, out: str | Path) -> Path:
    """Write the page of a study (page.html) and its table of scores (table.md and table.tex) to a folder.

    Args:
        study: The record of the study (the content of study.json).
        out: The folder of study.json, to which the page's links are relative.

    Returns:
        The path of the page.
    """
    out = Path(out)
    table = score_table(study)
    write_text(out / 'table.md', table.markdown())
    write_text(out / 'table.tex', table.latex())
    return write_page(out / 'page.html', 'study.html', **page_values(study))


def write_figures(study: Record, folder: str | Path) -> list[Path]:
    """Write each figure of a study as SVG, PDF and PNG, and the numbers of its effects as LaTeX, Markdown and CSV.

    Args:
        study: The record of the study (the content of study.json).
        folder: The folder to write the files into.

    Returns:
        The paths of the files.
    """
    folder = Path(folder)
    for found in all_findings(study):
        view = EffectsView(found)
        stem = folder / f'effects_{_file_name(found.key)}'
        save_figure(effects_figure(view), stem)
        view.table().save(stem)
        write_text(f'{stem}.tex', view.table().latex())
        write_text(f'{stem}.md', view.table().markdown())
    for title, figure in curves(study):
        save_figure(figure, folder / _file_name(title))
    return sorted(folder.iterdir())


def _file_name(title: str) -> str:
    return ''.join(sign if sign.isalnum() else '_' for sign in title)[:80]


def page_values(study: Record) -> dict[str, Any]:
    """Return the values of `study.html`, the template of the page."""
    return dict(
        title=study['title'],
        lead=study['question'],
        study=study,
        facts=_facts(study),
        problems=problems(study),
        answer=answer(study),
        steps=next_steps(study),
        views=[EffectsView(found) for found in all_findings(study)],
        marks=MARKS,
        curves=[embedded(figure, title) for title, figure in curves(study)],
        scores=score_table(study).html(),
        runs=_runs(study).html(),
        command=command(study),
    )


def _facts(study: Record) -> dict[str, str]:
    """Return the facts that the page shows below its title."""
    runs = [run for row in study['rows'] for run in row['runs']]
    finished, asked = progress(study)
    seconds = sum(run.get('seconds') or 0 for run in runs)
    name, text = study['scale']['name'], study['scale']['text']
    return {
        'Scale': f'{name}: {text}' if name else text,
        'Runs': f'{finished} of {asked} finished, {counted(len(study["seeds"]), "seed")}, {duration(seconds)} of training',
        'Fairness': fairness_summary(study),
        'Code': ', '.join(sorted({run['commit'] for run in runs if run.get('commit')})),
        'Paper': study['paper'],
    }


def score_table(study: Record) -> Table:
    """Return the table of scores: measured scores, differences from the random network, and published scores."""
    metrics = [Findings(study, metric) for metric in study['metrics']]
    published = dict.fromkeys(key for row in study['rows'] for key in row['published'])
    columns = ['row']
    for found in metrics:
        unit = f', {found.metric["unit"]}' if found.metric['unit'] else ''
        columns.append(f'{found.label}{unit}')
    above = metrics[0].above_random if metrics else {}
    columns += ['above the random network'] if above else []
    rows = []
    for row in study['rows']:
        cells = [row['name'], *(_score(found, row['name']) for found in metrics)]
        if above:
            value = above.get(row['name'])
            cells.append(None if value is None else signed(value, metrics[0].digits))
        rows.append([*cells, *(row['published'].get(key) for key in published)])
    return Table([*columns, *(f'{key} (published)' for key in published)], rows)


def _score(found: Findings, row: str) -> str | None:
    scores = list(found.scores[row].values())
    if not scores:
        return None
    text = f'{mean(scores):.{found.digits}f}'
    if len(scores) > 1:
        text += f' ± {stdev(scores):.{found.digits}f} (n = {len(scores)})'
    return text.replace('-', '−')


def curves(study: Record) -> Iterator[tuple[str, Figure]]:
    """Yield the title and the figure of each score along the rows' x values, or along the score that `x` names."""
    keys = [metric['key'] for metric in study['metrics']]
    along = study['x']
    across = {row['name']: row['x'] for row in study['rows']}
    if along in keys:
        scores = scores_by_row(study, along)
        across = {
            name: mean(by_seed.values()) if by_seed else None for name, by_seed in scores.items()
        }
    for metric in study['metrics']:
        groups: dict[str, list[tuple[float, ...]]] = {}
        scores = scores_by_row(study, metric['key'])
        for row in study['rows']:
            values = scores[row['name']].values()
            if values and across[row['name']] is not None and metric['key'] != along:
                point = (across[row['name']], mean(values), min(values), max(values))
                groups.setdefault(row['group'], []).append(point)
        if any(len(points) > 1 for points in groups.values()):
            series = {group: tuple(zip(*sorted(points))) for group, points in groups.items()}
            xs = [x for points in groups.values() for x, *_ in points]
            log = 'x' if max(xs) > 8 * min(xs) > 0 else ''
            yield (
                metric['label'],
                lines(series, metric['label'], along, log=log, dots=along in keys),
            )


def fairness_summary(study: Record) -> str:
    """Return the result of the fairness check as one line."""
    unequal = sum(not check['equal'] for check in study['fairness']['after'])
    blanket = sum(bool(entry['blanket']) for entry in study['fairness']['before'])
    parts = ['no undeclared difference']
    if blanket:
        parts.append(f'{counted(blanket, "row declares", "rows declare")} whole parts of a config')
    if unequal:
        parts.append(f'{counted(unequal, "property differs", "properties differ")} between runs')
    return ', '.join(parts)


def _runs(study: Record) -> Table:
    metrics = study['metrics']
    columns = ['run', 'state', *(metric['label'] for metric in metrics), 'spread', 'rank']
    columns += ['training', 'commit', 'hardware', 'folder']
    rows = []
    for row in study['rows']:
        for run in row['runs']:
            state = 'collapsed' if run.get('collapsed') else run['state']
            scores = [run['scores'].get(metric['key']) for metric in metrics]
            facts = [run.get(key) for key in ('spread', 'rank', 'commit', 'hardware')]
            facts.insert(2, duration(run['seconds']) if run.get('seconds') else None)
            folder = Markup('<a href="./{0}">{0}</a>').format(run['folder'])
            text = f'{state} {run.get("error", "")}'.strip()
            rows.append([f'{row["name"]}, seed {run["seed"]}', text, *scores, *facts, folder])
    return Table(columns, rows, digits=2)
