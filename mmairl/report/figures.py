"""Draw figures with matplotlib, all in one style. Some functions prepare data that figures and the charts of pages share."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
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
from mmairl.errors import printable
from mmairl.io import replacing
from mmairl.report.charts import Curve, chart
from mmairl.report.page import COLORS, TEMPLATES

MARKERS = 'os^Dv'
MOST_TICKS = 24
FLAT_TICKS = 8  # with more ticks than this number, the names of ticks are slanted
SLANTED = dict(rotation=60, ha='right', rotation_mode='anchor', fontsize=8)
LOG_RATIO = 8  # an axis is logarithmic if the maximum is more than this multiple of the minimum
FIT_POINTS = 50  # number of points to draw a fitted line with
DARK = '#14171f'
UNDATED = dict(svg=dict(Date=None), pdf=dict(CreationDate=None))


@contextmanager
def styled(**changes: Any) -> Iterator[None]:
    """Apply the common style of figures, with changes to some settings. Use this as a context manager or as a decorator.

    Warnings about missing glyphs are suppressed, because the program that shows an SVG file substitutes another font.
    """
    style = rc_context(changes, TEMPLATES / 'figures.mplstyle')
    with style, warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph .* missing from')
        yield


def rendered(figure: Figure, kind: str, **options: Any) -> bytes:
    """Return the content of an image file of a figure, on white. It contains no date, so equal figures give equal bytes."""
    buffer = io.BytesIO()
    metadata = UNDATED.get(kind)
    figure.savefig(buffer, format=kind, metadata=metadata, facecolor='white', **options)
    return buffer.getvalue()


@styled()
def save_figure(figure: Figure, stem: str | Path) -> None:
    """Save a figure as `stem`.png and as `stem`.svg."""
    for kind in ('png', 'svg'):
        with replacing(Path(f'{stem}.{kind}')) as temporary:
            temporary.write_bytes(rendered(figure, kind, dpi=160, bbox_inches='tight'))


def _axes(width: float, height: float) -> Axes:
    """Return the axes of a new figure. The figure is created without pyplot, which would keep it in memory."""
    return Figure(figsize=(width, height)).subplots()


def short(name: str, room: int = 40) -> str:
    """Return a name on one line. Cut it to `room` characters if it is longer."""
    name = printable(' '.join(name.split()))
    return name if len(name) <= room else f'{name[: room - 1]}…'


@styled()
def lines(
    series: Mapping[str, Curve],
    title: str,
    x: str = '',
    log: str = '',
    ticks: Sequence[str] = (),
    width: float = 7.6,
) -> Figure:
    """Return a figure with a line for each entry of `series`.

    Args:
        series: For each line, by name, the x values and y values, and optionally the ends of an interval around each y value.
        title: The title.
        x: The name of the x axis.
        log: The axes that are logarithmic: 'x', 'y', 'xy' or ''.
        ticks: Names to show along the x axis instead of numbers.
        width: The width in inches.
    """
    axes = _axes(width, 3.5)
    for number, (name, (xs, ys, *ends)) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        shift = number // len(COLORS)  # where colors repeat, the markers differ
        if ends:
            axes.fill_between(xs, *ends, color=color, alpha=0.15, linewidth=0)
        axes.plot(
            xs,
            ys,
            color=color,
            marker=MARKERS[(number + shift) % len(MARKERS)],
            # matplotlib hides labels that begin with an underscore, so each label begins with an invisible space.
            label=f'\u200b{short(name)}',
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
    """Make an axis logarithmic, and label it with plain numbers instead of powers of ten."""
    getattr(axes, f'set_{name}scale')('log')
    axis = getattr(axes, f'{name}axis')
    bottom, top = axis.get_view_interval()
    steps = (1, 2, 5) if top < 50 * bottom else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter('{x:g}')
    axis.set_minor_locator(NullLocator())


def _spans_decades(values: Sequence[float]) -> bool:
    """Return whether the axis for these values should be logarithmic: they are positive and differ by a large factor."""
    return bool(values) and max(values) > LOG_RATIO * min(values) > 0


def norm_curves(norms: Mapping[str, Sequence[Norm]]) -> dict[str, Any]:
    """Return the arguments of `lines` or `chart` to draw the norms of convolutions by depth, with a line per network."""
    series = {}
    positive = []
    for name, rows in norms.items():
        values = [row.norm for row in rows]
        series[name] = (range(len(values)), values)
        positive += [value for value in values if value > 0]
    deepest = max(norms.values(), key=len)
    return dict(
        series=series,
        title='norms of the 3x3 convolutions',
        log='y' if _spans_decades(positive) else '',
        ticks=[row.name.removesuffix('.weight').replace('layer', 'l') for row in deepest],
    )


@styled()
def heat_map(
    values: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    names: Sequence[str],
) -> Figure:
    """Return a figure of similarities between 0 and 1, each as a colored square with its number.

    Args:
        values: The similarities, of shape (rows, columns).
        rows: The names of the rows.
        columns: The names of the columns.
        title: The title.
        names: The names of the y axis and of the x axis.
    """
    axes = _axes(7.6, 1.6 + 0.5 * len(rows))
    aspect = 'auto' if len(rows) < 12 else 'equal'
    axes.imshow(values, vmin=0, vmax=1, cmap='Blues', aspect=aspect)
    slanted = dict(rotation=45, ha='right', rotation_mode='anchor')
    axes.set_xticks(range(len(columns)), map(short, columns), **slanted)
    axes.set_yticks(range(len(rows)), map(short, rows))
    axes.set(
        title=title,
        xlabel=short(names[1]),
        ylabel=short(names[0]),
    )
    axes.grid(False)
    centered = dict(ha='center', va='center', fontsize=9)
    for (row, column), value in np.ndenumerate(values.numpy()):
        color = 'white' if value > 0.55 else DARK
        axes.text(column, row, f'{value:.2f}', color=color, **centered)
    return axes.figure


PointOf = Mapping[str, tuple[float, float]]


def with_fits(points: PointOf, groups: Mapping[str, Sequence[str]]) -> dict[str, Curve]:
    """Return the points, and the least-squares line with its 95 % confidence band for each group of at least three points."""
    series: dict[str, Curve] = {}
    for name, (x, y) in points.items():
        series[name] = ([x], [y])
    for group, names in groups.items():
        x, y = np.array([points[name] for name in names]).T
        if len(names) < 3 or not np.ptp(x):
            continue
        fit = stats.linregress(x, y)
        along = np.linspace(x.min(), x.max(), FIT_POINTS)
        middle = fit.intercept + fit.slope * along
        squared_distance = np.square(along - x.mean())
        error = fit.stderr * np.sqrt(x.var() + squared_distance)
        reach = stats.t.ppf(0.975, len(x) - 2) * error
        label = f'fit of {group}' if group else 'fit'
        series[label] = (along, middle, middle - reach, middle + reach)
    return series


def against(points: PointOf, x: str, y: str) -> Markup:
    """Return a chart of one score against another, with a fitted line and the correlation (Huang et al. 2022, Fig. 4)."""
    title = f'{y}, %'
    if len(points) > 2:
        correlation = np.corrcoef([*points.values()], rowvar=False)[0, 1]
        title += f': correlation {correlation:.2f} over {len(points)} networks'
    fitted = with_fits(points, {'': [*points]} if points else {})
    return chart(fitted, title, f'{x}, %', wide=True)


# A row of a study (a config that it trains with several seeds), the scores of its seeds, and the interval of their mean.
Point = tuple[Mapping[str, Any], Sequence[float], tuple[float, float] | None]


def study_lines(points: Sequence[Point], title: str, x: str) -> dict[str, Any]:
    """Return the arguments of `lines` or `chart` to draw the mean scores of rows, with a line per group of rows.

    The x values are those that the study declares for its rows.
    """
    placed: dict[str, list[tuple[float, ...]]] = {}
    for row, values, interval in points:
        group = placed.setdefault(row['group'] or '', [])
        if values and row['x'] is not None:
            center = mean(values)
            low, high = interval or (center, center)
            group.append((row['x'], center, low, high))
    series: dict[str, Curve] = {}
    for name, group in placed.items():
        ordered = sorted(group, key=itemgetter(0))
        series[name] = tuple(zip(*ordered)) or ([], [], [], [])
    xs = [point[0] for group in placed.values() for point in group]
    return dict(series=series, title=title, x=x, log='x' if _spans_decades(xs) else '')


def study_scatter(
    points: Sequence[Point], across: Sequence[float | None], title: str, x: str
) -> dict[str, Any]:
    """Return the arguments of `lines` or `chart` to draw one score of the rows over another, with a fitted line per group."""
    placed = {}
    groups: dict[str, list[str]] = {}
    for (row, values, _), at in zip(points, across):
        if values and at is not None:
            placed[row['name']] = (at, mean(values))
            groups.setdefault(row['group'] or '', []).append(row['name'])
    return dict(series=with_fits(placed, groups), title=title, x=x)
