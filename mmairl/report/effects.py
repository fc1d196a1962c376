"""Draw the effects figure, which shows the effects that a study measured, below each other on a common axis.

For each effect, the figure shows the values for single seeds, the confidence interval, the equivalence margin and the published
effect. Pages show the figure as a table with a drawing in each row. For papers, the figure is an image file. Both forms are
created from an `EffectsFigure`. A row of a study is a config that the study trains with several seeds.
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

# Width in inches of a column and of the text in two-column papers.
WIDTHS = {'column': 3.35, 'text': 6.9}
ROW_HEIGHT = 0.34
TALLEST = 8000  # maximum height of a PNG in pixels
PAPER = {
    'font.size': 7.5,
    'xtick.color': '#1a2233',
    'ytick.color': '#1a2233',
    'axes.labelcolor': '#1a2233',
    'pdf.fonttype': 42,  # embed the fonts
    'svg.fonttype': 'path',
}
LEGEND = '●\u00a0higher or lower  ■\u00a0equivalent  ○\u00a0inconclusive  ✕\u00a0no verdict'
# The marker, color and fill of each kind of verdict. The markers can be distinguished without color.
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
    """An effect on a score, in points of the score. Numbers that are unknown are None.

    Args:
        name: The name of the effect, such as a factor or a row of the study.
        verdict: The verdict, such as 'higher' or 'inconclusive'.
        kind: The kind of the verdict, which is a key of `LOOKS`.
        estimate: The estimated effect.
        low: The lower end of the 95 % confidence interval.
        high: The upper end of this interval.
        seeds: The effect for each seed.
        change: The settings that change, as text.
        note: A remark on the verdict.
        published: The published effect.
        agreement: Whether the measured effect agrees with the published effect, as text.
        group: The heading above a series of effects. Effects with the same heading follow each other.
        digits: The number of decimals to show.
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
    """The content of a figure with several effects on one axis.

    Args:
        title: The heading of the figure.
        effects: The effects, each of which is a line of the figure.
        margin: Effects between -margin and margin are equivalent to no effect.
        score: The name of the measured score.
        published: The name of the score of the published effects, or '' to show no published effects.
        published_note: A remark on comparing the published effects with the measured effects.
        start: The first row of a chain (rows that each build on the previous one) with its score, as text; '' without a chain.
        end: The last row of the chain with its score, as text.
        total: The effect of the last row compared with the first row of the chain, or the effect of all factors together.
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
        """The round values that label the axis, including both of its ends."""
        values = [-self.margin, self.margin]
        for effect in self.effects:
            values += effect.numbers
        locator = MaxNLocator(8, steps=[1, 2, 5, 10])
        return locator.tick_values(min(values), max(values)).tolist()

    @property
    def labels(self) -> list[str]:
        return [f'{tick:+.4g}'.replace('-', '−') if tick else '0' for tick in self.ticks]

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, in percent of the length of the axis."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(100 * (value - low) / (high - low), 2)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the columns and rows of a table with the numbers of the figure."""
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
    """Draw the figure with the width of a column or of the text of a paper."""
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
    """Return the content of a figure's SVG, PDF and PNG files by extension. The files do not depend on installed fonts."""
    dpi = min(300, TALLEST / figure.get_figheight())
    return {kind: rendered(figure, kind, dpi=dpi) for kind in ('svg', 'pdf', 'png')}


def effect_files(shown: EffectsFigure, width: str = 'text') -> dict[str, bytes]:
    """Return the content of files by extension: the figure as SVG, PDF and PNG, and its numbers as LaTeX, Markdown and CSV."""
    return figure_files(draw_effects(shown, width)) | effect_tables(shown)


def effect_tables(shown: EffectsFigure) -> dict[str, bytes]:
    table = shown.table()
    return {kind: write(*table).encode() for kind, write in TABLE_FORMATS.items()}
