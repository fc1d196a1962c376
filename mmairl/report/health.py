"""The health page of a run: what is wrong now, and how each quantity came to be where it is."""

from collections import Counter
from collections.abc import Mapping
from html import escape
from math import isfinite
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from mmairl.analysis.health import QUANTITIES, Quantity, sentence, state
from mmairl.errors import UserError
from mmairl.report.figures import ACCENT, CLASS_COLOURS, QUIET, STYLE, new_axes, svg
from mmairl.report.page import Page
from mmairl.report.scalars import Curve, read_scalars

PREFIX = 'health_'
# A shape and a word each, so that no state is told by its colour alone.
MARKS = {'bad': ('■', 'bad'), 'watch': ('▲', 'watch'), 'good': ('●', 'good'), 'open': ('○', 'no range')}
SECTIONS = {
    'Embeddings': (
        'A collapsed network maps every image to one point: the spread falls to 0, the rank to 1 and all similarities to 1.',
        (
            'spread_query', 'spread_key', 'rank_features', 'rank_embeddings',
            'positive', 'negative', 'hardest_negative', 'contrast',
        ),
    ),
    'Teacher and queue': (
        'The teacher should follow the student at a distance, and the queue should be young beside it.',
        ('teacher_distance', 'queue_drift', 'queue_steps', 'queue_epochs', 'queue_filled'),
    ),
    'Weights and gradients': (
        'Every stage should receive a gradient, and no step should replace more than a small share of the weights.',
        ('loss', 'gradient_norm', 'update_ratio'),
    ),
    'Time and accuracy': (
        'A loader that cannot keep up shows as time spent waiting; the probe and k-NN should rise.',
        ('data_share', 'probe_accuracy', 'knn_accuracy'),
    ),
}  # fmt: skip
BY_STAGE = {'gradient_norm': 'gradient norm', 'weight_norm': 'weight norm', 'update_ratio': 'update over weights'}
LOGARITHMIC = {'teacher_distance', 'gradient_norm', 'update_ratio'}
CSS = """
h1 { overflow-wrap: anywhere; }
.vitals { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 200px), 1fr)); }
.vital { border: 1px solid var(--line); border-left: 4px solid var(--state); border-radius: 8px; padding: 10px 14px; }
.vital { --state: var(--line); font-size: 14px; line-height: 1.4; overflow-wrap: anywhere; }
.vital.good { --state: var(--right); } .vital.bad { --state: var(--wrong); } .vital.watch { --state: #c98a1b; }
.vital b { display: block; font-size: 26px; line-height: 1.3; letter-spacing: -0.02em; }
.vital .state { float: right; margin-left: 8px; color: var(--quiet); }
.vital i { font-style: normal; color: var(--state); }
.vital.open i { color: var(--quiet); }
.vital p { margin: 6px 0 0; }
"""


def write_health_page(work_dir: str | Path, out: str | Path) -> Path:
    """The page of the latest run in `work_dir`, as one file.

    >>> write_health_page('work_dirs/mocov2plus_r50_200e', 'health.html')  # doctest: +SKIP
    """
    curves = read_scalars(work_dir)
    if not any(name.startswith(PREFIX) for name in curves):
        raise UserError(
            f"the run in {work_dir} logged no health; set default_hooks.health=dict(type='HealthHook') in its config"
        )
    page = Page(f'Health of {Path(work_dir).resolve().name}', summary(curves))
    health_sections(page, curves)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    return page.write(out)


def health_sections(page: Page, curves: Mapping[str, Curve]) -> None:
    """The tiles, and under them the curves of what the run logged."""
    known = measured(curves)
    page.add('Now', '', f'<style>{CSS}</style><div class="vitals">{tiles(known)}</div>')
    for heading, (text, names) in SECTIONS.items():
        figures = [
            curve(quantity, known[quantity.name]) for quantity in QUANTITIES if quantity.name in known.keys() & names
        ]
        if heading == 'Weights and gradients':
            figures += by_stage(curves)
        if figures:
            page.add(heading, text, f'<div class="plots">{"".join(figures)}</div>', 'Shaded: the normal range.')


def measured(curves: Mapping[str, Curve]) -> dict[str, Curve]:
    """The curves of the quantities, by their own names."""
    own = {name.removeprefix(PREFIX): found for name, found in curves.items()}
    return {quantity.name: own[quantity.name] for quantity in QUANTITIES if own.get(quantity.name, ([], []))[1]}


def summary(curves: Mapping[str, Curve]) -> str:
    """How many quantities are in which state, and when."""
    known = measured(curves)
    count = Counter(_state(quantity, known[quantity.name][1][-1]) for quantity in QUANTITIES if quantity.name in known)
    step = max(steps[-1] for steps, _ in known.values())
    return f'At iteration {step:,}: {count["bad"]} bad, {count["watch"]} to watch, {count["good"]} good.'


