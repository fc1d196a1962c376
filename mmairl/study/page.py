"""The page of a study: problems, answer, next steps, effects, scores and evidence. Also its table and its charts as files."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from mmairl.io import write_text
from mmairl.report.evaluation_page import STATED, stated_facts
from mmairl.report.figures import embedded, lines, save_figure
from mmairl.report.page import write_page
from mmairl.report.table import Table, counted, signed
from mmairl.study.answer import (
    answer,
    command,
    duration,
    next_steps,
    problems,
    run_counts,
    runs_of,
)
from mmairl.study.findings import Findings, all_findings

Record = Mapping[str, Any]


def write_results(study: Record, out: str | Path) -> Path:
    """Write the page of a study (page.html), its table of scores (table.md and table.tex) and its charts to a folder.

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
    charts = dict(curves(study))
    for title, figure in charts.items():
        save_figure(figure, out / 'figures' / re.sub(r'\W', '_', title)[:80])
    return write_page(out / 'page.html', 'study.html', **page_values(study, charts))


def page_values(study: Record, charts: Mapping[str, Figure]) -> dict[str, Any]:
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
        curves=[embedded(figure, title) for title, figure in charts.items()],
        scores=score_table(study).html(),
        runs=_runs(study).html(),
        command=command(study),
    )


def _facts(study: Record) -> dict[str, str]:
    """Return the facts that the page shows below its title."""
    runs = [run for _, run in runs_of(study)]
    finished, planned = run_counts(study)
    seconds = sum(run.get('seconds') or 0 for run in runs)
    name, text = study['scale']['name'], study['scale']['text']
    return {
        'Scale': f'{name}: {text}' if name else text,
        'Runs': f'{finished} of {planned} finished, {counted(len(study["seeds"]), "seed")}, {duration(seconds)} of training',
        'Fairness': 'no undeclared difference',
        'Code': ', '.join(sorted({run['commit'] for run in runs if run.get('commit')})),
        'Paper': study['paper'],
    }


def score_table(study: Record) -> Table:
    """Return the table of measured and published scores, and of differences from the random network."""
    metrics = [Findings(study, metric) for metric in study['metrics']]
    above = {}
    means = metrics[0].means if metrics else {}
    for random in (row['name'] for row in study['rows'] if row['untrained'] == 'random'):
        if random in means:
            above = {row: signed(means[row] - means[random], metrics[0].digits) for row in means}
            above.pop(random)
    rows = []
    for row in study['rows']:
        cells = {'row': row['name']}
        for metric, found in zip(study['metrics'], metrics):
            unit = f', {metric["unit"]}' if metric['unit'] else ''
            cells[found.label + unit] = _score(found, row)
        if above:
            cells['above the random network'] = above.get(row['name'])
        cells |= {f'{key} (published)': number for key, number in row['published'].items()}
        rows.append(cells | _stated(row))
    # Scores come first, then published scores, then facts.
    names = dict.fromkeys(name for cells in rows for name in cells)
    columns = sorted(names, key=lambda name: (name in STATED, 'published' in name))
    return Table(columns, [[cells.get(name) for name in columns] for cells in rows])


def _stated(row: Record) -> dict[str, str]:
    """Return the chance, number and size of the test images of a row's tasks. Different values are separated by slashes."""
    found: dict[str, dict[str, None]] = {}
    for run in row['runs']:
        for details in run.get('details', {}).values():
            for name, value in stated_facts(details).items():
                found.setdefault(name, {})[str(value)] = None
    return {name: ' / '.join(values) for name, values in found.items()}


def _score(found: Findings, row: Record) -> str | None:
    """Return the score of a row: mean and standard deviation or, of a single run, the score and its interval."""
    scores = list(found.scores[row['name']].values())
    if not scores:
        return None
    text = f'{mean(scores):.{found.digits}f}'
    if len(scores) > 1:
        text += f' ± {stdev(scores):.{found.digits}f} (n = {len(scores)})'
    elif interval := row['runs'][0].get('details', {}).get(found.key, {}).get('interval'):
        text += ' ({:.1f} to {:.1f})'.format(*interval)
    return text.replace('-', '−')


def _runs(study: Record) -> Table:
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    columns = [
        'run',
        'state',
        *labels.values(),
        'training',
        'commit',
        'hardware',
        'folder',
    ]
    rows = []
    for name, run in runs_of(study):
        state = 'collapsed' if run.get('collapsed') else run['state']
        state = f'{state} {run.get("error", "")}'.strip()
        scores = map(run['scores'].get, labels)
        time = duration(run['seconds']) if run.get('seconds') else None
        folder = Markup('<a href="./{0}">{0}</a>').format(run['folder'])
        facts = [time, run.get('commit'), run.get('hardware'), folder]
        rows.append([f'{name}, seed {run["seed"]}', state, *scores, *facts])
    return Table(columns, rows, digits=2)


def curves(study: Record) -> Iterator[tuple[str, Figure]]:
    """Yield the title and the figure of each score along the rows' x values, or along the score that `x` names."""
    along = study['x']
    found = {metric['key']: Findings(study, metric) for metric in study['metrics']}
    across = {row['name']: row['x'] for row in study['rows'] if row['x'] is not None}
    if along in found:
        across = found[along].means
    log = 'x' if across and max(across.values()) > 8 * min(across.values()) > 0 else ''
    for key, one in found.items():
        groups: dict[str, list[tuple[float, ...]]] = {}
        for row in study['rows']:
            name, values = row['name'], one.scores[row['name']].values()
            if values and name in across and key != along:
                point = (across[name], mean(values), min(values), max(values))
                groups.setdefault(row['group'], []).append(point)
        if any(len(points) > 1 for points in groups.values()):
            series = {group: tuple(zip(*sorted(points))) for group, points in groups.items()}
            yield one.label, lines(series, one.label, along, log=log, dots=along in found)
