"""Write pages from jinja2 templates. A page is one HTML file that contains its stylesheet, scripts and figures."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mmairl.io import write_text

HERE = Path(__file__).parent
TEMPLATES = HERE / 'templates'
# Values in HTML templates are escaped automatically. The functions for Markdown and LaTeX escape their values themselves.
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=lambda name: name.endswith('.html'),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# The colors of lines, and the characters to escape in Markdown and LaTeX. Pages contain these values for their scripts, too.
SIGNS = yaml.safe_load((TEMPLATES / 'signs.yaml').read_text('utf-8'))
COLORS: list[str] = SIGNS['colors']
MARKDOWN: dict[str, str] = SIGNS['markdown']
LATEX: dict[str, str] = SIGNS['latex']
# Scripts that only some pages contain. The key is the markup in a page that requires these scripts.
UPLOT_LICENSE = 'uplot/LICENSE'
SCRIPTS = {
    'class="curves': (UPLOT_LICENSE, 'uplot/uPlot.iife.min.js', 'templates/charts.js'),
    'id="map"': ('templates/map.js',),
}


def fill(template: str, **values: object) -> str:
    """Fill in a template and return the text. HTML is returned as Markup, so that another template does not escape it again."""
    text = ENVIRONMENT.get_template(template).render(**values)
    return Markup(text) if template.endswith('.html') else text


def macro(template: str, name: str, *values: object) -> Markup:
    """Call a macro of an HTML template and return its output."""
    return getattr(ENVIRONMENT.get_template(template).module, name)(*values)


def write_page(
    path: str | Path, template: str = 'page.html', wide: bool = False, **values: object
) -> Path:
    """Fill in a template and write the result atomically as a page, which is a single HTML file.

    The content security policy of the page allows only embedded images, and the stylesheet and the scripts of the page, which
    it identifies by their hashes. It allows no network access. Text on the page can therefore never run as code.

    Args:
        path: The file to write.
        template: The template of the page's body.
        wide: Whether the page uses the full width of the window.
        values: The values for the template. `title` is required.

    Returns:
        The path of the file.
    """
    body = fill(template, wide=wide, **values)
    style = (TEMPLATES / 'style.css').read_text('utf-8')
    scripts = ['templates/page.js']
    for sign, needed in SCRIPTS.items():
        if sign in body:
            scripts += needed
    if UPLOT_LICENSE in scripts:
        style = (HERE / 'uplot/uPlot.min.css').read_text('utf-8') + style
    script = '\n'.join(map(_script, scripts))
    page = fill(
        'frame.html',
        body=body,
        title=values['title'],
        signs=json.dumps(SIGNS),
        style=Markup(style),
        style_digest=_digest(style),
        script=Markup(script),
        script_digest=_digest(script),
    )
    return write_text(path, page)


def _script(name: str) -> str:
    text = (HERE / name).read_text('utf-8')
    return f'/*! {text} */' if name == UPLOT_LICENSE else text


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


class Page:
    """A page that consists of sections, one below the other.

    Args:
        title: The title, which is also the heading.
        lead: The first line, which answers the reader's question.
        wide: Whether the page uses the full width of the window.

    Example:
        >>> page = Page('A run', lead='Final k-NN accuracy: 71 %.').add('Loss', 'It should fall.', Markup('<svg></svg>'))
        >>> page.write('report.html')  # doctest: +SKIP
    """

    def __init__(self, title: str, lead: str = '', wide: bool = False) -> None:
        self.values = dict(title=title, lead=lead, wide=wide)
        self.sections: list[Markup] = []

    def add(
        self,
        heading: str,
        text: str = '',
        figure: str | Sequence[str] = '',
        caption: str = '',
    ) -> 'Page':
        """Append a section to the page. An argument that is not Markup is treated as plain text and escaped.

        Args:
            heading: The heading.
            text: One or two sentences below the heading.
            figure: A figure or table, or several figures to show side by side.
            caption: The caption of the figure.

        Returns:
            This page, so that calls can be chained.
        """
        self.sections.append(macro('sections.html', 'section', heading, text, figure, caption))
        return self

    def write(self, path: str | Path) -> Path:
        return write_page(path, sections=self.sections, **self.values)
