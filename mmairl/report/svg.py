"""Figures of matplotlib for a page, where they take their colours from the page, and as files of their own."""

import io
import json
import re
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from mmairl.files import replacing
from mmairl.report.page import TEMPLATES

# The page's light colours, as in figures.mplstyle: right in a file of their own; on a page `svg` swaps them for its variables.
INK, QUIET, LINE, ACCENT, CARD = '#1d2433', '#667085', '#e3e1dc', '#2563c9', '#fffffe'
PUBLISHED = '#96600f'  # what a paper printed, as opposed to what was measured here
VARIABLES = {INK: 'ink', QUIET: 'quiet', LINE: 'line', ACCENT: 'accent', CARD: 'card', PUBLISHED: 'published'}


@contextmanager
def styled() -> Iterator[None]:
    """The style of every figure; what draws one is decorated with it. Letters that a font lacks are the browser's to find."""
    with rc_context(fname=TEMPLATES / 'figures.mplstyle'), warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph .* missing from')
        yield


class Drawing(Figure):
    """A figure that knows which of its parts a page reads out."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.marks: dict[str, tuple[str, str]] = {}  # id to name and text

    def mark(self, part: Artist, name: str, text: str) -> None:
        """Have a page read `name: text` where this part is pointed at, and mark it with the row of that name."""
        part.set_gid(f'mark-{len(self.marks)}')
        self.marks[part.get_gid()] = name, text


@styled()
def svg(figure: Figure, name: str, label: str = '') -> Markup:
    """Return the figure as inline SVG, read out as `label`; `name` keeps its ids apart from those of other figures."""
    buffer, frame = io.StringIO(), figure.get_tightbbox().padded(0.05)
    figure.savefig(buffer, format='svg', bbox_inches=frame, metadata={'Date': None})
    text = buffer.getvalue()
    text = re.sub(r'<metadata>.*?</metadata>|<style.*?</style>', '', text[text.index('<svg') :], flags=re.DOTALL)
    text = re.sub(r'<[^>]+>', lambda tag: _tag(tag[0], name), text)
    marks = [(f'{name}-{part}', *said) for part, said in getattr(figure, 'marks', {}).items()]
    head = Markup('<svg class="plot {}" role="img" aria-label="{}" viewBox="{}" data-marks="{}">')
    box, size = re.search(r'viewBox="([^"]+)"', text)[1], 'wide' if frame.width > 6 else 'narrow'
    label = label or figure.axes[0].get_title(loc='left') or name
    return head.format(size, label, box, json.dumps(marks)) + Markup(text.partition('>')[2])


def _tag(tag: str, name: str) -> str:
    """Return a tag with ids of this figure and the page's colours."""
    tag = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf'\g<1>{name}-', tag)
    tag = tag.replace('xlink:href', 'href').replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', '')
    tag = re.sub(r' style="([^"]*)"', _attributes, tag)
    return re.sub(r'"(#[0-9a-f]{6})"', lambda c: f'"var(--{VARIABLES[c[1]]})"' if c[1] in VARIABLES else c[0], tag)


def _attributes(style: re.Match) -> str:
    """Return a style as attributes, which a page's policy need not allow."""
    pairs = (pair.split(':', 1) for pair in style[1].split(';') if pair.strip())
    given = {key.strip(): value.strip() for key, value in pairs}
    if font := given.pop('font', None):
        given['font-size'] = font.split()[0]
    return ''.join(f' {key}="{value}"' for key, value in given.items())


@styled()
def png(figure: Figure) -> str:
    """Return the figure as PNG in base64: where a page has more dots than an SVG should."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=110, facecolor='white', bbox_inches='tight')
    return b64encode(buffer.getvalue()).decode()


@styled()
def save_figure(figure: Figure, stem: str | Path) -> None:
    """Write stem.png and stem.svg on white; the same figure gives the same files."""
    for kind, metadata in (('png', {}), ('svg', {'Date': None})):
        with replacing(Path(f'{stem}.{kind}')) as beside:
            figure.savefig(beside, format=kind, metadata=metadata, dpi=160, facecolor='white', bbox_inches='tight')
