"""The pictures of tools/analyze.py: heat maps of CKA, spectra, and what a network has learned to ignore."""

from collections.abc import Mapping, Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from mmairl.report.figures import CLASS_COLOURS, INK, MARKERS, STYLE


def heat_map(
    values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str, axes_names: Sequence[str]
) -> Figure:
    """Similarities in [0, 1] as squares with their numbers."""
    with rc_context({**STYLE, 'axes.grid': False}):
        figure = Figure(figsize=(7.6, 1.6 + 0.5 * len(rows)))
        axes = figure.subplots()
        axes.imshow(values.clamp(0, 1), vmin=0, vmax=1, cmap='Blues', aspect='auto' if len(rows) < 12 else 'equal')
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha='right', rotation_mode='anchor')
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlabel=axes_names[1], ylabel=axes_names[0], title=title)
        axes.spines[:].set_visible(False)
        for i, row in enumerate(values.tolist()):
            for j, value in enumerate(row):
                axes.text(
                    j, i, f'{value:.2f}', ha='center', va='center', fontsize=9, color='white' if value > 0.55 else INK
                )
        return figure


def stage_lines(values: Mapping[str, Sequence[float]], stages: Sequence[str], title: str) -> Figure:
    """Fig. 3b: the similarity of equal stages, one line a pair of networks."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.4))
        axes = figure.subplots()
        for number, (name, line) in enumerate(values.items()):
            axes.plot(line, label=name, **_line(number))
        axes.set_xticks(range(len(stages)), stages)
        axes.set(ylim=(0, 1.03), ylabel='CKA', title=title)
        axes.legend(fontsize=10)
        return figure


def spectra(values: Mapping[str, Tensor], title: str) -> Figure:
    """Eigenvalues over their rank, both logarithmic."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.4))
        axes = figure.subplots()
        for number, (name, line) in enumerate(values.items()):
            positive = line[line > 1e-12]
            axes.plot(range(1, len(positive) + 1), positive, color=_line(number)['color'], label=name)
        axes.set(xscale='log', yscale='log', xlabel='rank', ylabel='share of the variance', title=title)
        axes.legend(fontsize=10)
        return figure


def invariance_lines(
    kept: Mapping[str, Mapping[str, Sequence[float]]], strengths: Sequence[float], columns: int = 3
) -> Figure:
    """A small chart for each change: how much likeness is left as it grows, one line a network."""
    with rc_context(STYLE):
        changes = list(next(iter(kept.values())))
        rows = -(-len(changes) // columns)
        figure = Figure(figsize=(2.6 * columns, 1.9 * rows + 0.4))
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, change in zip(grid.flat, changes):
            for number, (name, of) in enumerate(kept.items()):
                axes.plot(strengths, of[change], label=name, **{**_line(number), 'markersize': 3.5})
            axes.set_title(change)
            axes.set_ylim(min(0, min(min(of[c]) for of in kept.values() for c in changes)) - 0.05, 1.05)
        for axes in list(grid.flat)[len(changes) :]:
            axes.set_visible(False)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc='lower center', ncols=min(3, len(labels)), fontsize=9)
        figure.tight_layout(rect=(0, 0.05 + 0.02 * (len(labels) > 3), 1, 1))
        return figure


def _line(number: int) -> dict:
    return {
        'color': CLASS_COLOURS[number % len(CLASS_COLOURS)],
        'marker': MARKERS[number % len(MARKERS)],
        'markersize': 5,
    }
