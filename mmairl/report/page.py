"""Pages from jinja2 templates, each one HTML file without external assets: stylesheet, scripts and figures are inlined."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mmairl.io import write_text

HERE = Path(__file__).parent
TEMPLATES = HERE / 'templates'
# HTML templates escape what they are given; tables in Markdown and LaTeX escape their own cells.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=lambda name: name.endswith('.html'),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# The first six are distinct for color-blind readers too, on white and on near-black. The others differ from those that
# share their marker.
COLORS = (
    '#2f7fc1',
    '#e69f00',
    '#009e73',
    '#d55e00',
    '#cc79a7',
    '#56b4e9',
    '#25a9bd',
    '#86b84a',
    '#f0a0c0',
    '#b03060',
    '#a6794f',
    '#8a5a2b',
)
MARKDOWN = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    **{character: f'\\{character}' for character in '\\|`*_[]$~'},
}
LATEX = {
    '\\': r'\textbackslash{}',
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    '<': r'\textless{}',
    '>': r'\textgreater{}',
    '|': r'\textbar{}',
    '"': r'\textquotedbl{}',
    '[': '{[}',
    **{character: f'\\{character}' for character in '&%$#_{}'},
    '—': '---',
    '–': '--',
    '−': '$-$',
    '±': r'$\pm$',
    '×': r'$\times$',
    '→': r'$\rightarrow$',
    '·': r'$\cdot$',
    'Δ': r'$\Delta$',
}
# Scripts that only some pages need, by the markup that needs them.
UPLOT_LICENSE = 'uplot/LICENSE'
SCRIPTS = {
    'class="curves': (
        UPLOT_LICENSE,
        'uplot/uPlot.iife.min.js',
        'templates/charts.js',
    ),
    'id="map"': ('templates/map.js',),
}


def fill(template: str, **values: object) -> str:
    """Return a filled-in template. HTML is marked as such, so that another template does not escape it again."""
    text = ENVIRONMENT.get_template(template).render(**values)
    return Markup(text) if template.endswith('.html') else text


def write_page(
    path: str | Path, template: str = 'page.html', wide: bool = False, **values: object
) -> Path:
    """Write a page from a template as one file, atomically.

    The page's content security policy allows its own style and scripts, by hash, and no network access. A name on the
    page can therefore never run code.

    Args:
        path: The file to write.
        template: The template of the body.
        wide: Whether the page uses the full width of the window.
        values: The values of the template, `title` among them.

    Returns:
        The path of the file.
    """
    body = fill(template, wide=wide, **values)
    style = _style(body)
    script = _script(body)
    signs = dict(colors=COLORS, markdown=MARKDOWN, latex=LATEX)
    page = fill(
        'frame.html',
        body=body,
        title=values['title'],
        policy=_policy(style, script),
        signs=json.dumps(signs),
        style=Markup(style),
        script=Markup(script),
    )
    return write_text(path, page)


def _scripts(body: str) -> list[str]:
    names = ['templates/page.js']
    for sign, needed in SCRIPTS.items():
        if sign in body:
            names += needed
    return names


def _script(body: str) -> str:
    parts = []
    for name in _scripts(body):
        text = (HERE / name).read_text('utf-8')
        parts.append(f'/*! {text} */' if name == UPLOT_LICENSE else text)
    return '\n'.join(parts)


def _style(body: str) -> str:
    style = (TEMPLATES / 'style.css').read_text('utf-8')
    if UPLOT_LICENSE in _scripts(body):
        style = (HERE / 'uplot/uPlot.min.css').read_text('utf-8') + style
    return style


def _policy(style: str, script: str) -> str:
    return '; '.join(
        (
            "default-src 'none'",
            'img-src data:',
            f"style-src 'sha256-{_digest(style)}'",
            f"script-src 'sha256-{_digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


class Page:
    """A page of sections, one below the other.

    Args:
        title: The title, which is also the heading.
        lead: The first line, which answers the reader's question.
        wide: Whether the page uses the full width of the window.

    Example:
        >>> page = Page('A run', lead='Final k-NN accuracy: 71 %.').add('Loss', 'It should fall.', Markup('<svg></svg>'))
        >>> page.write('report.html')  # doctest: +SKIP
    """

    def __init__(self, title: str, lead: str = '', wide: bool = False) -> None:
        self.title = title
        self.lead = lead
        self.wide = wide
        self.sections: list[Markup] = []

    def add(
        self,
        heading: str,
        text: str = '',
        figure: str | Sequence[str] = '',
        caption: str = '',
    ) -> 'Page':
        """Append a section. Anything that is not Markup is text and is escaped.

        Args:
            heading: The heading.
            text: A sentence or two.
            figure: A figure or table, or several figures to show side by side.
            caption: The caption of the figure.

        Returns:
            The page itself.
        """
        sections = ENVIRONMENT.get_template('sections.html').module
        self.sections.append(sections.section(heading, text, figure, caption))
        return self

    def write(self, path: str | Path) -> Path:
        return write_page(
            path, title=self.title, lead=self.lead, wide=self.wide, sections=self.sections
        )
