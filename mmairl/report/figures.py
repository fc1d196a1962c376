"""Every chart, in one style. On a page a chart takes its colours from the page, so that one SVG serves light and dark."""

import io
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import Bbox
from scipy.stats import t as student_t
from torch import Tensor

from mmairl.files import replacing
from mmairl.weights.norms import Norm

# The page's light colours, as in figures.mplstyle: right in a file of their own; on a page `svg` swaps them for its variables.
INK, QUIET, LINE, ACCENT, CARD = '#1d2433', '#667085', '#e3e1dc', '#2563c9', '#fffffe'
PUBLISHED = '#96600f'  # what a paper printed, as opposed to what was measured here
VARIABLES = {INK: 'ink', QUIET: 'quiet', LINE: 'line', ACCENT: 'accent', CARD: 'card', PUBLISHED: 'published'}
# On white and on near-black the first six keep apart for the colour-blind too, and of the others those of one shape.
COLOURS = (
    '#2f7fc1', '#e69f00', '#009e73', '#d55e00', '#cc79a7', '#56b4e9',
    '#25a9bd', '#86b84a', '#f0a0c0', '#b03060', '#a6794f', '#8a5a2b',
)  # fmt: skip
MARKERS = 'os^Dv'
styled = rc_context(fname=Path(__file__).with_name('templates') / 'figures.mplstyle')  # of every function that draws
DOT = {'marker': 'o', 'markersize': 4.6, 'markeredgecolor': CARD, 'markeredgewidth': 0.8, 'zorder': 3, 'linestyle': ''}
Curve = tuple[Sequence[float], Sequence[float]]


def record(axes: Axes, name: str, x: Sequence[float], y: Sequence[float], text: str = '') -> str:
    """Keep a curve, a row or a dot with its figure, so that a page can read it out and mark it; return its id.

    `text` is read out in place of the numbers.
    """
    kept = axes.figure.__dict__.setdefault('series', [])
    own_id = f'series-{len(kept)}'
    kept.append((axes, dict(id=own_id, name=name, x=_plain(x), y=_plain(y), text=text)))
    return own_id


def _plain(values: Sequence[float]) -> list[float | None]:
    """For JSON, which knows no NaN."""
    return [float(f'{value:.6g}') if isfinite(value) else None for value in values]


@styled
def svg(figure: Figure, name: str, label: str = '') -> Markup:
    """The figure as inline SVG, read out as `label`; `name` keeps its ids apart from those of the page's other figures."""
    figure.set_dpi(72)  # an SVG's own unit, so that places in it are known
    buffer, frame = io.StringIO(), figure.get_tightbbox().padded(0.05)
    figure.savefig(buffer, format='svg', bbox_inches=frame, metadata={'Date': None})
    text = buffer.getvalue()
    text = re.sub(r'<metadata>.*?</metadata>|<style.*?</style>', '', text[text.index('<svg') :], flags=re.DOTALL)
    text = re.sub(r'<[^>]+>', lambda tag: _tag(tag[0], name), text)
    label = label or figure.axes[0].get_title(loc='left') or name
    size = 'wide' if frame.width > 6 else 'narrow'
    head = Markup('<svg class="plot {}" role="img" aria-label="{}" viewBox="{}" data-chart="{}">')
    box = re.search(r'viewBox="([^"]+)"', text)[1]
    return head.format(size, label, box, json.dumps(_chart(figure, frame, name))) + Markup(text.partition('>')[2])


def _tag(tag: str, name: str) -> str:
    """A tag with ids of this figure and the page's colours."""
    tag = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf'\g<1>{name}-', tag)
    tag = tag.replace('xlink:href', 'href').replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', '')
    tag = re.sub(r' style="([^"]*)"', _attributes, tag)
    return re.sub(r'"(#[0-9a-f]{6})"', lambda of: f'"var(--{VARIABLES[of[1]]})"' if of[1] in VARIABLES else of[0], tag)


def _attributes(style: re.Match) -> str:
    """A style as attributes, which a page's policy need not allow."""
    pairs = (pair.split(':', 1) for pair in style[1].split(';') if pair.strip())
    found = {key.strip(): value.strip() for key, value in pairs}
    if font := found.pop('font', None):
        found['font-size'] = font.split()[0]
    return ''.join(f' {key}="{value}"' for key, value in found.items())


