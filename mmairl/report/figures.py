"""Charts in one style, as SVG that takes its colours from the page, so that one picture serves light and dark."""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmairl.evaluation.protocol import Result
from mmairl.report.scalars import Curve
from mmairl.report.table import columns

# The page's light colours: right in a file of their own, and on a page `svg` swaps them for its variables.
INK, QUIET, LINE, ACCENT, CARD = '#1d2433', '#667085', '#e3e1dc', '#2563c9', '#fffffe'
PUBLISHED = '#96600f'  # what a paper printed, as opposed to what was measured here
VARIABLES = {
    INK: '--ink',
    QUIET: '--quiet',
    LINE: '--line',
    ACCENT: '--accent',
    CARD: '--card',
    PUBLISHED: '--published',
}
# Colours that keep apart on white and on near-black; markers tell apart what colour alone does not.
CLASS_COLOURS = (
    '#4e79d6', '#e8833a', '#2fa36b', '#d64f5c', '#9467c9', '#a6794f',
    '#e07bb5', '#7f8896', '#b3a41f', '#25a9bd', '#86b84a', '#c0508f',
)  # fmt: skip
MARKERS = 'os^Dv'
STYLE = {
    'svg.fonttype': 'none',
    'font.family': 'sans-serif',
    'font.size': 11,
    'text.color': INK,
    'axes.edgecolor': LINE,
    'axes.labelcolor': QUIET,
    'axes.facecolor': 'none',
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.titlesize': 12,
    'axes.titlelocation': 'left',
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.color': LINE,
    'grid.linewidth': 0.8,
    'xtick.color': QUIET,
    'ytick.color': QUIET,
    'xtick.major.size': 0,
    'ytick.major.size': 0,
    'lines.linewidth': 2,
    'figure.facecolor': 'none',
    'legend.frameon': False,
}
CURVES = {
    'loss': 'loss',
    'instance_accuracy': 'instance accuracy, %',
    'lr': 'learning rate',
    'momentum': 'teacher momentum',
}


def svg(figure: Figure, name: str) -> str:
    """The figure as inline SVG named `name`, which also keeps its ids apart from those of the page's other figures."""
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', bbox_inches='tight', pad_inches=0.05, metadata={'Date': None})
    text = buffer.getvalue()
    text = text[text.index('<svg') :]
    text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf'\g<1>{name}-', text)
    text = text.replace('xlink:href', 'href').replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', '')
    text = re.sub(r'font: ([\d.]+px) [^;\"]*', r'font: \1 system-ui, sans-serif', text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f'var({variable})')
    text = re.sub(
        r'<svg [^>]*viewBox="([^"]+)"[^>]*>',
        rf'<svg class="plot" role="img" aria-label="{name}" viewBox="\1">',
        text,
        count=1,
    )
    return text


def new_axes(width: float, height: float) -> Axes:
    # Not by pyplot, which keeps figures and a backend for the whole process.
    return Figure(figsize=(width, height)).subplots()


def training_curves(curves: dict[str, Curve]) -> str:
    """Loss, instance accuracy, learning rate and momentum over steps; those that the run logged."""
    figures = [_curve(name, *curves[name]) for name in CURVES if name in curves]
    return f'<div class="plots">{"".join(figures)}</div>'


def _curve(name: str, steps: Sequence[int], values: Sequence[float]) -> str:
    values = np.asarray(values, dtype=float)
    if name == 'instance_accuracy':
        values = 100 * values
    with rc_context(STYLE):
        axes = new_axes(4.6, 2.5)
        axes.plot(steps, values, color=ACCENT)
        axes.set_title(CURVES[name])
        axes.set_xlabel('step')
        axes.ticklabel_format(axis='y', useOffset=False)
        axes.locator_params(nbins=5)
        return svg(axes.figure, name)


