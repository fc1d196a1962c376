"""Every chart, in one style. On a page a chart takes its colours from the page, so that one SVG serves light and dark."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import groupby
from math import isfinite
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from mmairl.evaluation.protocol import Result
from mmairl.report.table import score_names
from mmairl.weights.norms import Norm

# The page's light colours: right in a file of their own, and on a page `svg` swaps them for its variables.
INK, QUIET, LINE, ACCENT, CARD = '#1d2433', '#667085', '#e3e1dc', '#2563c9', '#fffffe'
PUBLISHED = '#96600f'  # what a paper printed, as opposed to what was measured here
VARIABLES = {INK: 'ink', QUIET: 'quiet', LINE: 'line', ACCENT: 'accent', CARD: 'card', PUBLISHED: 'published'}
# Colours that keep apart on white and on near-black; markers tell apart what colour alone does not.
COLOURS = (
    '#4e79d6', '#e8833a', '#2fa36b', '#d64f5c', '#9467c9', '#a6794f',
    '#e07bb5', '#7f8896', '#b3a41f', '#25a9bd', '#86b84a', '#c0508f',
)  # fmt: skip
MARKERS = 'os^Dv'
STYLE = {
    'svg.fonttype': 'none',
    'text.parse_math': False,  # a name may hold a dollar sign
    'font.family': 'sans-serif',
    'font.size': 11,
    'text.color': INK,
    'axes.edgecolor': LINE,
    'axes.labelcolor': QUIET,
    'axes.facecolor': 'none',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.titlesize': 12,
    'axes.titlelocation': 'left',
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.color': LINE,
    'grid.linewidth': 0.8,
    'xtick.color': QUIET,
    'ytick.color': QUIET,
    'xtick.major.size': 0,
    'ytick.major.size': 0,
    'lines.linewidth': 2,
    'figure.facecolor': 'none',
    'legend.frameon': False,
    'legend.fontsize': 10,
}
Curve = tuple[Sequence[float], Sequence[float]]


def svg(figure: Figure, name: str) -> Markup:
    """The figure as inline SVG; `name` keeps its ids apart from those of the page's other figures."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format='svg', bbox_inches='tight', pad_inches=0.05, metadata={'Date': None})
    text = buffer.getvalue()
    text = re.sub(r'<metadata>.*?</metadata>', '', text[text.index('<svg') :], flags=re.DOTALL)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf'\g<1>{name}-', text)
    text = text.replace('xlink:href', 'href').replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', '')
    text = re.sub(r'font: ([\d.]+px) [^;\"]*', r'font: \1 system-ui, sans-serif', text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f'var(--{variable})')
    label = escape(figure.axes[0].get_title(loc='left') or name)
    box = re.search(r'viewBox="([^"]+)"', text)[1]
    head = f'<svg class="plot" role="img" aria-label="{label}" viewBox="{box}">'
    return Markup(head + text.partition('>')[2])


@contextmanager
def drawing(width: float, height: float, **style: object) -> Iterator[Axes]:
    """Axes of a new figure in our style; not by pyplot, which keeps figures and a backend for the whole process."""
    with rc_context({**STYLE, **style}):
        yield Figure(figsize=(width, height)).subplots()


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def look(number: int) -> dict[str, str]:
    """Colour and marker of a class: the markers change when the colours come round again, and by turns before."""
    return {'color': colour(number), 'marker': MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]}


def _label(name: str) -> str:
    return f'\u200b{name}'  # matplotlib leaves a label that begins with an underscore out of the legend


def _legend_below(axes: Axes, columns: int) -> None:
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncols=columns, columnspacing=1, labelcolor=QUIET)


def _logarithmic(axes: Axes, axis: Axis, name: str) -> None:
    """Powers of ten in plain figures, with 2 and 5 between them where there is room."""
    getattr(axes, f'set_{name}scale')('log')
    bottom, top = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 50 * bottom else (1,)))
    axis.set_major_formatter('{x:g}')
    axis.set_minor_locator(NullLocator())


