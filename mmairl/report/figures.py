"""Charts in one style, as SVG that takes its colours from the page, so that one picture serves light and dark."""

import io
import re
from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmairl.evaluation.protocol import Result
from mmairl.report.scalars import Curve
from mmairl.report.table import columns

# The page's light colours: right in a file of their own, and on a page `svg` swaps them for its variables.
INK, QUIET, LINE, ACCENT, CARD = '#1d2433', '#667085', '#e3e1dc', '#2563c9', '#fffffe'
VARIABLES = {INK: '--ink', QUIET: '--quiet', LINE: '--line', ACCENT: '--accent', CARD: '--card'}
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
