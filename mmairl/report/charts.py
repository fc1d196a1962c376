"""Interactive charts of pages: JSON that uPlot draws, and a small still picture for readers without JavaScript."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from markupsafe import Markup

from mmairl.report.page import COLORS, fill

Numbers = Sequence[float]
Along = Numbers | Mapping[str, Numbers]
# x and y, and optionally the lower and upper ends of an interval around each y.
Curve = tuple[Along, Numbers] | tuple[Along, Numbers, Numbers, Numbers]
PARTS = ('y', 'low', 'high')
POINTS = 1000  # maximum number of points of a curve on a page
STILL_POINTS = 60  # maximum number of points of a line in the still picture
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
        series: The x and y of each name, optionally with the ends of an interval around each y. If x is a mapping from
            units to values, such as epochs and hours, the reader can choose the unit.
        title: The heading, which also names the chart for screen readers.
        x: The name of the x axis if there is only one.
        log: The logarithmic axes: 'x', 'y' or 'xy'.
        normal: The range of y to shade.
        level: A value of y to mark with a dotted line.
        ticks: Names along x instead of the numbers 0, 1, 2, ...
        dots: Whether to draw marks only, without lines.
        wide: Whether the chart is as wide as the page.
        points: Maximum number of points of a line.
    """
    curves = []
    for name, (along, *ys) in series.items():
        units = along if isinstance(along, Mapping) else {x: along}
        if 'y' in log:  # a logarithmic axis cannot show zero and negative values
            ys = [[value if value > 0 else math.nan for value in y] for y in ys]
        places = _extremes(ys[0], points)
        curve: dict[str, Any] = dict(name=name, x={})
        for part, y in zip(PARTS, ys):
            curve[part] = _plain(y, places)
        for unit, xs in units.items():
            curve['x'][unit] = _plain(xs, places)
        curves.append(curve)
    content = dict(
        title=title,
        log=log,
        normal=[_json_number(end) for end in normal],
        level=None if level is None else _json_number(level),
        ticks=[*ticks],
        dots=dots,
        series=curves,
    )
    data = json.dumps(content, ensure_ascii=False, separators=(',', ':'))
    still = still_picture(curves, log, dots)
    return fill('chart.html', title=title, wide=wide, data=data, **still)


def _extremes(values: Numbers, most: int) -> Sequence[int]:
    """Return the indices of the values to draw: all, or the minimum and maximum of each stretch, which keeps spikes."""
    if len(values) <= most:
        return range(len(values))
    array = np.array(values)
    places = set()
    for stretch in np.array_split(np.arange(len(array)), most // 2):
        places.add(stretch[array[stretch].argmin()])
        places.add(stretch[array[stretch].argmax()])
    return sorted(places)


def _plain(values: Numbers, places: Iterable[int]) -> list[float | None]:
    return [_json_number(values[place]) for place in places]


def _json_number(value: float) -> float | None:
    """Return an integer if the number is whole, None if it is not finite, else the number with six digits."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f'{value:.6g}')


def still_picture(
    curves: Sequence[Mapping], log: str = '', dots: bool = False, height: int = HEIGHT
) -> dict[str, Any]:
    """Return the paths and the caption of the still picture. Without a finite value, there are no paths."""
    lines = [_finite_points(curve, POINTS if dots else STILL_POINTS) for curve in curves]
    if not any(map(len, lines)):
        return dict(paths=[])
    points = np.concatenate(lines)
    left, bottom = points.min(axis=0)
    right, top = points.max(axis=0)
    logarithmic = [axis in log for axis in 'xy']
    scaled = _scaled(points, logarithmic)
    low = scaled.min(axis=0)
    reach = np.ptp(scaled, axis=0)
    flat = reach == 0
    paths = []
    for color, line in zip(cycle(COLORS), lines):
        shares = (_scaled(line, logarithmic) - low) / np.where(flat, 1, reach)
        shares[:, flat] = 0.5
        places = [f'{WIDTH * x:.0f} {height * (1 - y):.0f}' for x, y in shares]
        if dots or len(places) == 1:  # a line of length zero is drawn as a round dot
            paths.append((color, 5, ''.join(f'M{place}h0' for place in places)))
        else:
            paths.append((color, 2, 'M' + 'L'.join(places) if places else ''))
    unit = next(iter(curves[0]['x']))
    return dict(
        paths=paths,
        caption=f'minimum {bottom:.3g}, maximum {top:.3g} ({unit} {left:g} to {right:g})',
        width=WIDTH,
        height=height,
    )


def _finite_points(curve: Mapping, most: int) -> np.ndarray:
    """Return the finite points of a curve, (N, 2), with x in its first unit."""
    xs = next(iter(curve['x'].values()))
    points = [point for point in zip(xs, curve['y']) if None not in point]
    places = _extremes([y for _, y in points], most)
    return np.array([points[place] for place in places], float).reshape(-1, 2)


def _scaled(points: np.ndarray, logarithmic: Sequence[bool]) -> np.ndarray:
    """Return points with the logarithm of each coordinate whose axis is logarithmic."""
    return np.log(points, out=points.copy(), where=logarithmic)
