"""Draw figures with matplotlib, all in one style: embedded as SVG in pages, and as files for papers."""

import io
import warnings
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from scipy import stats

from mmairl.io import replacing
from mmairl.report.page import COLORS, TEMPLATES

Numbers = Sequence[float]
# The x values and y values of a line, and optionally the lower and upper ends of an interval around each y value.
Curve = tuple[Numbers, Numbers] | tuple[Numbers, Numbers, Numbers, Numbers]
MARKERS = 'os^Dv'
MARKED = 30  # curves with more points than this number have no marker at each point
MOST_TICKS = 24
FLAT_TICKS = 6  # with more ticks than this number, the names of ticks are slanted
FIT_POINTS = 50  # number of points to draw a fitted line with
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
    options.setdefault('bbox_inches', 'tight')
    with styled():
        figure.savefig(
            buffer, format=kind, metadata=UNDATED.get(kind), facecolor='white', **options
        )
    return buffer.getvalue()


def save_figure(
    figure: Figure, stem: str | Path, kinds: Sequence[str] = ('svg', 'pdf', 'png')
) -> None:
    """Save a figure as `stem`.svg, `stem`.pdf and `stem`.png."""
    for kind in kinds:
        with replacing(Path(f'{stem}.{kind}')) as temporary:
            temporary.write_bytes(rendered(figure, kind, dpi=200))


def embedded(figure: Figure, text: str) -> Markup:
    """Return a figure as an image for a page. Screen readers read the text."""
    content = b64encode(rendered(figure, 'svg')).decode()
    image = '<img class="figure" alt="{}" src="data:image/svg+xml;base64,{}">'
    return Markup(image).format(text, content)


def short(name: str, room: int = 40) -> str:
    """Return a name on one line. Cut it to `room` characters if it is longer."""
    name = ' '.join(name.split())
    return name if len(name) <= room else f'{name[: room - 1]}…'


def chart(series: Mapping[str, Curve], title: str, x: str = '', **options: Any) -> Markup:
    """Return an image of lines for a page. The arguments are those of `lines`."""
    ends = []
    for name, (xs, ys, *_) in series.items():
        known = [(at, y) for at, y in zip(xs, ys) if isfinite(y)]
        if known:
            (start, first), (stop, last) = known[0], known[-1]
            line = f'{name}: ' if name else ''
            ends.append(f'{line}{first:.4g} at {start:.4g}, {last:.4g} at {stop:.4g}')
    along = f' by {x}' if x else ''
    return embedded(lines(series, title, x, **options), f'{title}{along}. {"; ".join(ends)}')