def score_bars(results: Sequence[Result], title: str = '') -> str:
    """The results table as horizontal bars: one group per score, one bar per subject, the last subject in colour."""
    names = columns(results)
    with rc_context(STYLE):
        axes = new_axes(7.6, 0.5 + 0.42 * len(names) * (len(results) + 0.6))
        for row, result in enumerate(results):
            shown = [
                (g * (len(results) + 0.6) + row, result.scores[n]) for g, n in enumerate(names) if n in result.scores
            ]
            colour, opacity = (ACCENT, 1) if row == len(results) - 1 else (QUIET, 0.55)
            axes.barh([y for y, _ in shown], [score for _, score in shown], height=0.82, color=colour, alpha=opacity)
            for y, score in shown:
                axes.text(score + 1, y, f'{score:.1f}', va='center', color=INK)
        ticks = [g * (len(results) + 0.6) + row for g in range(len(names)) for row in range(len(results))]
        axes.set_yticks(ticks, [f'{r.subject}  ·  {n}' for n in names for r in results], color=INK)
        axes.invert_yaxis()
        axes.set_xlim(0, 108)
        axes.set_xticks(range(0, 101, 25))
        axes.grid(axis='y', visible=False)
        axes.spines['left'].set_visible(False)
        axes.set_xlabel('top-1, %')
        axes.set_title(title)
        return svg(axes.figure, 'scores')


def feature_map(points: np.ndarray, labels: np.ndarray, classes: Sequence[str], name: str, title: str) -> str:
    """Images as dots in two dimensions, coloured and marked by class; the legend is drawn beneath."""
    with rc_context(STYLE):
        axes = new_axes(4.6, 4.6)
        for label in range(len(classes)):
            here = labels == label
            axes.scatter(*points[here].T, s=11, linewidths=0, alpha=0.85, label=str(classes[label]), **look(label))
        axes.set(xticks=[], yticks=[], title=title, aspect='equal')
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        axes.legend(
            loc='upper center',
            bbox_to_anchor=(0.5, 0),
            ncols=4,
            markerscale=2,
            columnspacing=1,
            handletextpad=0.1,
            fontsize=10,
        )
        return svg(axes.figure, name)


