"""Interactive charts of a page: JSON that uPlot draws, and a small still picture for readers without scripts."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from mmairl.report.page import COLORS

Numbers = Sequence[float]
Along = Numbers | Mapping[str, Numbers]
# x and y, and optionally the lower and upper ends of an interval around each y.
Curve = tuple[Along, Numbers] | tuple[Along, Numbers, Numbers, Numbers]
PARTS = ('y', 'low', 'high')
POINTS = 1000  # most points of a curve on a page
STILL_POINTS = 60  # most points of a line in the still picture
WIDTH = 460
HEIGHT = 150


def chart(
    series: Mapping[str, Curve],
    title: str,
    x: str = '',
    *,
    log: str = '',
    normal: tuple[float, float] = (-math.inf, math.inf),
    level: float | None = None,
    ticks: Sequence[str] = (),
    dots: bool = False,
    wide: bool = False,
    points: int = POINTS,
) -> Markup:
    """Return a chart with one line per name.

    Args:
        series: The x and y of each name, optionally with the ends of an interval around each y. A mapping of units as x,
            such as epochs and hours, lets the reader choose.
        title: The heading, which also names the chart for screen readers.
        x: The name of the x axis if there is only one.
        log: The logarithmic axes: 'x', 'y' or 'xy'.
        normal: The range of y to shade.
        level: A value of y to mark with a dotted line.
        ticks: Names along x instead of the numbers 0, 1, 2, ...
        dots: Whether to draw marks only, without lines.
        wide: Whether the chart is as wide as the page.
        points: The most points of one line.
    """
    curves = []
    for name, (along, *ys) in series.items():
        xs = along if isinstance(along, Mapping) else {x: along}
        if 'y' in log:
            ys = [_positive(y) for y in ys]
        curves.append(_thinned(name, xs, ys, points))
    content = dict(
        title=title,
        log=log,
        normal=[_finite(end) for end in normal],
        level=_finite(level),
        ticks=[*ticks],
        dots=dots,
        series=curves,
    )
    data = json.dumps(content, ensure_ascii=False, separators=(',', ':'))
    box = Markup('<div class="curves{}" data-chart="{}"><b>{}</b>{}</div>')
    return box.format(' wide' if wide else '', data, title, _still(curves, log, dots))


def _positive(values: Numbers) -> list[float]:
    """Return the values with NaN where a logarithmic axis has no place for them."""
    return [value if value > 0 else math.nan for value in values]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _thinned(name: str, xs: Mapping[str, Numbers], ys: Sequence[Numbers], most: int) -> dict:
    """Return a curve as JSON, reduced to the minimum and maximum of each stretch if it is too long."""
    places = range(len(ys[0]))
    if len(places) > most:
        places = _extremes(np.array(ys[0]), most // 2)
    curve = {part: _plain(y[i] for i in places) for part, y in zip(PARTS, ys)}
    curve['name'] = name
    curve['x'] = {unit: _plain(numbers[i] for i in places) for unit, numbers in xs.items()}
    return curve


def _extremes(values: np.ndarray, stretches: int) -> list[int]:
    """Return the places of the minimum and maximum of each stretch, so that no spike is lost."""
    places = set()
    for stretch in np.array_split(np.arange(len(values)), stretches):
        places.add(stretch[values[stretch].argmin()])
        places.add(stretch[values[stretch].argmax()])
    return sorted(places)


def _plain(values: Iterable[float]) -> list[float | None]:
    return [_json_number(value) for value in values]


def _json_number(value: float) -> float | None:
    """Return a number with six digits, an integer if it is whole, or None if it is not finite."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f'{value:.6g}')


Points = list[tuple[float, float]]


def _still(curves: Sequence[Mapping], log: str, dots: bool) -> Markup:
    """Return a small picture of the curves with the ends of both axes, for readers without scripts."""
    most = POINTS if dots else STILL_POINTS
    lines = [_finite_points(curve, most) for curve in curves]
    xs = sorted(x for line in lines for x, _ in line)
    ys = sorted(y for line in lines for _, y in line)
    if not xs:
        return Markup('<p class="still">No finite number.</p>')
    drawn = Markup()
    for number, line in enumerate(lines):
        places = []
        for x, y in line:
            across = WIDTH * _share(x, xs, 'x' in log)
            down = HEIGHT * (1 - _share(y, ys, 'y' in log))
            places.append(f'{across:.0f} {down:.0f}')
        drawn += _path(places, COLORS[number % len(COLORS)], dots)
    unit = next(iter(curves[0]['x']))
    caption = f'{ys[0]:g} to {ys[-1]:g}, at {unit} {xs[0]:g} to {xs[-1]:g}'
    box = Markup(
        '<div class="still"><svg viewBox="-2 -2 {} {}" aria-hidden="true">{}</svg>{}</div>'
    )
    return box.format(WIDTH + 4, HEIGHT + 4, drawn, caption)


def _finite_points(curve: Mapping, most: int) -> Points:
    """Return the finite points of a curve along its first unit."""
    values = [math.nan if value is None else value for value in curve['y']]
    few = _thinned('', curve['x'], [values], most)
    xs = next(iter(few['x'].values()))
    return [point for point in zip(xs, few['y']) if None not in point]


def _path(places: Sequence[str], color: str, dots: bool) -> Markup:
    if dots or len(places) == 1:
        width = 5
        path = ''.join(
            f'M{place}h0' for place in places
        )  # a line of no length is drawn as its round end
    else:
        width = 2
        path = 'M' + 'L'.join(places) if places else ''
    return Markup('<path stroke="{}" stroke-width="{}" d="{}"/>').format(color, width, path)


def _share(value: float, values: Sequence[float], log: bool) -> float:
    """Return the position of a value between the minimum and maximum of sorted values, from 0 to 1."""
    low, high = values[0], values[-1]
    if log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low) if high > low else 0.5
