"""Fig. 3a: the norms of a network's convolutions along its depth, one line a checkpoint."""

from collections.abc import Mapping, Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure

from mmairl.report.figures import CLASS_COLOURS, MARKERS, STYLE
from mmairl.weights.norms import Norm


def norm_lines(norms: Mapping[str, Sequence[Norm]], title: str = '') -> Figure:
    """Norm over layer for each named checkpoint, on a logarithmic axis where they lie far apart."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.6))
        axes = figure.subplots()
        for number, (name, rows) in enumerate(norms.items()):
            colour = CLASS_COLOURS[number % len(CLASS_COLOURS)]
            marker = MARKERS[number % len(MARKERS)]
            axes.plot([row.norm for row in rows], color=colour, marker=marker, markersize=5, label=name)
        values = [row.norm for rows in norms.values() for row in rows if row.norm > 0]
        if values and max(values) > 8 * min(values):
            axes.set_yscale('log')
        longest = max(norms.values(), key=len)
        every = max(1, -(-len(longest) // 24))
        axes.set_xticks(
            range(0, len(longest), every),
            [short(row.name) for row in longest[::every]],
            rotation=60,
            ha='right',
            rotation_mode='anchor',
            fontsize=8,
        )
        axes.set_ylabel('norm')
        axes.set_title(title)
        axes.legend(fontsize=10)
        return figure


def short(name: str) -> str:
    return name.removesuffix('.weight').replace('layer', 'l')