@styled()
def lines(
    series: Mapping[str, Curve],
    title: str,
    x: str = '',
    *,
    log: str = '',
    normal: tuple[float, float] = (-inf, inf),
    ticks: Sequence[str] = (),
    dots: bool = False,
) -> Figure:
    """Return a figure with a line for each entry of `series`.

    Args:
        series: For each line, by name, the x values and y values, and optionally the ends of an interval around each y value.
        title: The title.
        x: The name of the x axis.
        log: The axes that are logarithmic: 'x', 'y', 'xy' or ''.
        normal: The normal range of the y values, which is shaded.
        ticks: Names to show along the x axis instead of the numbers 0, 1, 2, ...
        dots: Whether to draw only dots, without lines between them.
    """
    axes = new_axes(title, x)
    low, high = normal
    if isfinite(low) or isfinite(high):
        axes.axhspan(max(low, -1e9), min(high, 1e9), color='#e8f3ee', zorder=0)
    for number, (name, (xs, ys, *ends)) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        if ends:
            axes.fill_between(xs, *ends, color=color, alpha=0.15, linewidth=0)
        axes.plot(
            xs,
            ys,
            # matplotlib hides labels that begin with an underscore, so each label begins with an invisible space.
            label=f'\u200b{short(name)}' if name else None,
            color=color,
            linestyle='' if dots else '-' if number < len(COLORS) // 2 else '--',
            # Where colors repeat, the markers differ.
            marker=MARKERS[number % len(MARKERS)] if dots or len(xs) < MARKED else '',
            markersize=4,
        )
    for name in log:
        _make_logarithmic(axes, name)
    _fit_range(axes, [y for _, *ys in series.values() for part in ys for y in part], log)
    if ticks:
        every = -(-len(ticks) // MOST_TICKS)
        names = [short(tick, 20) for tick in ticks[::every]]
        axes.set_xticks(range(0, len(ticks), every), names)
        axes.tick_params('x', labelrotation=45 if len(ticks) > FLAT_TICKS else 0)
    if any(series):
        columns = 1 if len(series) < 4 else 2
        axes.legend(loc='upper left', bbox_to_anchor=(0, -0.22), ncols=columns)
    return axes.figure


def new_axes(title: str, x: str = '', height: float = 2.7) -> Axes:
    """Return the axes of a new figure. The figure is created without pyplot, which would keep it in memory."""
    axes = Figure(figsize=(4.8, height)).subplots()
    axes.set(title=short(title, 60), xlabel=short(x))
    return axes


def _fit_range(axes: Axes, values: Numbers, log: str) -> None:
    """Limit the y axis to the values, so that a shaded range without an end does not stretch it."""
    known = [y for y in values if isfinite(y) and (y > 0 or 'y' not in log)]
    if not known:
        return
    low, high = min(known), max(known)
    if 'y' in log:
        axes.set_ylim(low / 1.3, high * 1.3)
    else:
        space = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
        axes.set_ylim(low - space, high + space)


def _make_logarithmic(axes: Axes, name: str) -> None:
    """Make an axis logarithmic, and label it with plain numbers instead of powers of ten."""
    getattr(axes, f'set_{name}scale')('log')
    axis = getattr(axes, f'{name}axis')
    bottom, top = axis.get_view_interval()
    steps = (1, 2, 5) if top < 50 * bottom else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter('{x:g}')
    axis.set_minor_locator(NullLocator())


@styled()
def heat_map(values: np.ndarray, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    """Return a figure of similarities between 0 and 1 (rows, columns), each as a colored square with its number."""
    axes = new_axes(title, height=1.4 + 0.42 * len(rows))
    axes.imshow(values, vmin=0, vmax=1, cmap='Blues', aspect='auto')
    axes.set_xticks(range(len(columns)), map(short, columns), rotation=45, ha='right')
    axes.set_yticks(range(len(rows)), map(short, rows))
    axes.grid(False)
    for (row, column), value in np.ndenumerate(np.asarray(values)):
        color = 'white' if value > 0.55 else '#1a2233'
        axes.text(column, row, f'{value:.2f}', color=color, ha='center', va='center', fontsize=8)
    return axes.figure


Points = Mapping[str, tuple[float, float]]


def scatter(points: Points, title: str, x: str) -> Figure:
    """Return a figure of one score against another, with the least-squares line and its 95 % band."""
    series: dict[str, Curve] = {name: ([at], [score]) for name, (at, score) in points.items()}
    fit = fitted([*points.values()])
    if fit is not None:
        along, middle, reach = fit
        series['least squares'] = (along, middle, middle - reach, middle + reach)
    return lines(series, title, x)


def fitted(
    points: Sequence[tuple[float, float]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return x values, the least-squares line, and the half-width of its 95 % band; None for fewer than three points."""
    x, y = np.array(points).T
    if len(x) < 3 or not np.ptp(x):
        return None
    fit = stats.linregress(x, y)
    along = np.linspace(x.min(), x.max(), FIT_POINTS)
    error = fit.stderr * np.sqrt(x.var() + np.square(along - x.mean()))
    reach = stats.t.ppf(0.975, len(x) - 2) * error
    return along, fit.intercept + fit.slope * along, reach
