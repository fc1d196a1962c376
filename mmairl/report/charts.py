"""Create interactive charts for pages.

A chart consists of JSON, which the library uPlot draws in the browser, and a still picture for readers without JavaScript.
"""

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
# The x values and y values of a line, and optionally the lower and upper ends of an interval around each y value.
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
    """Return a chart with a line for each entry of `series`.

    Args:
        series: For each line, by name, the x values and y values, and optionally the ends of an interval around each y value.
            The x values may be given in several units, as a mapping such as {'epoch': ..., 'hours': ...}. Readers of the page
            then choose the unit.
        title: The heading, which also names the chart for screen readers.
        x: The name of the x axis, if the x values have only one unit.
        log: The axes that are logarithmic: 'x', 'y', 'xy' or ''.
        normal: The normal range of the y values, which is shaded.
        level: A y value to mark with a dotted line.
        ticks: Names to show along the x axis instead of the numbers 0, 1, 2, ...
        dots: Whether to draw only dots, without lines between them.
        wide: Whether the chart is as wide as the page.
        points: The maximum number of points of a line. Lines with more points are thinned out.
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
    """Return the indices of at most `most` values to draw.

    If there are more values, they are split into stretches. The minimum and maximum of each stretch are drawn, so that spikes
    remain visible.
    """
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
    """Return a number for JSON: an integer if it is whole, None if it is not finite, and otherwise six significant digits."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f'{value:.6g}')


def still_picture(
    curves: Sequence[Mapping], log: str = '', dots: bool = False, height: int = HEIGHT
) -> dict[str, Any]:
    """Return the SVG paths, the caption and the size of the still picture.

    If no value is finite, return only an empty list of paths.
    """
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
        if dots or len(places) == 1:  # SVG draws a line of length zero as a round dot
            paths.append((color, 5, ''.join(f'M{place}h0' for place in places)))
        else:
            paths.append((color, 2, 'M' + 'L'.join(places) if places else ''))
    unit = next(iter(curves[0]['x']))
    return dict(
        paths=paths,
        caption=f'minimum {bottom:.3g}, maximum {top:.3g} ({unit}: {left:g} to {right:g})',
        width=WIDTH,
        height=height,
    )


def _finite_points(curve: Mapping, most: int) -> np.ndarray:
    """Return the finite points of a curve as an array of shape (N, 2). The x values are those of the first unit."""
    xs = next(iter(curve['x'].values()))
    points = [point for point in zip(xs, curve['y']) if None not in point]
    places = _extremes([y for _, y in points], most)
    return np.array([points[place] for place in places], float).reshape(-1, 2)


def _scaled(points: np.ndarray, logarithmic: Sequence[bool]) -> np.ndarray:
    """Return points with the coordinates of logarithmic axes replaced by their logarithms."""
    return np.log(points, out=points.copy(), where=logarithmic)
