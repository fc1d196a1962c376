"""Draw figures with matplotlib, all in one style: embedded as SVG in pages, and as files for papers."""

import io
import warnings
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from mmairl.io import replacing
from mmairl.report.page import TEMPLATES

Numbers = Sequence[float]
# The x values and y values of a line, and optionally the lower and upper ends of an interval around each y value.
Curve = tuple[Numbers, Numbers] | tuple[Numbers, Numbers, Numbers, Numbers]
MARKED = 30  # curves with more points than this number have no marker at each point
MOST_TICKS = 24
UNDATED = dict(svg=dict(Date=None), pdf=dict(CreationDate=None))


# The program that shows an SVG file substitutes another font for missing glyphs.
warnings.filterwarnings('ignore', 'Glyph .* missing from')
# Applies the common style of figures, as a decorator or a context manager. It takes a dictionary of changes to some settings.
styled = partial(rc_context, fname=TEMPLATES / 'figures.mplstyle')


def rendered(figure: Figure, kind: str) -> bytes:
    """Return the content of an image file of a figure. It contains no date, so equal figures give equal bytes."""
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format=kind, metadata=UNDATED.get(kind))
    return buffer.getvalue()


def save_figure(figure: Figure, stem: str | Path) -> None:
    """Save a figure as `stem`.svg, `stem`.pdf and `stem`.png."""
    for kind in ('svg', 'pdf', 'png'):
        with replacing(f'{stem}.{kind}') as temporary:
            temporary.write_bytes(rendered(figure, kind))


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
    """Return an image of lines for a page. The arguments are those of `lines`. The text states the last value of each line."""
    values = [f'{name} {ys[-1]:.4g}'.strip() for name, (_, ys, *_) in series.items() if len(ys)]
    text = f'{title}, last values: {", ".join(values)}'
    return embedded(lines(series, title, x, **options), text)


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
    # A figure of pyplot would stay in memory.
    axes = Figure().subplots()
    axes.set(title=short(title, 60), xlabel=short(x))
    for name, (xs, ys, *ends) in series.items():
        # matplotlib hides labels that begin with an underscore, so each label begins with an invisible space.
        [line] = axes.plot(xs, ys, label=f'\u200b{short(name)}')
        if dots:
            line.set_linestyle('')
        elif len(xs) >= MARKED:
            line.set_marker('')
        if ends:
            axes.fill_between(xs, *ends, color=line.get_color(), alpha=0.15, linewidth=0)
    for name in log:
        axes.set(**{f'{name}scale': 'log'})
        axis = getattr(axes, f'{name}axis')
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter())
    # A normal range without an end must not stretch the axis.
    low, high = axes.get_ylim()
    if any(map(isfinite, normal)):
        axes.axhspan(max(low, normal[0]), min(high, normal[1]), color='#e8f3ee', zorder=0)
    axes.set_ylim(low, high)
    if ticks:
        every = -(-len(ticks) // MOST_TICKS)
        names = [short(tick, 20) for tick in ticks[::every]]
        axes.set_xticks(range(0, len(ticks), every), names, rotation=45, ha='right')
    if any(series):
        axes.legend(loc='upper left', bbox_to_anchor=(0, -0.5 if any(ticks) else -0.22), ncols=2)
    return axes.figure
