"""The page of a study: problems, answer, next steps, effects, scores and evidence. Also its table and its figures as files."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup

from mmairl.io import write_text
from mmairl.report.figures import embedded, save_figure
from mmairl.report.page import write_page
from mmairl.report.table import Table, counted
from mmairl.study.answer import answer, command, duration, next_steps, problems, run_counts
from mmairl.study.figures import MARKS, curves, effects_figure, effects_table
from mmairl.study.findings import Findings, all_findings

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
        stem = folder / f'effects_{_file_name(found.key)}'
        table = effects_table(found)
        save_figure(effects_figure(found), stem)
        table.save(stem)
        write_text(f'{stem}.tex', table.latex())
        write_text(f'{stem}.md', table.markdown())
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
        steps=list(next_steps(study)),
        scores_found=[*all_findings(study)],
        marks=MARKS,
        curves=[embedded(figure, title) for title, figure in curves(study)],
        scores=score_table(study).html(),
        runs=_runs(study).html(),
        command=command(study),
    )


def _facts(study: Record) -> dict[str, str]:
    """Return the facts that the page shows below its title."""
    runs = [run for row in study['rows'] for run in row['runs']]
    finished, planned = run_counts(study)
    seconds = sum(run.get('seconds') or 0 for run in runs)
    name, text = study['scale']['name'], study['scale']['text']
    unequal = sum(not check['equal'] for check in study['fairness']['after'])
    fairness = 'no undeclared difference'
    if unequal:
        fairness += f', {counted(unequal, "property differs", "properties differ")} between runs'
    return {
        'Scale': f'{name}: {text}' if name else text,
        'Runs': f'{finished} of {planned} finished, {counted(len(study["seeds"]), "seed")}, {duration(seconds)} of training',
        'Fairness': fairness,
        'Code': ', '.join(sorted({run['commit'] for run in runs if run.get('commit')})),
        'Paper': study['paper'],
    }


def score_table(study: Record) -> Table:
    """Return the table of measured and published scores."""
    metrics = [Findings(study, metric) for metric in study['metrics']]
    published = dict.fromkeys(key for row in study['rows'] for key in row['published'])
    columns = ['row']
    for metric in study['metrics']:
        unit = f', {metric["unit"]}' if metric['unit'] else ''
        columns.append(metric['label'] + unit)
    columns += [f'{key} (published)' for key in published]
    rows = []
    for row in study['rows']:
        measured = [_score(found, row['name']) for found in metrics]
        rows.append([row['name'], *measured, *map(row['published'].get, published)])
    return Table(columns, rows)


def _score(found: Findings, row: str) -> str | None:
    scores = list(found.scores[row].values())
    if not scores:
        return None
    text = f'{mean(scores):.{found.digits}f}'
    if len(scores) > 1:
        text += f' ± {stdev(scores):.{found.digits}f} (n = {len(scores)})'
    return text.replace('-', '−')


def _runs(study: Record) -> Table:
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    columns = ['run', 'state', *labels.values(), 'training', 'commit', 'hardware', 'folder']
    rows = []
    for row in study['rows']:
        for run in row['runs']:
            state = 'collapsed' if run.get('collapsed') else run['state']
            state = f'{state} {run.get("error", "")}'.strip()
            scores = map(run['scores'].get, labels)
            time = duration(run['seconds']) if run.get('seconds') else None
            folder = Markup('<a href="./{0}">{0}</a>').format(run['folder'])
            facts = [time, run.get('commit'), run.get('hardware'), folder]
            rows.append([f'{row["name"]}, seed {run["seed"]}', state, *scores, *facts])
    return Table(columns, rows, digits=2)
