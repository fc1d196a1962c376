"""The effects figure: paired effects on one axis, with seeds, interval, equivalence margin and published effect.

Pages show it as a table with a drawing in each row, papers as a file. Both are drawn from an `EffectsFigure`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from mmairl.report.figures import rendered, short, styled
from mmairl.report.table import TABLE_FORMATS, signed

WIDTHS = {'column': 3.35, 'text': 6.9}  # inches, as in two-column papers
ROW_HEIGHT = 0.34
TALLEST = 8000  # pixels of a PNG
PAPER = {
    'font.size': 7.5,
    'xtick.color': '#1a2233',
    'ytick.color': '#1a2233',
    'axes.labelcolor': '#1a2233',
    'pdf.fonttype': 42,  # fonts are embedded
    'svg.fonttype': 'path',
}
LEGEND = '●\u00a0higher or lower  ■\u00a0equivalent  ○\u00a0inconclusive  ✕\u00a0no verdict'
# Marker, color and fill of each kind of verdict. The markers differ without color, too.
LOOKS = {
    'differs': ('o', '#1d5fd1', '#1d5fd1'),
    'equivalent': ('s', '#12805c', '#12805c'),
    'inconclusive': ('o', '#667085', 'white'),
    'problem': ('X', '#b42318', 'white'),
    'share': ('|', '#667085', '#667085'),
    'published': ('D', '#8a5a00', 'white'),
}


def number(value: float | None, digits: int) -> str:
    return '—' if value is None else signed(value, digits)


@dataclass(frozen=True)
class Effect:
    """An effect, in points. Unknown numbers are None.

    Args:
        name: What has the effect, such as a row, a factor or a claim.
        verdict: The verdict in words.
        kind: A key of `LOOKS`.
        estimate: The effect.
        low: Lower end of the 95 % interval.
        high: Upper end.
        seeds: The effect in each seed.
        change: What changes.
        note: A remark on the verdict.
        published: The published effect.
        agreement: How the effect relates to the published one.
        group: The heading above this effect and those of the same group that follow.
        digits: Decimals of the numbers.
    """

    name: str
    verdict: str
    kind: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()
    change: str = ''
    note: str = ''
    published: float | None = None
    agreement: str = ''
    group: str = ''
    digits: int = 1

    @property
    def size(self) -> str:
        return number(self.estimate, self.digits)

    @property
    def range(self) -> str:
        if self.low is None:
            return ''
        return f'{signed(self.low, self.digits)} to {signed(self.high, self.digits)}'

    @property
    def published_size(self) -> str:
        return number(self.published, self.digits)

    @property
    def numbers(self) -> list[float]:
        known = (self.estimate, self.low, self.high, self.published, *self.seeds)
        return [value for value in known if value is not None]


@dataclass(frozen=True)
class EffectsFigure:
    """Effects on one axis.

    Args:
        title: The heading.
        effects: One line each.
        margin: Effects between -margin and margin are equivalent to no effect.
        score: The measured score.
        published: The score of the published effects; '' hides their column.
        published_note: How to compare them with the measured ones.
        start: The score of the first row.
        end: The score of the last row.
        total: The difference of the last row to the first.
    """

    title: str
    effects: Sequence[Effect]
    margin: float
    score: str
    published: str = ''
    published_note: str = ''
    start: str = ''
    end: str = ''
    total: Effect | None = None

    @cached_property
    def ticks(self) -> list[float]:
        """Rounded values along the axis, from end to end."""
        values = [-self.margin, self.margin]
        for effect in self.effects:
            values += effect.numbers
        locator = MaxNLocator(8, steps=[1, 2, 5, 10])
        return locator.tick_values(min(values), max(values)).tolist()

    @property
    def labels(self) -> list[str]:
        return [f'{tick:+.4g}'.replace('-', '−') if tick else '0' for tick in self.ticks]

    def place(self, value: float) -> float:
        """Return a value's position along the axis, in percent."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(100 * (value - low) / (high - low), 2)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the columns and rows of the figure's numbers."""
        columns = ['effect', self.score, '95 % low', '95 % high', 'verdict']
        if self.published:
            columns.append(f'published: {self.published}')
        rows = []
        for effect in self.effects:
            numbers = (effect.estimate, effect.low, effect.high)
            sizes = [number(value, effect.digits) for value in numbers]
            cells = [effect.name, *sizes, effect.verdict, effect.published_size]
            rows.append(cells[: len(columns)])
        return columns, rows


@styled(**PAPER)
def draw_effects(shown: EffectsFigure, width: str = 'text') -> Figure:
    """Return the figure at the width of a column or of the text."""
    narrow = width == 'column'
    count = len(shown.effects)
    words = [f'effect on {short(shown.score)}; {LEGEND}']
    if shown.published:
        words.append(f'◇ published: {shown.published}{shown.published_note}')
    room = 62 if narrow else 120
    caption = fill('\n'.join(words), room, replace_whitespace=False)
    height = 0.5 + ROW_HEIGHT * count + 0.13 * caption.count('\n')
    figure = Figure(figsize=(WIDTHS[width], height), layout='constrained')
    axes = figure.subplots()
    axes.axvspan(-shown.margin, shown.margin, color='#e4eaf3', zorder=0)
    axes.axvline(0, color='#667085', linewidth=0.8, zorder=1)
    for row, effect in enumerate(shown.effects):
        _draw_effect(axes, row, effect)
    names = [short(effect.name, 22 if narrow else 44) for effect in shown.effects]
    axes.set_yticks(range(count), names)
    every = 2 if narrow else 1
    axes.set_xticks(shown.ticks[::every], shown.labels[::every])
    axes.set_xlim(shown.ticks[0], shown.ticks[-1])
    axes.set_ylim(count - 0.4, -0.6)
    figure.supxlabel(caption, fontsize=6.5)
    axes.grid(axis='y', visible=False)
    right = blended_transform_factory(axes.transAxes, axes.transData)
    for row, effect in enumerate(shown.effects):
        text = effect.size if narrow else f'{effect.size}  {effect.verdict}'
        axes.text(1.02, row, text, transform=right, va='center')
    return figure


def _draw_effect(axes: Axes, row: int, effect: Effect) -> None:
    for seed in effect.seeds:
        _draw_mark(axes, 'share', seed, row - 0.24, size=4)
    if effect.low is not None:
        _, color, _ = LOOKS[effect.kind]
        axes.hlines(row, effect.low, effect.high, color=color, linewidth=1.6)
    _draw_mark(axes, effect.kind, effect.estimate, row, size=6)
    _draw_mark(axes, 'published', effect.published, row + 0.26, size=4)


def _draw_mark(axes: Axes, kind: str, value: float | None, height: float, size: int) -> None:
    if value is not None:
        marker, color, face = LOOKS[kind]
        axes.plot(value, height, marker, color=color, markerfacecolor=face, markersize=size)


@styled(**PAPER)
def figure_files(figure: Figure) -> dict[str, bytes]:
    """Return a figure as SVG, PDF and PNG. Fonts are embedded."""
    dpi = min(300, TALLEST / figure.get_figheight())
    return {kind: rendered(figure, kind, dpi=dpi) for kind in ('svg', 'pdf', 'png')}


def effect_files(shown: EffectsFigure, width: str = 'text') -> dict[str, bytes]:
    """Return the figure, and its numbers as tables, as the content of files by their extension."""
    return figure_files(draw_effects(shown, width)) | effect_tables(shown)


def effect_tables(shown: EffectsFigure) -> dict[str, bytes]:
    table = shown.table()
    return {kind: write(*table).encode() for kind, write in TABLE_FORMATS.items()}
