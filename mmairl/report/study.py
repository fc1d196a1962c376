"""The page of a study: what was measured here beside what was published, and every number a click from its run."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby
from math import isfinite
from pathlib import Path
from statistics import mean
from urllib.parse import quote

from mmairl.report import study_tables as tables
from mmairl.report.figures import Point, seed_curves, study_bars, study_lines
from mmairl.report.page import Page
from mmairl.report.scalars import Curve
from mmairl.report.study_tables import (
    BLANK,
    LEGEND,
    WORDS,
    Cell,
    Column,
    Line,
    columns,
    done,
    lines,
    published_metrics,
    scores,
)
from mmairl.report.style import STUDY_STYLE

SHOWN = 2  # published panels in sight; the others are folded away
# A link into a folded part opens it; without this it is scrolled to all the same.
SCRIPT = """<script>
function unfold() {
  const found = document.getElementById(location.hash.slice(1));
  for (let e = found; e; e = e.parentElement) if (e.tagName === 'DETAILS') e.open = true;
  if (found) found.scrollIntoView();
}
addEventListener('hashchange', unfold); unfold();
</script>"""


def write_study_page(study: Mapping, out: str | Path) -> Path:
    """The study as one file beside its study.json, whose folders the links are relative to.

    >>> write_study_page(json.loads(Path('ladder/study.json').read_text()), 'ladder/index.html')  # doctest: +SKIP
    """
    page = Page(study['title'], study.get('question', ''))
    found, rows = columns(study), lines(study)
    page.sections.append(f'<style>{STUDY_STYLE}</style>{_banner(study)}{_tiles(study)}')
    page.add(
        'Every row and what it changes', '', _table(study, found, rows), f'Small, under each number: Δ and n. {LEGEND}'
    )
    _add_figures(page, study, found, rows)
    if study.get('reading'):
        page.sections.append(f'<section><h2>What to make of it</h2>{_paragraphs(study["reading"])}</section>')
    _add_fairness(page, study.get('fairness') or {})
    _add_runs(page, study)
    page.add('The table to take along', '', _copies(study))
    page.sections.append(SCRIPT)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    return page.write(out)


def _paragraphs(text: str) -> str:
    return ''.join(f'<p>{escape(" ".join(part.split()))}</p>' for part in text.split('\n\n') if part.strip())


def _banner(study: Mapping) -> str:
    """Which numbers are whose: the two words that every number of the page is marked with."""
    where = (study.get('paper') or {}).get('where', '')
    if published_metrics(study):
        said = f'as printed in the paper ({escape(where)}): ' if where else 'as printed in the paper: '
        said += 'full-size networks on ImageNet. Another scale: compare the directions, not the heights.'
    else:
        said = 'the paper prints no number for these rows.'
    return (
        '<div class="banner">'
        f'<p>{_chip("measured")} <b>{escape(study["scale"]["name"])} scale.</b> {escape(study["scale"]["text"])}.</p>'
        f'<p>{_chip("published")} {said}</p></div>'
    )


def _chip(kind: str) -> str:
    return f'<span class="chip {kind}">{WORDS[kind]}</span>'


def _tiles(study: Mapping) -> str:
    """How much work it was and whether it was fair, before any result."""
    runs = [run for row in study['rows'] for run in row['runs']]
    asked = sum(max(len(row['runs']), len(study.get('seeds', ()))) for row in study['rows'])
    finished = sum(len(done(row)) for row in study['rows'])
    seconds = [run['seconds'] for run in runs if run.get('seconds') is not None]
    before = (study.get('fairness') or {}).get('before', [])
    undeclared = sum(len(entry['undeclared']) for entry in before)
    tiles = {
        'rows, each a config': f'{len(study["rows"])}',
        'runs finished' if finished == asked else 'runs finished; the others are named below': f'{finished} of {asked}',
        f'training in all, {len(seconds)} runs': duration(sum(seconds)) if seconds else BLANK,
        'undeclared differences between rows': f'{undeclared}' if before else BLANK,
    }
    return (
        '<section class="tiles">'
        + ''.join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for label, value in tiles.items())
        + '</section>'
    )


def duration(seconds: float) -> str:
    """As a person would say it."""
    if seconds < 120:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 7200 else f'{seconds / 3600:.1f} h'


def _table(study: Mapping, found: Sequence[Column], rows: Sequence[Line]) -> str:
    groups = [(kind, len(list(of))) for kind, of in groupby(column.kind for column in found)]
    top = ''.join(f'<th class={kind} colspan={width}>{_chip(kind)}</th>' for kind, width in groups)
    head = ''.join(f'<th class={c.kind}>{escape(c.label)}<span>{escape(c.unit)}</span></th>' for c in found)
    body = ''.join(_row(study, number, line, found) for number, line in enumerate(rows))
    return (
        f'<div class="scroll study"><table><thead><tr><td></td>{top}</tr>'
        f'<tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(study: Mapping, number: int, line: Line, found: Sequence[Column]) -> str:
    notes = ''.join(f'<span class="lacks">{escape(problem)}</span>' for problem in line.problems)
    cells = ''.join(_cell(cell, column.kind, number) for column, cell in zip(found, line.cells))
    factor = f'<span class="factor">{escape(line.factor)}</span>' if line.factor else ''
    chips = ''.join(_seed(run, f'run-{number}-{place}') for place, run in enumerate(study['rows'][number]['runs']))
    name = f'<a href="#row-{number}">{escape(line.name)}</a>'
    runs = f'<span class="seeds">runs {chips}</span>' if chips else ''
    return f'<tr><th scope=row>{name}{factor}{notes}{runs}</th>{cells}</tr>'


def _seed(run: Mapping, anchor: str) -> str:
    seed, state = escape(str(run['seed'])), escape(run['state'])
    return f'<a class="seed {state}" href="#{anchor}" title="seed {seed}: {state}">{seed}</a>'


def _cell(cell: Cell, kind: str, number: int) -> str:
    value = f'<span class="value">{cell.value}</span>'
    if kind == 'measured':
        inner = f'{value}<span class="spread">{cell.spread}</span>'
        value = f'<a href="#row-{number}">{inner}</a>' if cell.n else inner
    quiet = ' within' if cell.change.startswith('(') else ''
    small = f'<span class="change{quiet}">{cell.change}</span>' + (
        f' <span class="n">n = {cell.n}</span>' if cell.n else ''
    )
    return f'<td class={kind}>{value}<small>{small}</small></td>'


def _add_figures(page: Page, study: Mapping, found: Sequence[Column], rows: Sequence[Line]) -> None:
    """What was measured and what was published, each on panels of their own: their scales differ."""
    panels: dict[str, list[str]] = {'measured': [], 'published': []}
    for place, column in enumerate(found):
        points = _points(study, column, [line.cells[place] for line in rows])
        if column.kind in panels and sum(bool(point.values) for point in points) > 1:
            panels[column.kind].append(_panel(study, column, points, f'panel-{place}'))
    seen, folded = panels['measured'] + panels['published'][:SHOWN], panels['published'][SHOWN:]
    if not seen:
        return
    html = f'<div class="plots panels">{"".join(seen)}</div>'
    if folded:
        more = f'{len(folded)} more published columns' if len(folded) > 1 else 'one more published column'
        html += f'<details><summary>{more}</summary><div class="plots panels">{"".join(folded)}</div></details>'
    page.add('The figure', _how_to_read(study), html)


def _how_to_read(study: Mapping) -> str:
    kind = study.get('figure', {}).get('kind', 'bars')
    marks = (
        'Filled: measured here, with a dot for each seed and the standard deviation as a whisker. Hollow: published. '
    )
    if kind == 'bars':
        marks += 'Bars start at the first row that has a number, so that their length is what the factors add to it. '
    return marks + 'Each panel has a scale of its own.'


def _points(study: Mapping, column: Column, cells: Sequence[Cell]) -> list[Point]:
    points = []
    for row, cell in zip(study['rows'], cells):
        printed = row.get('published', {}).get(column.key)
        values = scores(row, column.key) if column.kind == 'measured' else () if printed is None else (printed,)
        cluster = _cluster(study, row) if study.get('figure', {}).get('kind') == 'grouped' else None
        text = f'{cell.value} {cell.spread}'.strip()
        points.append(Point(row['name'], values, text, row.get('group'), row.get('x'), cluster))
    return points


def _cluster(study: Mapping, row: Mapping) -> object:
    """Bars stand together at one place of the x axis, or around the row that they all build on in the end."""
    if row.get('x') is not None:
        return row['x']
    rows, seen = {row['name']: row for row in study['rows']}, set()
    while row.get('on') in rows and row['name'] not in seen:
        seen.add(row['name'])
        row = rows[row['on']]
    return row['name']


def _panel(study: Mapping, column: Column, points: Sequence[Point], name: str) -> str:
    figure, published = study.get('figure', {}), column.kind == 'published'
    kind = figure.get('kind', 'bars')
    if kind == 'lines':
        drawn = study_lines(points, figure.get('x', ''), name, published)
    elif kind == 'grouped':
        drawn = study_bars(sorted(points, key=_first_of_cluster(points)), name, published)
    else:
        first = next(point for point in points if point.values)
        drawn = study_bars(points, name, published, mean(first.values))
    unit = f' <span class="quiet">{escape(column.unit)}</span>' if column.unit else ''
    return f'<div class="panel {column.kind}"><h3>{_chip(column.kind)} {escape(column.label)}{unit}</h3>{drawn}</div>'


def _first_of_cluster(points: Sequence[Point]) -> Callable[[Point], int]:
    """A key to sort by that brings a cluster's bars together and leaves all else in order."""
    order = list(dict.fromkeys(point.cluster for point in points))
    return lambda point: order.index(point.cluster)


