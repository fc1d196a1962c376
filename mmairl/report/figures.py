"""The figures that papers print, in one style: norms, maps, similarities, studies. Curves on a page are in charts.py."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from mmairl.analysis.regression import fitted_line
from mmairl.report.charts import Curve
from mmairl.report.page import COLOURS
from mmairl.report.svg import ACCENT, CARD, INK, PUBLISHED, QUIET, Drawing, styled
from mmairl.weights.norms import Norm

MARKERS = 'os^Dv'
DOT = {'marker': 'o', 'markersize': 4.6, 'markeredgecolor': CARD, 'markeredgewidth': 0.8, 'zorder': 3, 'linestyle': ''}


def _axes(width: float, height: float) -> Axes:
    """Return axes of a new figure; not by pyplot, which keeps figures and a backend for the whole process."""
    return Drawing(figsize=(width, height)).subplots()


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
    """The places of rows: one below the other, with a gap where another group begins."""
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


def _look(number: int, name: str) -> dict[str, Any]:
    """The colour, shape and label of the series of this number."""
    return {'color': COLOURS[number % len(COLOURS)], 'marker': _shape(number), 'label': _label(name)}


def _legend_below(axes: Axes, place: float = -0.2, **more: float) -> None:
    """Up to four names beside each other, as long as they are no wider than the axes."""
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    columns = max(1, min(4, 52 // (longest + 3)))
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, place), ncols=columns, **more)


def _fit(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """Draw the least-squares line with the 95 % confidence band of its mean."""
    along, middle, reach = fitted_line(x, y)
    axes.plot(along, middle, color=colour, linewidth=1.5)
    axes.fill_between(along, middle - reach, middle + reach, color=colour, alpha=0.15, linewidth=0)


@styled()
def lines(
    series: Mapping[str, Curve], title: str, x: str = '', y: str = '', log: str = '', ticks: Sequence[str] = ()
) -> Drawing:
    """One line a name, for a file. `log` names the logarithmic axes, 'y' or 'xy'; `ticks` are names along x."""
    axes = _axes(7.6, 3.5)
    for number, (name, points) in enumerate(series.items()):
        dash = '-' if number < len(COLOURS) // 2 else '--'
        axes.plot(*points, **_look(number, name), linestyle=dash, markersize=5, markevery=1 if ticks else 0.12)
    axes.set(title=short(title), xlabel=short(x), ylabel=short(y))
    for name in log:
        getattr(axes, f'set_{name}scale')('log')
        axis = getattr(axes, f'{name}axis')
        bottom, top = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 50 * bottom else (1,)))
        axis.set_major_formatter('{x:g}')  # powers of ten in plain figures
        axis.set_minor_locator(NullLocator())
    if ticks:
        every = -(-len(ticks) // 24)
        slant = {'rotation': 60, 'ha': 'right', 'rotation_mode': 'anchor', 'fontsize': 8} if len(ticks) > 8 else {}
        axes.set_xticks(range(0, len(ticks), every), [short(tick) for tick in ticks[::every]], **slant)
    axes.legend()
    return axes.figure


def norm_curves(norms: Mapping[str, Sequence[Norm]]) -> dict[str, Any]:
    """The norms of networks' convolutions along their depth, one line a network: for `lines` and for `chart`."""
    values = [row.norm for rows in norms.values() for row in rows if row.norm > 0]
    longest = max(norms.values(), key=len)
    series = {name: (range(len(rows)), [row.norm for row in rows]) for name, rows in norms.items()}
    apart = values and max(values) > 8 * min(values)
    ticks = [row.name.removesuffix('.weight').replace('layer', 'l') for row in longest]
    return dict(series=series, log='y' if apart else '', ticks=ticks)


def norm_lines(norms: Mapping[str, Sequence[Norm]], title: str = '') -> Drawing:
    """Draw Fig. 3a: the norms of networks' convolutions along their depth."""
    return lines(**norm_curves(norms), title=title, y='norm')


