"""The page of a study: problems, answer, next steps, effects, scores and evidence. Also its table and its figures as files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from mmairl.io import write_text
from mmairl.report.figures import embedded, lines, save_figure
from mmairl.report.page import Page
from mmairl.report.table import Table, counted, signed
from mmairl.study.answer import (
    STATES,
    answer,
    coded,
    command,
    duration,
    enumerated,
    next_steps,
    problems,
    progress,
    unfinished_runs,
)
from mmairl.study.effects import EffectsView, effects_figure, effects_table
from mmairl.study.findings import Findings, all_findings
from mmairl.study.statistics.compare import scores_by_row
from mmairl.study.statistics.power import detectable

Record = Mapping[str, Any]
MOST_KEYS = 12  # the fairness table lists at most this many changed keys of a row
METHODS = (
    'Each row is compared with its base row. If each seed gives both rows the same initial backbone and the same order of '
    'images, the rows are paired by seed (paired t-test). Otherwise, they are independent samples with different variances.',
    'The verdicts on one score are corrected together for multiple testing (Holm). The chance of one or more false differences '
    'among the verdicts on the primary score is at most 5 %. Each of the other scores has its own error rate of 5 %, so its '
    'verdicts are exploratory. Intervals are not corrected.',
    'Two rows are equivalent if two one-sided tests show that their difference is smaller than the margin. The 95 % interval '
    'may exceed the margin, because these tests correspond to a 90 % interval.',
    'A run has collapsed if its features are constant or nearly constant. A run that is not better than a random network has '
    'not necessarily collapsed. Collapsed runs never enter means. If a run collapsed, the means are not tested, and '
    'Fisher’s exact test compares how many runs collapsed.',
)
DESIGN = (
    'A main effect is the mean change of the score from a factor’s first level to its second level. An interaction is half '
    'the difference between the effects of one factor at the two levels of another factor. Interactions are corrected as a '
    'family of their own.'
)


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
    return study_page(study).write(out / 'page.html')


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


def study_page(study: Record) -> Page:
    """Return the page of a study."""
    page = Page(study['title'], lead=study['question'])
    page.sections.append(_facts(study))
    if listed := problems(study):
        page.add('Problems', _paragraphs(listed), kind='problems')
    page.add('Answer', _paragraphs(answer(study)), _steps(study), kind='answer')
    for number, found in enumerate(all_findings(study)):
        view = EffectsView(found)
        text = 'exploratory verdicts' if number else ''
        page.add(view.title, text, effects_table(view), folded=number > 0)
    drawn = [embedded(figure, title) for title, figure in curves(study)]
    if drawn:
        page.add(
            'Scores along ' + (study['x'] or 'x'), 'Means with the range of single seeds.', drawn
        )
    notes = ' '.join(f'{note}.' for note in study['notes'])
    page.add('Scores', f'Mean ± standard deviation over seeds. {notes}', score_table(study).html())
    page.add('Fairness', fairness_summary(study), _fairness(study), folded=True)
    page.add('Runs', _runs_summary(study), _runs(study).html(), folded=True)
    page.add('Methods', 'the tests, in four paragraphs', _methods(study), folded=True)
    if study['assumptions']:
        assumed = study['assumptions']
        page.add(
            'Assumptions', counted(len(assumed), 'assumption'), _assumptions(study), folded=True
        )
    return page


def _paragraphs(texts: list[Markup]) -> Markup:
    return Markup('</p><p>').join(texts)


def _facts(study: Record) -> Markup:
    finished, asked = progress(study)
    seconds = [run['seconds'] for row in study['rows'] for run in row['runs'] if run.get('seconds')]
    time = f', {duration(sum(seconds))} of training' if seconds else ''
    commits = sorted(
        {run['commit'] for row in study['rows'] for run in row['runs'] if run.get('commit')}
    )
    name, text = study['scale'].values()
    facts = {
        'Scale': f'{name}: {text}' if name else text,
        'Runs': f'{finished} of {asked} finished, {counted(len(study["seeds"]), "seed")}{time}',
        'Fairness': fairness_summary(study),
        'Code': ', '.join(commits),
        'Paper': study['paper'],
    }
    spans = [Markup('<span><b>{}</b> {}</span>').format(*fact) for fact in facts.items() if fact[1]]
    return Markup('<div class="meta">{}</div>').format(Markup(' ').join(spans))


def _steps(study: Record) -> Markup:
    rows = []
    for step in next_steps(study):
        code = (
            Markup('<code class="command">{}</code>').format(step.command) if step.command else ''
        )
        row = '<tr><th scope="row">{}<small>{}</small></th><td>{}</td><td>{}</td></tr>'
        rows.append(Markup(row).format(step.title, step.reason, step.cost, code))
    head = '<th scope="col">Next step</th><th scope="col">cost</th><th scope="col">command</th>'
    text = '<table class="next"><thead class="said"><tr>{}</tr></thead><tbody>{}</tbody></table>'
    return Markup(text).format(Markup(head), Markup('').join(rows)) if rows else Markup('')


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
    undeclared = sum(len(entry['undeclared']) for entry in study['fairness']['before'])
    unequal = sum(not check['equal'] for check in study['fairness']['after'])
    blanket = sum(bool(entry['blanket']) for entry in study['fairness']['before'])
    parts = [
        counted(undeclared, 'undeclared difference') if undeclared else 'no undeclared difference'
    ]
    if blanket:
        parts.append(f'{counted(blanket, "row declares", "rows declare")} whole parts of a config')
    if unequal:
        parts.append(f'{counted(unequal, "property differs", "properties differ")} between runs')
    return ', '.join(parts)


def _fairness(study: Record) -> Markup:
    rows = []
    for entry in study['fairness']['before']:
        if entry['unknown']:
            found: str = 'training settings unknown'
        elif entry['blanket'] and len(entry['found']) > MOST_KEYS:
            blanket = enumerated(map(coded, entry['blanket']))
            found = Markup(
                '{} differ. The row declares all of {}, so this check proves little.'
            ).format(counted(len(entry['found']), 'key'), blanket)
        else:
            found = enumerated(map(coded, entry['found']), MOST_KEYS) if entry['found'] else '–'
        rows.append([entry['row'], entry['on'], found, ', '.join(entry['undeclared']) or '–'])
    table = Table(['row', 'compared with', 'changed keys', 'undeclared'], rows).html()
    checks = []
    for check in study['fairness']['after']:
        values = dict.fromkeys(check['values'].values())
        text = (
            ', '.join(values)
            if check['equal']
            else '; '.join(f'{row}: {value}' for row, value in check['values'].items())
        )
        checks.append(
            [check['check'], 'equal' if check['equal'] else 'different', text or 'not recorded']
        )
    return table + Table(['property of the finished runs', 'in all rows', 'value'], checks).html()


def _runs_summary(study: Record) -> str:
    finished, asked = progress(study)
    first = next(all_findings(study), None)
    sizes = [detectable(one.effect, len(first.all)) for one in first.all] if first else []
    known = [size for size in sizes if size is not None]
    if not known:
        return f'{finished} of {asked} finished'
    return f'{finished} of {asked} finished; the runs detect effects of {min(known):.1f} to {max(known):.1f} with 80 % power'


def _runs(study: Record) -> Table:
    metrics = study['metrics']
    columns = ['run', 'state', *(metric['label'] for metric in metrics)]
    columns += [
        'feature spread',
        'feature rank',
        'training',
        'images seen',
        'commit',
        'hardware',
        'folder',
    ]
    errors = {(name, seed): error for name, seed, _, error in unfinished_runs(study)}
    rows = []
    for row in study['rows']:
        for run in row['runs']:
            error = errors.get((row['name'], run['seed']), '')
            state = 'collapsed' if run.get('collapsed') else STATES.get(run['state'], run['state'])
            rows.append(
                [
                    f'{row["name"]}, seed {run["seed"]}',
                    f'{state}: {error}' if error else state,
                    *(run['scores'].get(metric['key']) for metric in metrics),
                    _number(run.get('spread'), '.3f'),
                    _number(run.get('rank'), '.1f'),
                    duration(run['seconds']) if run.get('seconds') else None,
                    _number(run.get('images_seen'), ','),
                    run.get('commit') or None,
                    run.get('hardware') or None,
                    Markup('<a href="./{0}">{0}</a>').format(run['folder']),
                ]
            )
    return Table(columns, rows)


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _methods(study: Record) -> Markup:
    texts = list(METHODS)
    if 'design' in study:
        texts.append(f'The design consists of {study["design"]["words"]}. {DESIGN}')
    if study['interim_analyses'] > 1:
        texts.append(
            f'The study plans {study["interim_analyses"]} analyses. Each is tested at 5 %/{study["interim_analyses"]}, so the '
            'error rate of 5 % covers all of them.'
        )
    texts.append(
        'study.json contains every number. To draw the figures for a paper, run mmairl report study . --figures figures in '
        f'this folder. To reproduce the study, run {command(study) or "the same comparison"}.'
    )
    return Markup('').join(Markup('<p>{}</p>').format(text) for text in texts)


def _assumptions(study: Record) -> Markup:
    items = []
    for text, rows in study['assumptions'].items():
        whose = 'all rows' if len(rows) == len(study['rows']) else ', '.join(rows)
        items.append(Markup('<li>{} ({})</li>').format(text, whose))
    return Markup('<ul>{}</ul>').format(Markup('').join(items))