def lines(
    series: Mapping[str, Curve],
    title: str = '',
    x: str = '',
    y: str = '',
    log: str = '',
    ticks: Sequence[str] = (),
    limits: tuple[float, float] | None = None,
    wide: bool = False,
) -> Figure:
    """One line a name. `log` names the logarithmic axes, 'y' or 'xy'; `ticks` are names along x; `wide` fills a page."""
    with drawing(*((7.6, 3.5) if wide else (4.6, 2.5))) as axes:
        for number, (name, points) in enumerate(series.items()):
            dashes = '-' if number < len(COLOURS) // 2 else '--'
            own = {'color': ACCENT if len(series) == 1 and not wide else colour(number), 'linestyle': dashes}
            if ticks:
                own |= {'marker': MARKERS[number % len(MARKERS)], 'markersize': 5}
            axes.plot(*points, label=_label(name), linewidth=2 if len(series) == 1 or wide else 1.5, **own)
        axes.set(title=title, xlabel=x, ylabel=y, ylim=limits)
        axes.ticklabel_format(axis='y', useOffset=False)
        axes.locator_params(nbins=5) if not wide else None
        for name in log:
            _logarithmic(axes, getattr(axes, f'{name}axis'), name)
        if ticks:
            every = -(-len(ticks) // 24)
            slant = {'rotation': 60, 'ha': 'right', 'rotation_mode': 'anchor', 'fontsize': 8} if len(ticks) > 8 else {}
            axes.set_xticks(range(0, len(ticks), every), ticks[::every], **slant)
        if wide:
            axes.legend()
        elif len(series) > 1:
            _legend_below(axes, 4)
        return axes.figure


def norm_lines(norms: Mapping[str, Sequence[Norm]], title: str = '') -> Figure:
    """Fig. 3a: the norms of a network's convolutions along its depth, one line a checkpoint."""
    values = [row.norm for rows in norms.values() for row in rows if row.norm > 0]
    longest = max(norms.values(), key=len)
    ticks = [row.name.removesuffix('.weight').replace('layer', 'l') for row in longest]
    series = {name: (range(len(rows)), [row.norm for row in rows]) for name, rows in norms.items()}
    apart = values and max(values) > 8 * min(values)
    return lines(series, title, y='norm', log='y' if apart else '', ticks=ticks, wide=True)


def within(figure: Figure, low: float, high: float, logarithmic: bool) -> Figure:
    """Shade the normal range, and make the axis reach its ends; the low end of a logarithmic axis may be too far away."""
    (axes,) = figure.axes
    values = axes.lines[0].get_ydata()
    if min(values) == max(values):
        axes.set_ylim(sorted((0, 1.2 * values[0] or 1)))  # a constant would stand between its own decimals
    ends = [end for end in (low, high) if isfinite(end) and not (logarithmic and end == low)]
    reach = [*(values if logarithmic else axes.get_ylim()), *ends]
    room = 0.1 * (max(reach) - min(reach))
    if logarithmic:
        axes.set_ylim(min(reach) / 1.3, max(reach) * 1.3)
        _logarithmic(axes, axes.yaxis, 'y')
    elif ends:
        axes.set_ylim(min(reach) - room, max(reach) + room)
    if isfinite(low) or isfinite(high):
        bottom, top = axes.get_ylim()
        axes.axhspan(max(bottom, low), min(top, high), color=ACCENT, alpha=0.12, linewidth=0)
    return figure


def score_bars(results: Sequence[Result]) -> Figure:
    """The results table as horizontal bars: one group a score, one bar a subject, the last subject in colour."""
    names, room = score_names(results), len(results) + 0.6
    with drawing(7.6, 0.5 + 0.42 * len(names) * room) as axes:
        for row, result in enumerate(results):
            shown = [(g * room + row, result.scores[n]) for g, n in enumerate(names) if n in result.scores]
            fill = {'color': ACCENT} if row == len(results) - 1 else {'color': QUIET, 'alpha': 0.55}
            axes.barh([y for y, _ in shown], [score for _, score in shown], height=0.82, **fill)
            for y, score in shown:
                axes.text(score + 1, y, f'{score:.1f}', va='center', color=INK)
        ticks = [g * room + row for g in range(len(names)) for row in range(len(results))]
        axes.set_yticks(ticks, [f'{r.subject}  ·  {n}' for n in names for r in results], color=INK)
        axes.invert_yaxis()
        axes.set(xlim=(0, 108), xticks=range(0, 101, 25), xlabel='top-1, %')
        axes.grid(axis='y', visible=False)
        axes.spines['left'].set_visible(False)
        return axes.figure


def feature_map(points: np.ndarray, labels: np.ndarray, classes: Sequence[str], title: str) -> Figure:
    """Images as dots in two dimensions, coloured and marked by class; the legend is drawn beneath."""
    with drawing(4.6, 4.6) as axes:
        for label, name in enumerate(classes):
            here = {'s': 11, 'linewidths': 0, 'alpha': 0.85, 'label': _label(name), **look(label)}
            axes.scatter(*points[labels == label].T, **here)
        axes.set(xticks=[], yticks=[], title=title, aspect='equal')
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        under = {'loc': 'upper center', 'bbox_to_anchor': (0.5, 0), 'ncols': 4}
        axes.legend(markerscale=2, columnspacing=1, handletextpad=0.1, **under)
        return axes.figure


def heat_map(values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str, names: Sequence[str]) -> Figure:
    """Similarities in [0, 1] as squares with their numbers; `names` are those of the two axes."""
    with drawing(7.6, 1.6 + 0.5 * len(rows), **{'axes.grid': False}) as axes:
        axes.imshow(values.clamp(0, 1), vmin=0, vmax=1, cmap='Blues', aspect='auto' if len(rows) < 12 else 'equal')
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha='right', rotation_mode='anchor')
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel=names[1], ylabel=names[0], title=title)
        axes.spines[:].set_visible(False)
        centred = {'ha': 'center', 'va': 'center', 'fontsize': 9}
        for i, row in enumerate(values.tolist()):
            for j, value in enumerate(row):
                axes.text(j, i, f'{value:.2f}', color='white' if value > 0.55 else INK, **centred)
        return axes.figure