def _add_fairness(page: Page, fairness: Mapping) -> None:
    before, after = fairness.get('before', []), fairness.get('after', [])
    if not before and not after:
        page.add('Is the comparison fair?', 'No check of it is on record.')
        return
    body = ''.join(
        f'<tr><th scope=row>{escape(entry["row"])}</th><td class="words">{escape(entry["on"])}</td>'
        f'<td class="words">{_keys(entry["declared"])}</td><td class="words">{_keys(entry["found"])}</td>'
        f'<td class="words">{_verdict(not entry["undeclared"], "none", "undeclared")}'
        f'{_keys(entry["undeclared"], "")}</td></tr>'
        for entry in before
    )
    html = (
        '<div class="scroll"><table class="text"><thead><tr><th>row</th><th>compared with</th><th>declared to change</th>'
        f'<th>found to differ</th><th>undeclared</th></tr></thead><tbody>{body}</tbody></table></div>'
        if before
        else ''
    )
    page.add(
        'Is the comparison fair?',
        'Before anything ran, the resolved configs of each row and of the row that it builds on were compared key by key. '
        'Once they had run, what should be equal in all of them was compared again.',
        html + f'<ul class="checks">{"".join(map(_check, after))}</ul>',
    )


def _keys(keys: Sequence[str], none: str = BLANK) -> str:
    return ' '.join(f'<code>{escape(key)}</code>' for key in keys) or none


