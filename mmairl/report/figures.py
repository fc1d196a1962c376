"""Figures in the form that papers print: matplotlib files in one style, and the same content as charts of a page."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from scipy import stats
from torch import Tensor

from mmairl.checkpoints.norms import Norm
from mmairl.io import replacing
from mmairl.report.charts import Curve, chart
from mmairl.report.page import COLORS, TEMPLATES

MARKERS = 'os^Dv'
MOST_TICKS = 24
FLAT_TICKS = 8  # ticks up to which their names are horizontal
SLANTED = dict(rotation=60, ha='right', rotation_mode='anchor', fontsize=8)
MOST_CLASSES = 40  # in a legend
LEGEND_WIDTH = 52  # characters
FEW_DOTS = 4000
LOG_RATIO = 8  # ratio of maximum to minimum above which an axis is logarithmic
FIT_POINTS = 50  # points along a fitted line
DARK = '#14171f'
UNDATED = dict(svg=dict(Date=None), pdf=dict(CreationDate=None))


@contextmanager
def styled(**changes: Any) -> Iterator[None]:
    """Apply the style of all figures, with changes, as a context manager or a decorator.

    Warnings about missing glyphs are silenced: the browser finds another font.
    """
    style = rc_context(changes, TEMPLATES / 'figures.mplstyle')
    with style, warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph .* missing from')
        yield


def rendered(figure: Figure, kind: str, **options: Any) -> bytes:
    """Return a figure on white as the content of a file. It has no date: the same figure gives the same bytes."""
    buffer = io.BytesIO()
    metadata = UNDATED.get(kind)
    figure.savefig(buffer, format=kind, metadata=metadata, facecolor='white', **options)
    return buffer.getvalue()


@styled()
def save_figure(figure: Figure, stem: str | Path) -> None:
    """Write `stem`.png and `stem`.svg."""
    for kind in ('png', 'svg'):
        with replacing(Path(f'{stem}.{kind}')) as temporary:
            temporary.write_bytes(rendered(figure, kind, dpi=160, bbox_inches='tight'))


def _axes(width: float, height: float) -> Axes:
    """Return the axes of a new figure, without pyplot, which keeps figures for the whole process."""
    return Figure(figsize=(width, height)).subplots()


def short(name: str, room: int = 40) -> str:
    """Return a name on one line, cut to a length."""
    name = ' '.join(name.split())
    return name if len(name) <= room else f'{name[: room - 1]}…'


def _look(number: int, name: str) -> dict[str, Any]:
    """Return color, marker and label of the series of this number.

    Two series with one marker have colors that every reader can tell apart. Each further dozen shifts the markers.
    """
    shift = number // len(COLORS)
    return dict(
        color=COLORS[number % len(COLORS)],
        marker=MARKERS[(number + shift) % len(MARKERS)],
        label=f'\u200b{short(name)}',  # matplotlib hides labels that begin with an underscore
    )


@styled()
def lines(
    series: Mapping[str, Curve],
    title: str,
    x: str = '',
    log: str = '',
    ticks: Sequence[str] = (),
    width: float = 7.6,
) -> Figure:
    """Return a figure with one line per name.

    Args:
        series: The x and y of each name.
        title: The title.
        x: The name of the x axis.
        log: The logarithmic axes: 'x', 'y' or 'xy'.
        ticks: Names along x instead of numbers.
        width: The width in inches.
    """
    axes = _axes(width, 3.5)
    for number, (name, (xs, ys, *ends)) in enumerate(series.items()):
        look = _look(number, name)
        if ends:
            axes.fill_between(xs, *ends, color=look['color'], alpha=0.15, linewidth=0)
        axes.plot(
            xs,
            ys,
            **look,
            linestyle='-' if number < len(COLORS) // 2 else '--',
            markersize=5,
            markevery=1 if ticks else 0.12,
        )
    axes.set(title=short(title), xlabel=short(x))
    for name in log:
        _make_logarithmic(axes, name)
    if ticks:
        every = -(-len(ticks) // MOST_TICKS)
        names = [short(tick) for tick in ticks[::every]]
        look = SLANTED if len(ticks) > FLAT_TICKS else {}
        axes.set_xticks(range(0, len(ticks), every), names, **look)
    axes.legend()
    return axes.figure


def _make_logarithmic(axes: Axes, name: str) -> None:
    """Make an axis logarithmic, with plain numbers instead of powers of ten."""
    getattr(axes, f'set_{name}scale')('log')
    axis = getattr(axes, f'{name}axis')
    bottom, top = axis.get_view_interval()
    steps = (1, 2, 5) if top < 50 * bottom else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter('{x:g}')
    axis.set_minor_locator(NullLocator())


Norms = Mapping[str, Sequence[Norm]]


def norm_curves(norms: Norms) -> dict[str, Any]:
    """Return the norms of the convolutions along the depth, a line per network, for `lines` and for `chart`."""
    series = {name: (range(len(rows)), [row.norm for row in rows]) for name, rows in norms.items()}
    values = [row.norm for rows in norms.values() for row in rows if row.norm > 0]
    is_logarithmic = values and max(values) > LOG_RATIO * min(values)
    deepest = max(norms.values(), key=len)
    return dict(
        series=series,
        title='norms of the 3x3 convolutions',
        log='y' if is_logarithmic else '',
        ticks=[row.name.removesuffix('.weight').replace('layer', 'l') for row in deepest],
    )


def norm_lines(norms: Norms) -> Figure:
    """Return Fig. 3a: the norms of the convolutions along the depth."""
    return lines(**norm_curves(norms))


@styled()
def feature_map(
    points: np.ndarray, labels: np.ndarray, classes: Sequence[str], title: str
) -> bytes:
    """Return images as dots in two dimensions, colored and marked by class, as PNG."""
    axes = _axes(4.6, 4.6)
    size = 11 if len(points) < FEW_DOTS else 3
    for label, name in enumerate(classes):
        dots = points[labels == label].T
        axes.scatter(*dots, s=size, linewidths=0, alpha=0.85, **_look(label, name))
    axes.set(xticks=[], yticks=[], title=short(title), aspect='equal')
    if 1 < len(classes) <= MOST_CLASSES:
        longest = max(len(short(name)) for name in classes)
        axes.legend(
            loc='upper center',
            bbox_to_anchor=(0.5, 0),
            ncols=min(4, max(1, LEGEND_WIDTH // (longest + 4))),
            markerscale=2,
            handletextpad=0.1,
        )
    return rendered(axes.figure, 'png', dpi=110, bbox_inches='tight')


@styled()
def heat_map(
    values: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    names: Sequence[str],
) -> Figure:
    """Return similarities in [0, 1] as squares with their numbers.

    Args:
        values: The similarities, (rows, columns).
        rows: The names of the rows.
        columns: The names of the columns.
        title: The title.
        names: The names of the two axes.
    """
    axes = _axes(7.6, 1.6 + 0.5 * len(rows))
    aspect = 'auto' if len(rows) < 12 else 'equal'
    axes.imshow(values.clamp(0, 1), vmin=0, vmax=1, cmap='Blues', aspect=aspect)
    slanted = dict(rotation=45, ha='right', rotation_mode='anchor')
    axes.set_xticks(range(len(columns)), map(short, columns), **slanted)
    axes.set_yticks(range(len(rows)), map(short, rows))
    axes.set(xlabel=short(names[1]), ylabel=short(names[0]), title=title)
    axes.grid(False)
    centered = dict(ha='center', va='center', fontsize=9)
    for (row, column), value in np.ndenumerate(values.numpy()):
        color = 'white' if value > 0.55 else DARK
        axes.text(column, row, f'{value:.2f}', color=color, **centered)
    return axes.figure


PointOf = Mapping[str, tuple[float, float]]


def with_fits(points: PointOf, groups: Mapping[str, Sequence[str]]) -> dict[str, Curve]:
    """Return a mark per point and, for each group of three or more, the least-squares line with its 95 % band."""
    series: dict[str, Curve] = {name: ([x], [y]) for name, (x, y) in points.items()}
    for group, names in groups.items():
        if len(names) < 3:
            continue
        x, y = np.array([points[name] for name in names]).T
        if not np.ptp(x):
            continue
        fit = stats.linregress(x, y)
        along = np.linspace(x.min(), x.max(), FIT_POINTS)
        middle = fit.intercept + fit.slope * along
        error = fit.stderr * np.sqrt(x.var() + np.square(along - x.mean()))
        reach = stats.t.ppf(0.975, len(x) - 2) * error
        label = f'fit of {group}' if group else 'fit'
        series[label] = (along, middle, middle - reach, middle + reach)
    return series


def against(points: PointOf, x: str, y: str) -> Markup:
    """Return a chart of one score against another, with the fitted line and the correlation (form of Fig. 4)."""
    title = f'{y}, %'
    if len(points) > 2:
        correlation = np.corrcoef(np.array([*points.values()]).T)[0, 1]
        title += f': correlation {correlation:.2f} over {len(points)} networks'
    return chart(with_fits(points, {'': [*points]}), title, f'{x}, %', wide=True)


# A row, its values, and the interval of their mean.
Point = tuple[Mapping[str, Any], Sequence[float], tuple[float, float] | None]


def study_lines(points: Sequence[Point], title: str, x: str) -> dict[str, Any]:
    """Return means over the rows' x with intervals, a line per group, for `lines` and for `chart`."""
    series: dict[str, Curve] = {row['group'] or '': ([], [], [], []) for row, _, _ in points}
    placed = [point for point in points if point[1] and point[0]['x'] is not None]
    for row, values, interval in sorted(placed, key=lambda point: point[0]['x']):
        center = mean(values)
        numbers = (row['x'], center, *(interval or (center, center)))
        for column, number in zip(series[row['group'] or ''], numbers):
            column.append(number)
    xs = [row['x'] for row, _, _ in placed]
    is_logarithmic = xs and max(xs) > LOG_RATIO * min(xs) > 0
    return dict(series=series, title=title, x=x, log='x' if is_logarithmic else '')


def study_scatter(
    points: Sequence[Point], across: Sequence[float | None], title: str, x: str
) -> dict[str, Any]:
    """Return rows by two of their scores, with a fitted line per group, for `lines` and for `chart`."""
    placed = {}
    groups: dict[str, list[str]] = {}
    for (row, values, _), at in zip(points, across):
        if values and at is not None:
            placed[row['name']] = (at, mean(values))
            groups.setdefault(row['group'] or '', []).append(row['name'])
    return dict(series=with_fits(placed, groups), title=title, x=x)