def invariance_lines(kept: Mapping[str, Mapping[str, Sequence[float]]], strengths: Sequence[float]) -> Figure:
    """A small chart for each change: how much likeness is left as it grows, one line a network."""
    changes, columns = list(next(iter(kept.values()))), 3
    rows = -(-len(changes) // columns)
    lowest = min(min(of[change]) for of in kept.values() for change in changes)
    with rc_context(STYLE):
        figure = Figure(figsize=(2.6 * columns, 1.9 * rows + 0.4))
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, change in zip(grid.flat, changes):
            for number, (name, of) in enumerate(kept.items()):
                own = {'color': colour(number), 'marker': MARKERS[number % len(MARKERS)], 'markersize': 3.5}
                axes.plot(strengths, of[change], label=_label(name), **own)
            axes.set(title=change, ylim=(min(0, lowest) - 0.05, 1.05))
        for axes in list(grid.flat)[len(changes) :]:
            axes.set_visible(False)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc='lower center', ncols=min(3, len(labels)), fontsize=9)
        figure.tight_layout(rect=(0, 0.05 + 0.02 * (len(labels) > 3), 1, 1))
        return figure


def against(points: Mapping[str, tuple[float, float]], x: str, y: str) -> Figure:
    """One score over another, a dot a network, with the least-squares line and the correlation (Fig. 4's form)."""
    with drawing(7.6, 4.2) as axes:
        for name, point in points.items():
            axes.scatter(*point, color=ACCENT, s=36)
            axes.annotate(name, point, xytext=(6, 4), textcoords='offset points', fontsize=9, color=INK)
        axes.set(xlabel=f'{x}, %', ylabel=f'{y}, %')
        if len(points) > 2:
            xs, ys = np.array(list(points.values())).T
            slope, start = np.polyfit(xs, ys, 1)
            ends = np.array([xs.min(), xs.max()])
            axes.plot(ends, slope * ends + start, color=QUIET, linewidth=1.2)
            axes.set_title(f'correlation {np.corrcoef(xs, ys)[0, 1]:.2f} over {len(points)} networks')
        return axes.figure