def look(label: int) -> dict[str, str]:
    """Colour and marker of a class: the markers change when the colours come round again, and by turns before."""
    return {
        'color': CLASS_COLOURS[label % len(CLASS_COLOURS)],
        'marker': MARKERS[(label + label // len(CLASS_COLOURS)) % len(MARKERS)],
    }


class Point(NamedTuple):
    """A row of a study in a figure: a value a seed, or the one that was published, or none."""

    label: str
    values: tuple[float, ...]
    text: str  # the number as the table has it
    group: str | None = None
    x: float | None = None
    cluster: object = None


def study_bars(points: Sequence[Point], name: str, published: bool, start: float = 0.0) -> str:
    """A bar a row from `start` to the mean, its label above it; spread and a dot a seed on top."""
    clusters = [len(list(of)) for _, of in groupby(points, key=lambda point: point.cluster)]
    gaps = np.repeat(np.arange(len(clusters)), clusters) * 0.45
    colours = _group_colours(points, published)
    with rc_context({**STYLE, 'text.parse_math': False, 'hatch.linewidth': 0.6}):
        axes = new_axes(4.6, 0.55 + 0.46 * (len(points) + gaps[-1]))
        for y, point in zip(np.arange(len(points)) + gaps, points):
            label = point.label if len(point.label) < 43 else f'{point.label[:41]}…'
            beside = axes.get_yaxis_transform()
            written = {
                'va': 'center',
                'fontsize': 10,
                'color': INK,
                'bbox': {'facecolor': CARD, 'linewidth': 0, 'pad': 1.5},
            }
            axes.text(0, y - 0.36, label, transform=beside, **written)
            axes.text(1, y - 0.36, point.text, transform=beside, ha='right', **written)
            axes.vlines(start, y - 0.16, y + 0.28, color=QUIET, linewidth=1)
            if point.values:
                _study_bar(axes, y + 0.06, point, start, colours[point.group], published)
        axes.set_ylim(len(points) + gaps[-1] - 0.55, -0.62)
        axes.set_yticks([])
        axes.use_sticky_edges = False  # or there is no margin where a bar starts, and marks are cut
        axes.margins(x=0.06)
        axes.grid(axis='y', visible=False)
        axes.spines[:].set_visible(False)
        axes.locator_params(axis='x', nbins=6)
        return svg(axes.figure, name)


def _study_bar(axes: Axes, y: float, point: Point, start: float, colour: str, published: bool) -> None:
    look = (
        {'facecolor': 'none', 'hatch': '////', 'edgecolor': colour} if published else {'color': colour, 'alpha': 0.75}
    )
    axes.barh(y, mean(point.values) - start, left=start, height=0.32, **look)
    if published:  # a bar from where it starts has no length to see
        axes.plot(mean(point.values), y, 'D', markersize=5, markerfacecolor=CARD, markeredgecolor=colour)
        return
    if len(point.values) > 1:
        axes.errorbar(mean(point.values), y, xerr=stdev(point.values), color=INK, linewidth=1.2, capsize=3)
    axes.plot(point.values, [y] * len(point.values), 'o', markersize=4.6, **_dot(INK))


def _dot(colour: str) -> dict[str, object]:
    return {'markerfacecolor': colour, 'markeredgecolor': CARD, 'markeredgewidth': 0.8, 'zorder': 3}


def _group_colours(points: Sequence[Point], published: bool) -> dict[str | None, str]:
    groups = dict.fromkeys(point.group for point in points if point.group is not None)
    return {None: PUBLISHED if published else ACCENT, **dict(zip(groups, CLASS_COLOURS * len(groups)))}


def study_lines(points: Sequence[Point], x_label: str, name: str, published: bool) -> str:
    """Means over `x`, one line a group, with spread and a dot a seed; published lines are dashed and their dots hollow."""
    placed = sorted((point for point in points if point.values and point.x is not None), key=lambda point: point.x)
    colours = _group_colours(points, published)
    with rc_context({**STYLE, 'text.parse_math': False}):
        axes = new_axes(4.6, 3.1)
        for group in dict.fromkeys(point.group for point in points):
            _study_line(axes, [point for point in placed if point.group == group], colours[group], published)
        _study_x(axes, sorted({point.x for point in points if point.x is not None}))
        axes.set_xlabel(x_label)
        axes.locator_params(axis='y', nbins=5)
        if any(point.group for point in placed):
            axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=10, labelcolor=INK)
        return svg(axes.figure, name)


def _study_line(axes: Axes, points: Sequence[Point], colour: str, published: bool) -> None:
    xs, means = [point.x for point in points], [mean(point.values) for point in points]
    # A label that begins with an underscore would be left out of the legend.
    label = (points[0].group or '') if points else ''
    label = f'\u200b{label}'
    if published:
        look = {'marker': 'D', 'markersize': 5, 'markerfacecolor': CARD, 'linestyle': (0, (4, 2))}
        axes.plot(xs, means, color=colour, label=label, linewidth=1.5, **look)
        return
    spreads = [stdev(point.values) if len(point.values) > 1 else 0 for point in points]
    axes.errorbar(xs, means, yerr=spreads, color=colour, label=label, capsize=3, elinewidth=1.2)
    dots = [(point.x, value) for point in points for value in point.values]
    axes.plot(*zip(*dots), 'o', markersize=4.6, **_dot(colour)) if dots else None


def _study_x(axes: Axes, ticks: Sequence[float]) -> None:
    """A tick where there is a row, on a logarithmic axis where the rows are powers apart."""
    if ticks and ticks[0] > 0 and ticks[-1] / ticks[0] > 8:
        axes.set_xscale('log')
        axes.minorticks_off()
    axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])


def seed_curves(curves: Mapping[str, Mapping[int, Curve]], name: str) -> str:
    """Loss and accuracies over the steps, one line a seed."""
    figures = (_seeds(title, of, f'{name}-{number}') for number, (title, of) in enumerate(curves.items()))
    return f'<div class="plots">{"".join(figures)}</div>'


def _seeds(title: str, curves: Mapping[int, Curve], name: str) -> str:
    with rc_context({**STYLE, 'text.parse_math': False}):
        axes = new_axes(4.6, 2.5)
        for number, (seed, (steps, values)) in enumerate(curves.items()):
            axes.plot(
                steps, values, color=CLASS_COLOURS[number % len(CLASS_COLOURS)], linewidth=1.4, label=f'seed {seed}'
            )
        axes.set(title=CURVES.get(title, title.replace('_', ' ')), xlabel='step')
        axes.locator_params(nbins=5)
        axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.2), ncols=4, fontsize=10, labelcolor=QUIET)
        return svg(axes.figure, name)