def _verdict(good: bool, yes: str, no: str) -> str:
    return f'<span class="good">✓ {yes}</span>' if good else f'<span class="bad">✕ {no}</span>'


def _check(check: Mapping) -> str:
    """A check of the finished runs; of fewer than two rows it says nothing."""
    values = check.get('values') or {}
    name = escape(check['check'])
    if len(values) < 2:
        return f'<li><span class="quiet">○ not checked</span> {name}: fewer than two rows have it</li>'
    verdict = _verdict(check['equal'], 'equal', 'unequal')
    if check['equal']:
        return f'<li>{verdict} {name}: {escape(_shown(next(iter(values.values()))))}</li>'
    told = ''.join(f'<li>{escape(row)}: {escape(_shown(value))}</li>' for row, value in values.items())
    return f'<li>{verdict} {name}<ul>{told}</ul></li>'


def _shown(value: object) -> str:
    text = f'{value:,}' if isinstance(value, int) else str(value)
    return f'{int(text):,}' if text.isdigit() else text


def _add_runs(page: Page, study: Mapping) -> None:
    blocks = ''.join(_row_block(study, number, row) for number, row in enumerate(study['rows']))
    runs = [run for row in study['rows'] for run in row['runs'] if run.get('seconds') is not None]
    hardware = ', '.join(dict.fromkeys(run['hardware'] for run in runs if run.get('hardware')))
    cost = (
        f'{duration(sum(run["seconds"] for run in runs))} of training in {len(runs)} runs'
        if runs
        else 'No run has a time'
    )
    text = f'{cost}{f", on {hardware}" if hardware else ""}.'
    page.add('Every run', text, f'<div class="runs">{blocks}</div>')