def low_shot_lines(records: Sequence[Mapping]) -> Figure:
    """Mean average precision over the number of positive images a class, with the spread over samples."""
    with drawing(7.6, 3.4) as axes:
        for record in records:
            mean_of, spread = (record['details']['low_shot'][name] for name in ('mean', 'std'))
            shots = [int(k) for k in mean_of]
            own = {'marker': 'o', 'capsize': 3, 'label': _label(record['subject'])}
            axes.errorbar(shots, list(mean_of.values()), list(spread.values()), **own)
        axes.set_xscale('log', base=2)
        axes.xaxis.set_major_formatter('{x:g}')
        axes.set(xlabel='positive images a class', ylabel='mAP, %')
        axes.legend()
        return axes.figure


class Point(NamedTuple):
    """A row of a study in a figure: a value a seed, or the one that was published, or none."""

    label: str
    values: tuple[float, ...]
    text: str  # the number as the table has it
    group: str | None = None
    x: float | None = None
    cluster: object = None


def study_bars(points: Sequence[Point], published: bool, start: float = 0.0) -> Figure:
    """A bar a row from `start` to the mean, its label above it; spread and a dot a seed on top."""
    clusters = [len(list(of)) for _, of in groupby(points, key=lambda point: point.cluster)]
    gaps = np.repeat(np.arange(len(clusters)), clusters) * 0.45
    colours = _group_colours(points, published)
    written = {'va': 'center', 'fontsize': 10, 'color': INK, 'bbox': {'facecolor': CARD, 'linewidth': 0, 'pad': 1.5}}
    with drawing(4.6, 0.55 + 0.46 * (len(points) + gaps[-1]), **{'hatch.linewidth': 0.6}) as axes:
        beside = axes.get_yaxis_transform()
        for y, point in zip(np.arange(len(points)) + gaps, points):
            axes.text(0, y - 0.36, shortened(point.label), transform=beside, **written)
            axes.text(1, y - 0.36, point.text, transform=beside, ha='right', **written)
            axes.vlines(start, y - 0.16, y + 0.28, color=QUIET, linewidth=1)
            if point.values:
                _study_bar(axes, y + 0.06, point, start, colours[point.group], published)
        axes.set_ylim(len(points) + gaps[-1] - 0.55, -0.62)
        axes.set_yticks([])
        axes.use_sticky_edges = False  # or there is no margin where a bar starts, and marks are cut
        axes.margins(x=0.06)
        axes.grid(axis='y', visible=False)
        axes.spines[:].set_visible(False)
        axes.locator_params(axis='x', nbins=6)
        return axes.figure