def _chart(figure: Figure, frame: Bbox, name: str) -> list[dict[str, Any]]:
    """For each axes its place in the SVG, what it measures, and its series."""
    found = []
    for axes in figure.axes:
        kept = [series for where, series in getattr(figure, 'series', ()) if where is axes]
        if kept:
            place = axes.get_window_extent()
            box = [place.x0 - 72 * frame.x0, 72 * frame.y1 - place.y1, place.width, place.height]
            x, y = (
                dict(ends=[*axis.get_view_interval()], log=axis.get_scale() == 'log', label=axis.get_label_text())
                for axis in (axes.xaxis, axes.yaxis)
            )
            series = [{**of, 'id': f'{name}-{of["id"]}'} for of in kept]
            ticks = getattr(axes, 'names', None)
            found.append(dict(box=box, x=x, y=y, ticks=ticks, title=axes.get_title(loc='left'), series=series))
    return found


@styled
def png(figure: Figure) -> str:
    """The figure as PNG in base64: where a page has more dots than an SVG should."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=110, facecolor='white', bbox_inches='tight')
    return b64encode(buffer.getvalue()).decode()


@styled
def save_figure(figure: Figure, stem: str | Path) -> None:
    """Write stem.png and stem.svg on white; the same figure gives the same files."""
    for kind, metadata in (('png', {}), ('svg', {'Date': None})):
        with replacing(Path(f'{stem}.{kind}')) as beside:
            figure.savefig(beside, format=kind, metadata=metadata, dpi=160, facecolor='white', bbox_inches='tight')


def _axes(width: float, height: float) -> Axes:
    """Axes of a new figure; not by pyplot, which keeps figures and a backend for the whole process."""
    return Figure(figsize=(width, height)).subplots()


def _row_axes(rows: Sequence[tuple[str, str]], places: Sequence[float]) -> Axes:
    """Axes for horizontal rows, the name of each above it with its number at the end: on a phone the width is the drawing's."""
    axes = _axes(4.6, 0.55 + 0.46 * (1 + places[-1]))
    written = {'va': 'center', 'fontsize': 10, 'transform': axes.get_yaxis_transform(), 'zorder': 1.5}
    written['bbox'] = {'facecolor': CARD, 'linewidth': 0, 'pad': 1.5}
    for y, (name, number) in zip(places, rows):
        room = 48 - len(number)
        axes.text(0, y - 0.36, short(name, room), **written)
        axes.text(1, y - 0.36, number, ha='right', **written)
    axes.set(ylim=(places[-1] + 0.45, -0.62), yticks=[])
    axes.locator_params(axis='x', nbins=6)
    return axes


def _places(groups: Sequence[object]) -> np.ndarray:
    """Where rows stand: one below the other, with a gap where another group begins."""
    return np.arange(len(groups)) + 0.45 * np.cumsum([0, *(one != two for one, two in pairwise(groups))])


def short(name: str, room: int = 40) -> str:
    """A name on one line and in this room."""
    name = ' '.join(name.split())
    return name if len(name) <= room else f'{name[: room - 1]}…'


def _label(name: str) -> str:
    return f'\u200b{short(name)}'  # matplotlib leaves a label that begins with an underscore out of the legend


def _shape(number: int) -> str:
    """Two rows that share a shape differ in colour for everybody; the next dozen has other shapes for the same colours."""
    return MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]


def _look(axes: Axes, number: int, name: str, x: Sequence[float], y: Sequence[float], text: str = '') -> dict[str, Any]:
    """How the series of this number is drawn, with what a page reads out of it."""
    own = {'color': COLOURS[number % len(COLOURS)], 'marker': _shape(number), 'label': _label(name)}
    return {**own, 'gid': record(axes, name, x, y, text)}


def _legend_below(axes: Axes, place: float = -0.2, **more: float) -> None:
    """Up to four names beside each other, as long as they are no wider than the axes."""
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    columns = max(1, min(4, 52 // (longest + 3)))
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, place), ncols=columns, **more)


def _fit(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """The least-squares line with the 95 % confidence band of its mean."""
    slope, height = np.polyfit(x, y, 1)
    along = np.linspace(x.min(), x.max(), 50)
    variance = np.square(y - slope * x - height).sum() / (len(x) - 2)
    error = np.sqrt(variance * (1 / len(x) + np.square(along - x.mean()) / np.square(x - x.mean()).sum()))
    middle, reach = slope * along + height, student_t.ppf(0.975, len(x) - 2) * error
    axes.plot(along, middle, color=colour, linewidth=1.5)
    axes.fill_between(along, middle - reach, middle + reach, color=colour, alpha=0.15, linewidth=0)


def _logarithmic(axes: Axes, axis: Axis, name: str) -> None:
    """Powers of ten in plain figures, with 2 and 5 between them where there is room."""
    getattr(axes, f'set_{name}scale')('log')
    bottom, top = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 50 * bottom else (1,)))
    axis.set_major_formatter('{x:g}')
    axis.set_minor_locator(NullLocator())