@styled()
def feature_map(points: np.ndarray, labels: np.ndarray, classes: Sequence[str], title: str) -> Drawing:
    """Images as dots in two dimensions, coloured and marked by class; the markers change when the colours come round again."""
    axes = _axes(4.6, 4.6)
    for label, name in enumerate(classes):
        dots = points[labels == label].T
        axes.scatter(*dots, s=11 if len(points) < 4000 else 3, linewidths=0, alpha=0.85, **_look(label, name))
    axes.set(xticks=[], yticks=[], title=short(title), aspect='equal')
    if 1 < len(classes) <= 40:
        _legend_below(axes, 0, markerscale=2, handletextpad=0.1)
    return axes.figure


@styled()
def heat_map(values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str, names: Sequence[str]) -> Drawing:
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


@styled()
def against(points: Mapping[str, tuple[float, float]], x: str, y: str) -> Drawing:
    """One score over another, a dot a network, with the least-squares line and the correlation (Fig. 4's form)."""
    axes = _axes(7.6, 4.2)
    for name, point in points.items():
        axes.figure.mark(axes.scatter(*point, color=ACCENT, s=36), name, '{:.2f} and {:.2f}'.format(*point))
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
    interval: tuple[float, float] | None = None  # of the mean, as the study has it
    cluster: object = None

    @property
    def error(self) -> list[list[float]] | None:
        """The distances from the mean to the ends of its interval, as matplotlib takes them."""
        return None if self.interval is None else [[abs(end - mean(self.values))] for end in self.interval]


@styled()
def study_bars(points: Sequence[Point], published: bool, start: float = 0.0) -> Drawing:
    """A bar a row from `start` to the mean; its 95 % interval and a dot a seed on top. What was published is hollow."""
    places = _places([point.cluster for point in points])
    colours = _group_colours(points, published)
    axes = _row_axes([(point.row['name'], point.text) for point in points], places)
    for y, point in zip(places, points):
        axes.vlines(start, y - 0.16, y + 0.28, color=QUIET, linewidth=1)
        if not point.values:
            continue
        y, centre, fill = y + 0.06, mean(point.values), colours[point.row['group']]
        if published:
            axes.barh(y, centre - start, 0.32, left=start, facecolor='none', hatch='////', edgecolor=fill)
            # The bar of the row that all start at has no length to see.
            (marked,) = axes.plot(centre, y, 'D', markersize=5, markerfacecolor=CARD, markeredgecolor=fill)
        else:
            axes.barh(y, centre - start, 0.32, left=start, color=fill, alpha=0.75)
            axes.errorbar(centre, y, xerr=point.error, color=INK, linewidth=1.2)
            (marked,) = axes.plot(point.values, [y] * len(point.values), **DOT, color=INK)
        axes.figure.mark(marked, point.row['name'], point.text)
    axes.use_sticky_edges = False  # or there is no margin where a bar starts, and marks are cut
    axes.margins(x=0.06)
    axes.set_xlim(_ends(axes.get_xlim(), [start, *(value for point in points for value in point.values)]))
    return axes.figure


@styled()
def study_lines(points: Sequence[Point], x_label: str, published: bool) -> Drawing:
    """Means over `x`, one line and shape a group, with intervals and a mark a seed; published ones are dashed and hollow."""
    placed = sorted((p for p in points if p.values and p.row['x'] is not None), key=lambda point: point.row['x'])
    axes = _axes(4.6, 3.1)
    look = {'markerfacecolor': CARD, 'linestyle': (0, (4, 2)), 'linewidth': 1.5} if published else {}
    for number, (group, colour) in enumerate(_group_colours(points, published).items()):
        shape = {'marker': _shape(number), 'markersize': 5, 'color': colour, **look}
        own = [point for point in placed if point.row['group'] == group]
        axes.plot([p.row['x'] for p in own], [mean(p.values) for p in own], label=_label(group or ''), **shape)
        for point in own:
            x, centre = point.row['x'], mean(point.values)
            axes.errorbar(x, centre, point.error, color=colour, elinewidth=1.2)
            (marked,) = axes.plot(x, centre, **shape)
            axes.figure.mark(marked, point.row['name'], point.text)
            if not published:
                axes.plot([x] * len(point.values), point.values, **{**DOT, 'marker': _shape(number)}, color=colour)
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