def forest(comparisons: Sequence[Mapping]) -> Figure:
    """Each effect with its interval about zero, and the margin of equivalence shaded; the shape of a mark tells its verdict."""
    marks = {'differs': ('o', ACCENT), 'equivalent': ('s', QUIET), 'undecided': ('D', CARD)}
    with drawing(5.4, 0.8 + 0.42 * len(comparisons)) as axes:
        axes.axvline(0, color=QUIET, linewidth=1)
        margin = comparisons[0]['margin']
        axes.axvspan(-margin, margin, color=QUIET, alpha=0.12, linewidth=0)
        for y, of in enumerate(comparisons):
            axes.plot((of['low'], of['high']), (y, y), color=INK, linewidth=1.2)
            shape, inner = marks[of['verdict']]
            own = {'markerfacecolor': inner, 'markeredgecolor': INK, 'markersize': 7, 'linestyle': 'none'}
            first = of['verdict'] not in [before['verdict'] for before in comparisons[:y]]
            axes.plot(of['estimate'], y, shape, label=of['verdict'] if first else None, **own)
        axes.set_yticks(range(len(comparisons)), [shortened(of['row']) for of in comparisons], color=INK)
        axes.set_ylim(len(comparisons) - 0.5, -0.5)
        axes.grid(axis='y', visible=False)
        axes.spines['left'].set_visible(False)
        axes.set(title='effects', xlabel='points, with the 95 % interval')
        axes.legend(loc='upper center', bbox_to_anchor=(0.4, -0.35 / len(comparisons) - 0.1), ncols=3, labelcolor=QUIET)
        return axes.figure


def shortened(label: str) -> str:
    return label if len(label) < 43 else f'{label[:41]}…'


def _study_bar(axes: Axes, y: float, point: Point, start: float, fill: str, published: bool) -> None:
    height, centre = {'left': start, 'height': 0.32}, mean(point.values)
    if published:
        axes.barh(y, centre - start, facecolor='none', hatch='////', edgecolor=fill, **height)
        # The bar of the row that all start at has no length to see.
        axes.plot(centre, y, 'D', markersize=5, markerfacecolor=CARD, markeredgecolor=fill)
        return
    axes.barh(y, centre - start, color=fill, alpha=0.75, **height)
    if len(point.values) > 1:
        axes.errorbar(centre, y, xerr=stdev(point.values), color=INK, linewidth=1.2, capsize=3)
    axes.plot(point.values, [y] * len(point.values), 'o', markersize=4.6, **_dot(INK))


def _dot(fill: str) -> dict[str, object]:
    return {'markerfacecolor': fill, 'markeredgecolor': CARD, 'markeredgewidth': 0.8, 'zorder': 3}


def _group_colours(points: Sequence[Point], published: bool) -> dict[str | None, str]:
    groups = dict.fromkeys(point.group for point in points if point.group is not None)
    return {None: PUBLISHED if published else ACCENT, **dict(zip(groups, COLOURS * len(groups)))}


def study_lines(points: Sequence[Point], x_label: str, published: bool) -> Figure:
    """Means over `x`, one line a group, with spread and a dot a seed; published lines are dashed and their dots hollow."""
    placed = sorted((point for point in points if point.values and point.x is not None), key=lambda point: point.x)
    colours = _group_colours(points, published)
    with drawing(4.6, 3.1) as axes:
        for group in dict.fromkeys(point.group for point in points):
            own = [point for point in placed if point.group == group]
            xs, means = [point.x for point in own], [mean(point.values) for point in own]
            line = {'color': colours[group], 'label': _label(group or '')}
            if published:
                hollow = {'marker': 'D', 'markersize': 5, 'markerfacecolor': CARD, 'linestyle': (0, (4, 2))}
                axes.plot(xs, means, linewidth=1.5, **line, **hollow)
                continue
            spreads = [stdev(point.values) if len(point.values) > 1 else 0 for point in own]
            axes.errorbar(xs, means, yerr=spreads, capsize=3, elinewidth=1.2, **line)
            for point in own:
                axes.plot([point.x] * len(point.values), point.values, 'o', markersize=4.6, **_dot(colours[group]))
        ticks = sorted({point.x for point in points if point.x is not None})
        if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] > 8:
            axes.set_xscale('log')
            axes.minorticks_off()
        axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
        axes.set_xlabel(x_label)
        axes.locator_params(axis='y', nbins=5)
        if any(point.group for point in placed):
            _legend_below(axes, 2)
        return axes.figure