@styled
def lines(
    series: Mapping[str, Curve],
    title: str = '',
    x: str = '',
    y: str = '',
    log: str = '',
    ticks: Sequence[str] = (),
    limits: tuple[float, float] | None = None,
    wide: bool = False,
    errors: Sequence[Sequence[float]] = (),
) -> Figure:
    """One line a name. `log` names the logarithmic axes, 'y' or 'xy'; `ticks` are names along x; `wide` fills a page.

    `errors` are each line's half error bars.
    """
    axes = _axes(*((7.6, 3.5) if wide else (4.6, 2.5)))
    for number, (name, points) in enumerate(series.items()):
        own = _look(axes, number, name or title, *points)
        own |= {'linestyle': '-' if number < len(COLOURS) // 2 else '--', 'markersize': 5}
        if len(series) == 1 and not wide:
            own['color'] = ACCENT
        if not (ticks or errors or len(series) > 1):
            own['marker'] = ''
        own |= {'markevery': 1 if ticks or errors else 0.12, 'linewidth': 2 if len(series) == 1 or wide else 1.5}
        axes.plot(*points, **own)
        if errors:
            axes.errorbar(*points, errors[number], fmt='none', ecolor=own['color'])
    axes.set(title=short(title), xlabel=short(x), ylabel=short(y))
    if limits:  # else it stays automatic, for a logarithmic axis as well
        axes.set_ylim(limits)
    axes.ticklabel_format(axis='y', useOffset=False)
    axes.locator_params(nbins=5) if not wide else None
    for name in log:
        _logarithmic(axes, getattr(axes, f'{name}axis'), name)
    if ticks:
        every = -(-len(ticks) // 24)
        slant = {'rotation': 60, 'ha': 'right', 'rotation_mode': 'anchor', 'fontsize': 8} if len(ticks) > 8 else {}
        axes.set_xticks(range(0, len(ticks), every), [short(tick) for tick in ticks[::every]], **slant)
        axes.names = [*ticks]
    if wide:
        axes.legend()
    elif len(series) > 1:
        _legend_below(axes)
    return axes.figure


def norm_lines(norms: Mapping[str, Sequence[Norm]], title: str = '') -> Figure:
    """Fig. 3a: the norms of a network's convolutions along its depth, one line a checkpoint."""
    values = [row.norm for rows in norms.values() for row in rows if row.norm > 0]
    longest = max(norms.values(), key=len)
    ticks = [row.name.removesuffix('.weight').replace('layer', 'l') for row in longest]
    series = {name: (range(len(rows)), [row.norm for row in rows]) for name, rows in norms.items()}
    apart = values and max(values) > 8 * min(values)
    return lines(series, title, y='norm', log='y' if apart else '', ticks=ticks, wide=True)


@styled
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


@styled
def feature_map(points: np.ndarray, labels: np.ndarray, classes: Sequence[str], title: str) -> Figure:
    """Images as dots in two dimensions, coloured and marked by class; the markers change when the colours come round again."""
    axes = _axes(4.6, 4.6)
    for label, name in enumerate(classes):
        dots = points[labels == label].T
        own = _look(axes, label, name, *dots, 'an image')
        axes.scatter(*dots, s=11 if len(points) < 4000 else 3, linewidths=0, alpha=0.85, **own)
    axes.set(xticks=[], yticks=[], title=short(title), aspect='equal')
    if 1 < len(classes) <= 40:
        _legend_below(axes, 0, markerscale=2, handletextpad=0.1)
    return axes.figure


@styled
def heat_map(values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str, names: Sequence[str]) -> Figure:
    """Similarities in [0, 1] as squares with their numbers; `names` are those of the two axes."""
    axes = _axes(7.6, 1.6 + 0.5 * len(rows))
    axes.imshow(values.clamp(0, 1), vmin=0, vmax=1, cmap='Blues', aspect='auto' if len(rows) < 12 else 'equal')
    axes.set_xticks(range(len(columns)), map(short, columns), rotation=45, ha='right', rotation_mode='anchor')
    axes.set_yticks(range(len(rows)), map(short, rows))
    axes.set(xlabel=short(names[1]), ylabel=short(names[0]), title=title)
    axes.grid(False)
    centred = {'ha': 'center', 'va': 'center', 'fontsize': 9}
    for (i, j), value in np.ndenumerate(values.numpy()):
        axes.text(j, i, f'{value:.2f}', color='white' if value > 0.55 else '#14171f', **centred)
    return axes.figure


@styled
def invariance_lines(kept: Mapping[str, Mapping[str, Sequence[float]]], strengths: Sequence[float]) -> Figure:
    """A small chart for each change: how much likeness is left as it grows, one line a network."""
    changes, columns = list(next(iter(kept.values()))), 3
    rows = -(-len(changes) // columns)
    lowest = min(min(of[change]) for of in kept.values() for change in changes)
    figure = Figure(figsize=(2.6 * columns, 1.9 * rows + 0.4))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, change in zip(grid.flat, changes):
        for number, (name, of) in enumerate(kept.items()):
            points = strengths, of[change]
            axes.plot(*points, markersize=3.5, **_look(axes, number, name, *points))
        axes.set(title=change, ylim=(min(0, lowest) - 0.05, 1.05))
    for axes in list(grid.flat)[len(changes) :]:
        axes.set_visible(False)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='lower center', ncols=min(3, len(labels)), fontsize=9)
    figure.tight_layout(rect=(0, 0.05 + 0.02 * (len(labels) > 3), 1, 1))
    return figure


@styled
def against(points: Mapping[str, tuple[float, float]], x: str, y: str) -> Figure:
    """One score over another, a dot a network, with the least-squares line and the correlation (Fig. 4's form)."""
    axes = _axes(7.6, 4.2)
    for name, point in points.items():
        axes.scatter(*point, color=ACCENT, s=36, gid=record(axes, name, point[:1], point[1:]))
        axes.annotate(short(name), point, xytext=(6, 4), textcoords='offset points', fontsize=9)
    axes.set(xlabel=f'{x}, %', ylabel=f'{y}, %')
    if len(points) > 2:
        xs, ys = np.array(list(points.values())).T
        _fit(axes, xs, ys, QUIET)
        axes.set_title(f'correlation {np.corrcoef(xs, ys)[0, 1]:.2f} over {len(points)} networks')
    return axes.figure


class Point(NamedTuple):
    """A row of a study in a figure: a value a seed, or the one that was published, or none."""

    row: Mapping[str, Any]
    values: tuple[float, ...]
    text: str  # the number as the table has it
    cluster: object = None


@styled
def study_bars(points: Sequence[Point], published: bool, start: float = 0.0) -> Figure:
    """A bar a row from `start` to the mean; its 95 % interval and a dot a seed on top. What was published is hollow."""
    places = _places([point.cluster for point in points])
    colours = _group_colours(points, published)
    axes = _row_axes([(point.row['name'], point.text) for point in points], places)
    for y, (row, values, text, _) in zip(places, points):
        axes.vlines(start, y - 0.16, y + 0.28, color=QUIET, linewidth=1)
        if not values:
            continue
        y, centre, fill = y + 0.06, mean(values), colours[row['group']]
        record(axes, row['name'], [centre], [y], text)
        if published:
            axes.barh(y, centre - start, 0.32, left=start, facecolor='none', hatch='////', edgecolor=fill)
            # The bar of the row that all start at has no length to see.
            axes.plot(centre, y, 'D', markersize=5, markerfacecolor=CARD, markeredgecolor=fill)
        else:
            axes.barh(y, centre - start, 0.32, left=start, color=fill, alpha=0.75)
            axes.errorbar(centre, y, xerr=_half(values), color=INK, linewidth=1.2)
            axes.plot(values, [y] * len(values), **DOT, color=INK)
    axes.use_sticky_edges = False  # or there is no margin where a bar starts, and marks are cut
    axes.margins(x=0.06)
    axes.set_xlim(_ends(axes.get_xlim(), [start, *(value for point in points for value in point.values)]))
    return axes.figure


@styled
def study_lines(points: Sequence[Point], x_label: str, published: bool) -> Figure:
    """Means over `x`, one line and shape a group, with intervals and a mark a seed; published ones are dashed and hollow."""
    placed = sorted((p for p in points if p.values and p.row['x'] is not None), key=lambda point: point.row['x'])
    axes = _axes(4.6, 3.1)
    dashed = {'markerfacecolor': CARD, 'linestyle': (0, (4, 2)), 'linewidth': 1.5}
    for number, (group, colour) in enumerate(_group_colours(points, published).items()):
        shape = {'marker': _shape(number), 'markersize': 5}
        own = [point for point in placed if point.row['group'] == group]
        xs, means = [point.row['x'] for point in own], [mean(point.values) for point in own]
        halves = None if published else [_half(point.values) or 0 for point in own]
        line = {'color': colour, 'label': _label(group or ''), 'elinewidth': 1.2, **shape}
        axes.errorbar(xs, means, halves, **line, **(dashed if published else {}))
        for point, value in zip(own, means):
            record(axes, point.row['name'], [point.row['x']], [value], point.text)
            if not published:
                axes.plot([point.row['x']] * len(point.values), point.values, **{**DOT, **shape}, color=colour)
    ticks = sorted({point.row['x'] for point in points if point.row['x'] is not None})
    if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] > 8:
        axes.set_xscale('log')
        axes.minorticks_off()
    axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    axes.set_xlabel(short(x_label))
    axes.locator_params(axis='y', nbins=5)
    axes.set_ylim(_ends(axes.get_ylim(), [value for point in placed for value in point.values]))
    if any(point.row['group'] for point in placed):
        _legend_below(axes)
    return axes.figure


@styled
def study_scatter(points: Sequence[Point], across: Sequence[float | None], x_label: str) -> Figure:
    """Rows by two of their scores, with a regression line a group and the 95 % confidence band of its mean."""
    axes = _axes(4.6, 3.1)
    for number, (group, colour) in enumerate(_group_colours(points, published=False).items()):
        own = {
            p.row['name']: (x, mean(p.values))
            for p, x in zip(points, across)
            if p.row['group'] == group and p.values and x is not None
        }
        for name, point in own.items():
            record(axes, name, point[:1], point[1:])
        x, y = np.array(list(own.values())).reshape(-1, 2).T
        shape = {'marker': _shape(number)}
        axes.plot(x, y, **{**DOT, **shape}, color=colour, label=_label(group or ''))
        if len(x) > 2 and np.ptp(x):
            _fit(axes, x, y, colour)
    axes.set_xlabel(short(x_label))
    _legend_below(axes)
    return axes.figure


def _ends(limits: tuple[float, float], values: Sequence[float]) -> tuple[float, float]:
    """The limits of an axis, but not far beyond its values: the interval of two seeds is thirteen times their distance."""
    if not values or min(values) == max(values):
        return limits
    room = 0.5 * (max(values) - min(values))
    return max(limits[0], min(values) - room), min(limits[1], max(values) + room)


def _half(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean, by Student's t."""
    n = len(values)
    return float(student_t.ppf(0.975, n - 1)) * stdev(values) / n**0.5 if n > 1 else None


def _group_colours(points: Sequence[Point], published: bool) -> dict[str | None, str]:
    groups = dict.fromkeys(point.row['group'] for point in points)
    colours = iter(COLOURS * len(groups))
    return {group: next(colours) if group else PUBLISHED if published else ACCENT for group in groups}


@styled
def forest(comparisons: Sequence[Mapping], texts: Sequence[str]) -> Figure:
    """Each effect with its interval about zero, and the margin of equivalence shaded; the shape of a mark tells its verdict.

    Where the number of an effect's `factors` changes there is a gap.
    """
    marks = {'differs': ('o', ACCENT), 'equivalent': ('s', QUIET), 'undecided': ('D', CARD)}
    places = _places([len(of.get('factors', ())) for of in comparisons])
    axes = _row_axes([(of['row'], text) for of, text in zip(comparisons, texts)], places)
    for y, of, text in zip(places, comparisons, texts):
        record(axes, of['row'], [of['estimate']], [y + 0.06], text)
    axes.axvline(0, color=QUIET, linewidth=1, zorder=1)
    axes.axvspan(-comparisons[0]['margin'], comparisons[0]['margin'], color=QUIET, alpha=0.12, linewidth=0)
    for verdict, (shape, fill) in marks.items():
        own = {y + 0.06: of for y, of in zip(places, comparisons) if of['verdict'] == verdict}
        if own:
            effects, halves = zip(*((of['estimate'], of['high'] - of['estimate']) for of in own.values()))
            look = {'color': INK, 'markerfacecolor': fill, 'markersize': 7, 'elinewidth': 1.2, 'capsize': 0}
            axes.errorbar(effects, list(own), xerr=halves, fmt=shape, label=verdict, **look)
    axes.set_xlabel('points, with the 95 % interval')
    inches = axes.get_position().height * axes.figure.get_figheight()
    _legend_below(axes, -0.45 / inches)
    return axes.figure