def _row_block(study: Mapping, number: int, row: Mapping) -> str:
    base = f'builds on {escape(row["on"])}: ' if row.get('on') else ''
    changed = _keys(row.get('changed', []), '')
    curves = _curves(row)
    folded = (
        f'<details><summary>Curves of all seeds</summary>{seed_curves(curves, f"curves-{number}")}</details>'
        if curves
        else ''
    )
    runs = ''.join(_run(study, f'run-{number}-{place}', run) for place, run in enumerate(row['runs']))
    return (
        f'<div class="row" id="row-{number}"><h3>{escape(row["name"])}</h3>'
        f'<p class="quiet">{base}{escape(row.get("factor") or "")} <code>{escape(row["config"])}</code> {changed}</p>'
        f'{folded}{runs or "<p>No run.</p>"}</div>'
    )


def _curves(row: Mapping) -> dict[str, dict[int, Curve]]:
    """By quantity and seed; accuracies in percent."""
    names = dict.fromkeys(name for run in row['runs'] for name in run.get('curves') or ())
    return {
        name: {
            run['seed']: _percent(name, *run['curves'][name])
            for run in row['runs']
            if name in (run.get('curves') or ())
        }
        for name in names
    }


def _percent(name: str, steps: Sequence[int], values: Sequence[float]) -> Curve:
    return list(steps), [100 * value for value in values] if name.endswith('accuracy') else list(values)


def _run(study: Mapping, anchor: str, run: Mapping) -> str:
    labels = {metric['key']: metric['label'] for metric in study['metrics']}
    measured = {labels.get(key, key): value for key, value in run.get('scores', {}).items()}
    summary = ' · '.join(f'{name}: {value:.2f}' for name, value in measured.items() if isfinite(value))
    config = run.get('config_text')
    text = f'<details><summary>Config as it ran</summary><pre>{escape(config)}</pre></details>' if config else ''
    facts = ''.join(f'<dt>{name}</dt><dd>{value}</dd>' for name, value in _facts(run, measured).items())
    state = f'<span class="{"quiet" if run["state"] == "done" else "bad"}">{escape(run["state"])}</span>'
    return (
        f'<details class="run" id="{anchor}"><summary><b>seed {escape(str(run["seed"]))}</b> {state} '
        f'{escape(summary)}</summary>'
        f'<dl>{facts}</dl>{text}</details>'
    )


def _facts(run: Mapping, measured: Mapping[str, float]) -> dict[str, str]:
    """All that is known of a run; what is not known is left out."""
    sha = run.get('sha256')
    versions = ', '.join(f'{name} {version}' for name, version in (run.get('versions') or {}).items())
    seen = run.get('images_seen')
    facts = {
        'what went wrong': escape(' '.join((run.get('error') or '').split())),
        'scores': escape(', '.join(f'{name}: {value:.4f}' for name, value in measured.items())),
        'training': f'{run["seconds"]:,.1f} s' if run.get('seconds') is not None else '',
        'images seen': f'{seen:,}' if seen is not None else '',
        'hardware': escape(run.get('hardware') or ''),
        'checkpoint': _link(run['folder'], run['checkpoint']) if run.get('checkpoint') else '',
        'SHA-256': f'<code>{escape(sha[:12])}</code> <code class="quiet">{escape(sha)}</code>' if sha else '',
        'code': escape(run.get('git') or ''),
        'versions': escape(versions),
        'folder': _link(run['folder'], '') if run.get('folder') else '',
    }
    return {name: value for name, value in facts.items() if value}


def _link(folder: str, file: str) -> str:
    """To something beside the page, whatever its name."""
    path = '/'.join(part for part in (folder.strip('/'), file) if part)
    return f'<a href="./{quote(path)}">{escape(file or folder)}</a>'


def _copies(study: Mapping) -> str:
    texts = {'Markdown': tables.markdown(study), 'LaTeX (booktabs)': tables.latex(study)}
    return ''.join(
        f'<details><summary>{name}</summary><pre>{escape(text)}</pre></details>' for name, text in texts.items()
    )