@styled()
def study_scatter(points: Sequence[Point], across: Sequence[float | None], x_label: str) -> Drawing:
    """Rows by two of their scores, with a regression line a group and the 95 % confidence band of its mean."""
    axes = _axes(4.6, 3.1)
    for number, (group, colour) in enumerate(_group_colours(points, published=False).items()):
        own = [(p, x) for p, x in zip(points, across) if p.row['group'] == group and p.values and x is not None]
        shape, label = {**DOT, 'marker': _shape(number), 'color': colour}, _label(group or '')
        for point, x in own:
            (marked,) = axes.plot(x, mean(point.values), **shape, label=label)
            axes.figure.mark(marked, point.row['name'], point.text)
            label = None
        xs, ys = np.array([(x, mean(point.values)) for point, x in own]).reshape(-1, 2).T
        if len(xs) > 2 and np.ptp(xs):
            _fit(axes, xs, ys, colour)
    axes.set_xlabel(short(x_label))
    _legend_below(axes)
    return axes.figure


def _ends(limits: tuple[float, float], values: Sequence[float]) -> tuple[float, float]:
    """The limits of an axis, but not far beyond its values: the interval of two seeds is thirteen times their distance."""
    if not values or min(values) == max(values):
        return limits
    room = 0.5 * (max(values) - min(values))
    return max(limits[0], min(values) - room), min(limits[1], max(values) + room)


def _group_colours(points: Sequence[Point], published: bool) -> dict[str | None, str]:
    groups = dict.fromkeys(point.row['group'] for point in points)
    colours = iter(COLOURS * len(groups))
    return {group: next(colours) if group else PUBLISHED if published else ACCENT for group in groups}


@styled()
def forest(comparisons: Sequence[Mapping], texts: Sequence[str]) -> Drawing:
    """Each effect with its interval about zero, and the margin of equivalence shaded; the shape of a mark tells its verdict.

    Where the number of an effect's `factors` changes there is a gap.
    """
    shapes = {'differs': ('o', ACCENT), 'equivalent': ('s', QUIET), 'undecided': ('D', CARD)}
    places = _places([len(effect.get('factors', ())) for effect in comparisons])
    axes = _row_axes([(effect['row'], text) for effect, text in zip(comparisons, texts)], places)
    axes.axvline(0, color=QUIET, linewidth=1, zorder=1)
    axes.axvspan(-comparisons[0]['margin'], comparisons[0]['margin'], color=QUIET, alpha=0.12, linewidth=0)
    for y, effect, text in zip(places + 0.06, comparisons, texts):
        if effect['verdict'] in shapes:
            shape, fill = shapes[effect['verdict']]
            axes.hlines(y, effect['low'], effect['high'], color=INK, linewidth=1.2)
            look = {'color': INK, 'markerfacecolor': fill, 'markersize': 7, 'linestyle': ''}
            (marked,) = axes.plot(effect['estimate'], y, marker=shape, label=effect['verdict'], **look)
            axes.figure.mark(marked, effect['row'], text)
            seeds = effect.get('spread', ())
            axes.plot(seeds, [y - 0.22] * len(seeds), '|', color=QUIET, markersize=5)
    axes.set_xlabel('points, with the 95 % interval; small marks are seeds')
    inches = axes.get_position().height * axes.figure.get_figheight()
    handles, labels = axes.get_legend_handles_labels()
    by_verdict = dict(zip(labels, handles))
    axes.legend(by_verdict.values(), by_verdict, loc='upper center', bbox_to_anchor=(0.5, -0.45 / inches), ncols=3)
    return axes.figure