def tiles(known: Mapping[str, Curve]) -> str:
    """One tile a quantity with its present value, the worst first."""
    order = list(MARKS)
    present = [(quantity, known[quantity.name][1][-1]) for quantity in QUANTITIES if quantity.name in known]
    present.sort(key=lambda pair: order.index(_state(*pair)))
    return ''.join(_tile(quantity, value) for quantity, value in present)


def _state(quantity: Quantity, value: float) -> str:
    return 'open' if isfinite(value) and normal_range(quantity) == '' else state(quantity, value)


def _tile(quantity: Quantity, value: float) -> str:
    now, said = _state(quantity, value), sentence(quantity, value)
    shape, word = MARKS[now]
    bounds = normal_range(quantity)
    return (
        f'<div class="vital {now}"><span class="state"><i aria-hidden="true">{shape}</i> {word}</span>'
        f'{escape(quantity.label)}<b>{value:.3g}</b>'
        + (f'<span class="quiet">normal: {bounds}</span>' if bounds else '')
        + (f'<p>{escape(said)}</p>' if said else '')
        + '</div>'
    )


def normal_range(quantity: Quantity) -> str:
    """The range in words, empty where there is none."""
    low, high = quantity.low, quantity.high
    if isfinite(low) and isfinite(high):
        return f'{low:g} to {high:g}'
    return f'{low:g} or more' if isfinite(low) else f'{high:g} or less' if isfinite(high) else ''


def curve(quantity: Quantity, points: Curve) -> str:
    """A quantity over the iterations, with its normal range shaded."""
    with rc_context(STYLE):
        axes = _axes(quantity.label)
        axes.plot(*points, color=ACCENT)
        if min(points[1]) == max(points[1]):
            axes.set_ylim(sorted((0, 1.2 * points[1][0] or 1)))  # a constant would stand between its own decimals
        logarithmic = quantity.name in LOGARITHMIC and min(points[1]) > 0
        _shade(axes, quantity, logarithmic)
        if logarithmic:
            _logarithmic(axes)
        return svg(axes.figure, quantity.name)


def _shade(axes: Axes, quantity: Quantity, logarithmic: bool) -> None:
    """The normal range, whose ends the axes are made to reach; the low one of logarithmic axes is too far away."""
    low, high = quantity.low, quantity.high
    ends = [end for end in (low, high) if isfinite(end) and not (logarithmic and end == low)]
    values = (
        axes.lines[0].get_ydata() if logarithmic else axes.get_ylim()
    )  # the limits of what is linear yet are below 0
    bottom, top = min(*values, *ends), max(*values, *ends)
    room = 0.1 * (top - bottom)
    axes.set_ylim((bottom / 1.3, top * 1.3) if logarithmic else (bottom - room, top + room) if ends else None)
    if isfinite(low) or isfinite(high):
        axes.axhspan(max(axes.get_ylim()[0], low), min(axes.get_ylim()[1], high), color=ACCENT, alpha=0.12, linewidth=0)


def _logarithmic(axes: Axes) -> None:
    """Powers of ten in plain figures, with 2 and 5 between them where there is room."""
    axes.set_yscale('log')
    bottom, top = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if top < 50 * bottom else (1,)))
    axes.yaxis.set_major_formatter('{x:g}')
    axes.yaxis.set_minor_locator(NullLocator())


def by_stage(curves: Mapping[str, Curve]) -> list[str]:
    """What is measured of each stage of the network, a line a stage, on a logarithmic axis."""
    figures = []
    for kind, label in BY_STAGE.items():
        prefix = f'{PREFIX}{kind}_'
        stages = {name.removeprefix(prefix): found for name, found in curves.items() if name.startswith(prefix)}
        if stages:
            figures.append(_lines(f'{label} by stage', f'{kind}_by_stage', stages))
    return figures


def _lines(title: str, name: str, stages: Mapping[str, Curve]) -> str:
    with rc_context(STYLE):
        axes = _axes(title)
        for number, (stage, points) in enumerate(stages.items()):
            dashes = '-' if number < len(CLASS_COLOURS) // 2 else '--'
            axes.plot(*points, dashes, color=CLASS_COLOURS[number % len(CLASS_COLOURS)], linewidth=1.5, label=stage)
        if all(value > 0 for _, values in stages.values() for value in values):
            _logarithmic(axes)
        axes.legend(
            loc='upper center', bbox_to_anchor=(0.5, -0.22), ncols=4, fontsize=9, columnspacing=1, labelcolor=QUIET
        )
        return svg(axes.figure, name)


def _axes(title: str) -> Axes:
    axes = new_axes(4.6, 2.5)
    axes.set_title(title)
    axes.set_xlabel('iteration')
    return axes
