"""The figures that papers print, as files in one style, and as charts of a page: norms, maps, similarities, studies."""

import io
import warnings
from base64 import b64encode
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
from mmairl.report.page import COLOURS, TEMPLATES

MARKERS = 'os^Dv'


@contextmanager
def styled() -> Iterator[None]:
    """The style of every figure; what draws one is decorated with it. Letters that a font lacks are the browser's to find."""
    with rc_context(fname=TEMPLATES / 'figures.mplstyle'), warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph .* missing from')
        yield


@styled()
def png(figure: Figure) -> str:
    """Return the figure as PNG in base64, for a page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=110, facecolor='white', bbox_inches='tight')
    return b64encode(buffer.getvalue()).decode()


@styled()
def save_figure(figure: Figure, stem: str | Path) -> None:
    """Write stem.png and stem.svg on white; the same figure gives the same files."""
    for kind, metadata in (('png', {}), ('svg', {'Date': None})):
        with replacing(Path(f'{stem}.{kind}')) as beside:
            figure.savefig(beside, format=kind, metadata=metadata, dpi=160, facecolor='white', bbox_inches='tight')


def _axes(width: float, height: float) -> Axes:
    """Return axes of a new figure; not by pyplot, which keeps figures and a backend for the whole process."""
    return Figure(figsize=(width, height)).subplots()


def short(name: str, room: int = 40) -> str:
    """A name on one line and in this room."""
    name = ' '.join(name.split())
    return name if len(name) <= room else f'{name[: room - 1]}…'


def _look(number: int, name: str) -> dict[str, Any]:
    """The colour, shape and label of the series of this number.

    Two that share a shape differ in colour for everybody; the next dozen has other shapes for the same colours.
    """
    shape = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
    label = f'\u200b{short(name)}'  # matplotlib leaves a label that begins with an underscore out of the legend
    return {'color': COLOURS[number % len(COLOURS)], 'marker': shape, 'label': label}


def _legend_below(axes: Axes, place: float = -0.2, **more: float) -> None:
    """Up to four names beside each other, as long as they are no wider than the axes."""
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    columns = max(1, min(4, 52 // (longest + 3)))
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, place), ncols=columns, **more)


@styled()
def lines(
    series: Mapping[str, Curve], title: str, x: str = '', y: str = '', log: str = '', ticks: Sequence[str] = ()
) -> Figure:
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


def norm_lines(norms: Mapping[str, Sequence[Norm]], title: str = '') -> Figure:
    """Draw Fig. 3a: the norms of networks' convolutions along their depth."""
    return lines(**norm_curves(norms), title=title, y='norm')


@styled()
def feature_map(points: np.ndarray, labels: np.ndarray, classes: Sequence[str], title: str) -> Figure:
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


def fitted_line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places along x, the height of the line there, and half the width of its 95 % band; it takes three points."""
    fit, along = stats.linregress(x, y), np.linspace(x.min(), x.max(), 50)
    error = fit.stderr * np.sqrt(x.var() + np.square(along - x.mean()))
    return along, fit.intercept + fit.slope * along, stats.t.ppf(0.975, len(x) - 2) * error


def with_fits(points: Mapping[str, tuple[float, float]], groups: Mapping[str, Sequence[str]]) -> dict[str, Curve]:
    """A mark a point and, for each group of three or more, the least-squares line with the 95 % band of its mean."""
    series: dict[str, Curve] = {name: ([x], [y]) for name, (x, y) in points.items()}
    for group, names in groups.items():
        xs, ys = np.array([points[name] for name in names]).reshape(-1, 2).T
        if len(xs) > 2 and np.ptp(xs):
            along, middle, reach = fitted_line(xs, ys)
            series[f'fit of {group}' if group else 'fit'] = (along, middle, middle - reach, middle + reach)
    return series


def against(points: Mapping[str, tuple[float, float]], x: str, y: str) -> Markup:
    """One score over another, a mark a network, with the least-squares line and the correlation (Fig. 4's form)."""
    title = f'{y}, %'
    if len(points) > 2:
        title += f': correlation {np.corrcoef(np.array([*points.values()]).T)[0, 1]:.2f} over {len(points)} networks'
    return chart(with_fits(points, {'': [*points]}), title, f'{x}, %', wide=True)


# A row, its values, and the interval of their mean.
Point = tuple[Mapping[str, Any], Sequence[float], tuple[float, float] | None]


def study_lines(points: Sequence[Point], title: str, x: str) -> Markup:
    """Means over the rows' x, a line a group, with intervals."""
    series: dict[str, Curve] = {}
    placed = sorted((p for p in points if p[1] and p[0]['x'] is not None), key=lambda point: point[0]['x'])
    for group in dict.fromkeys(row['group'] for row, _, _ in points):
        own = [(row['x'], mean(values), interval) for row, values, interval in placed if row['group'] == group]
        ends = zip(*(interval or (centre, centre) for _, centre, interval in own))
        series[group or ''] = ([x for x, _, _ in own], [centre for _, centre, _ in own], *(ends if own else ((), ())))
    places = [row['x'] for row, _, _ in placed]
    return chart(series, title, x, log='x' if places and places[0] > 0 and places[-1] > 8 * places[0] else '')


def study_scatter(points: Sequence[Point], across: Sequence[float | None], title: str, x: str) -> Markup:
    """Rows by two of their scores, with a regression line a group."""
    both, groups = {}, {}
    for (row, values, _), at in zip(points, across):
        if values and at is not None:
            both[row['name']] = (at, mean(values))
            groups.setdefault(row['group'] or '', []).append(row['name'])
    return chart(with_fits(both, groups), title, x)
