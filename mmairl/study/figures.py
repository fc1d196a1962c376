"""Draw the figures of a study with matplotlib: its effects, and its scores along the rows' x values."""

from collections.abc import Iterator, Mapping
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmairl.report.figures import lines, short, styled
from mmairl.report.table import Table
from mmairl.study.findings import Findings
from mmairl.study.statistics.compare import scores_by_row

ROW_HEIGHT = 0.34  # the height of an effect in inches
WIDTH = 6.9  # the width in inches of the text of a two-column paper
PAPER = {'font.size': 7.5, 'pdf.fonttype': 42, 'svg.fonttype': 'path'}
# For each kind of verdict: the mark as an SVG path around the origin, and the marker, color and fill in matplotlib. The marks
# can be distinguished without color.
MARKS = {
    'differs': ('M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0z', 'o', '#1d5fd1', '#1d5fd1'),
    'equivalent': ('M-5 -5h10v10h-10z', 's', '#12805c', '#12805c'),
    'inconclusive': ('M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z', 'o', '#667085', 'white'),
    'problem': ('M-5 -5l10 10m0 -10l-10 10', 'X', '#b42318', 'white'),
    'published': ('M0 -5l5 5l-5 5l-5 -5z', 'D', '#8a5a00', 'white'),
}
Record = Mapping[str, Any]


@styled(**PAPER)
def effects_figure(found: Findings) -> Figure:
    """Return the figure of the effects with the width of a paper's text."""
    count = len(found.shown)
    figure = Figure(figsize=(WIDTH, 0.7 + ROW_HEIGHT * count), layout='constrained')
    axes = figure.subplots()
    axes.axvspan(-found.margin, found.margin, color='#e4eaf3', zorder=0)
    axes.axvline(0, color='#667085', linewidth=0.8, zorder=1)
    caption = (
        f'{found.title}\n● higher or lower  ■ equivalent  ○ inconclusive  ✕ no verdict  | one seed'
    )
    if found.published:
        caption += f'\n◇ published: {found.published}'
    figure.supxlabel(caption, fontsize=6.5)
    axes.set_yticks(range(count), [short(one.name, 44) for one in found.shown])
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_xticks(found.ticks, found.tick_labels)
    axes.set_xlim(found.ticks[0], found.ticks[-1])
    axes.grid(axis='y', visible=False)
    verdicts = axes.secondary_yaxis('right')
    verdicts.set_yticks(range(count), [f'{one.size}  {one.verdict}' for one in found.shown])
    for row, one in enumerate(found.shown):
        axes.plot(one.by_seed, [row - 0.24] * len(one.by_seed), '|', color='#667085', markersize=4)
        if one.interval:
            axes.hlines(row, one.low, one.high, color=MARKS[one.kind][2], linewidth=1.6)
        _draw_mark(axes, one.estimate, row, one.kind)
        _draw_mark(axes, one.published, row + 0.26, 'published')
    return figure


def _draw_mark(axes: Axes, value: float | None, height: float, kind: str) -> None:
    if value is not None:
        _, marker, color, face = MARKS[kind]
        axes.plot(value, height, marker, color=color, markerfacecolor=face, markersize=5)


def effects_table(found: Findings) -> Table:
    """Return the numbers of the effects as a table."""
    columns = ['effect', found.label, '95 % low', '95 % high', 'verdict', 'published']
    rows = []
    for one in found.shown:
        rows.append([one.name, one.estimate, one.low, one.high, one.verdict, one.published_size])
    return Table(columns, rows, digits=found.digits)


def curves(study: Record) -> Iterator[tuple[str, Figure]]:
    """Yield the title and the figure of each score along the rows' x values, or along the score that `x` names."""
    keys = [metric['key'] for metric in study['metrics']]
    along = study['x']
    across = {row['name']: row['x'] for row in study['rows']}
    if along in keys:
        across = Findings(study, study['metrics'][keys.index(along)]).means
    known = [x for x in across.values() if x is not None]
    log = 'x' if known and max(known) > 8 * min(known) > 0 else ''
    for metric in study['metrics']:
        groups: dict[str, list[tuple[float, ...]]] = {}
        scores = scores_by_row(study, metric['key'])
        for row in study['rows']:
            values, x = scores[row['name']].values(), across.get(row['name'])
            if values and x is not None and metric['key'] != along:
                point = (x, mean(values), min(values), max(values))
                groups.setdefault(row['group'], []).append(point)
        if any(len(points) > 1 for points in groups.values()):
            series = {group: tuple(zip(*sorted(points))) for group, points in groups.items()}
            title = metric['label']
            yield title, lines(series, title, along, log=log, dots=along in keys)
