"""Curves for a page, where uPlot draws them: all runs at one step, zoom, smoothing, and one legend for all of a page."""

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from mmairl.report.page import COLOURS

Numbers = Sequence[float]
# x, y, and where there is one the interval of each y: its lows and its highs
Along = Numbers | Mapping[str, Numbers]
Curve = tuple[Along, Numbers] | tuple[Along, Numbers, Numbers, Numbers]
POINTS = 1000  # of a curve on a page
STILL = 60  # of one in the small picture that stands there until the script draws
WIDTH, HEIGHT = 460, 150


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
    """Return a chart with one line a name.

    Args:
        series: for each name its x and y, and the ends of an interval of each y; x is a mapping where the reader may choose
            between several, such as epochs and hours.
        title: the heading, which also names the chart to a screen reader.
        x: the name of the x axis, where it is one for all.
        log: the logarithmic axes: 'x', 'y' or 'xy'.
        normal: a range of y to shade.
        level: a value of y to mark by a dotted line.
        ticks: names along x, in place of the numbers 0, 1, 2, ...
        dots: marks alone, without lines between them.
        wide: as wide as the page.
        points: of a line, at most.
    """
    curves = []
    for name, (along, *ys) in series.items():
        shown = [[value if value > 0 or 'y' not in log else np.nan for value in y] for y in ys]  # log knows no zero
        curves.append(_thinned(name, along if isinstance(along, Mapping) else {x: along}, shown, points))
    *ends, level = (None if end is None or not math.isfinite(end) else end for end in (*normal, level))
    content = dict(title=title, log=log, normal=ends, level=level, ticks=[*ticks], dots=dots, series=curves)
    box = Markup('<div class="curves{}" data-chart="{}"><b>{}</b>{}</div>')
    data = json.dumps(content, ensure_ascii=False, separators=(',', ':'))
    return box.format(' wide' if wide else '', data, title, _still(curves, log, dots))


def _thinned(name: str, x: Mapping[str, Numbers], ys: Sequence[Numbers], most: int) -> dict:
    """A curve with the least and the greatest value of each stretch where it has too many, so that no spike is lost."""
    kept = range(len(ys[0]))
    if len(kept) > most:
        values, stretches = np.array(ys[0]), np.array_split(np.arange(len(kept)), most // 2)
        kept = sorted({part[pick(values[part])] for part in stretches for pick in (np.argmin, np.argmax)})
    along = {unit: _plain(numbers[i] for i in kept) for unit, numbers in x.items()}
    return dict(zip(('y', 'low', 'high'), [_plain(y[i] for i in kept) for y in ys]), name=name, x=along)


def _plain(values: Sequence[float]) -> list[float | None]:
    """Numbers for JSON, which knows no NaN: six digits, and whole ones as they are."""
    return [None if not math.isfinite(v) else int(v) if v == int(v) else float(f'{v:.6g}') for v in values]


def _still(curves: Sequence[Mapping], log: str, dots: bool) -> Markup:
    """Return a small picture of the curves with the ends of both axes: what is seen where no script runs."""
    most = POINTS if dots else STILL
    few = [_thinned('', curve['x'], [[np.nan if v is None else v for v in curve['y']]], most) for curve in curves]
    lines = [[p for p in zip(next(iter(curve['x'].values())), curve['y']) if None not in p] for curve in few]
    xs, ys = (sorted(p[axis] for line in lines for p in line) for axis in (0, 1))
    if not xs:
        return Markup('<p class="still">No finite number.</p>')
    drawn = Markup()
    for number, line in enumerate(lines):
        places = ((WIDTH * _share(x, xs, 'x' in log), HEIGHT * (1 - _share(y, ys, 'y' in log))) for x, y in line)
        steps, colour = [f'{x:.0f} {y:.0f}' for x, y in places], COLOURS[number % len(COLOURS)]
        if dots or len(steps) == 1:  # lines of no length, whose round ends are marks
            width, path = 5, ''.join(f'M{step}h0' for step in steps)
        else:
            width, path = 2, ''.join(f'{"L" if place else "M"}{step}' for place, step in enumerate(steps))
        drawn += Markup('<path stroke="{}" stroke-width="{}" d="{}"/>').format(colour, width, path)
    said = f'{ys[0]:g} to {ys[-1]:g}, at {next(iter(few[0]["x"]))} {xs[0]:g} to {xs[-1]:g}'
    box = Markup('<div class="still"><svg viewBox="-2 -2 {} {}" aria-hidden="true">{}</svg>{}</div>')
    return box.format(WIDTH + 4, HEIGHT + 4, drawn, said)


def _share(value: float, values: Sequence[float], log: bool) -> float:
    """The place of a value between the least and the greatest, 0 to 1."""
    low, high, value = map(math.log if log else float, (values[0], values[-1], value))
    return (value - low) / (high - low) if high > low else 0.5
